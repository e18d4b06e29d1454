"""numpy generators as arrays, for checkpoints."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WORD = 2**64


def get_generator(generator: np.random.Generator) -> NDArray[np.uint64]:
    """Return the state of a PCG64 generator, `(6,)`."""
    state = generator.bit_generator.state
    numbers = [state["state"]["state"], state["state"]["inc"]]
    words = [word for number in numbers for word in divmod(number, _WORD)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], dtype=np.uint64)


def set_generator(generator: np.random.Generator, words: NDArray[np.uint64]) -> None:
    """Give a PCG64 generator the state that `get_generator` returned."""
    numbers = [int(word) for word in words]
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": numbers[0] * _WORD + numbers[1], "inc": numbers[2] * _WORD + numbers[3]},
        "has_uint32": numbers[4],
        "uinteger": numbers[5],
    }
