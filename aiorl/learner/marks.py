"""A learner's marks in the trace."""

from __future__ import annotations

import torch

from aiorl.telemetry.trace.slices import Trace


class Marks:
    """Called at the end of each phase; waits for the device first, else the slice would be that of the launches."""

    def __init__(self, trace: Trace, device: torch.device) -> None:
        self._trace, self._device = trace, device

    def __call__(self, phase: str) -> None:
        """Say that everything since the last mark was `phase`."""
        if self._trace.is_on:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self._trace.mark(phase)
