"""A trained policy without any process: raw observations in, actions in env units out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiorl.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from aiorl.checkpoint.settings import recorded_settings
from aiorl.checkpoint.store import CheckpointStore
from aiorl.errors import CheckpointError


class LoadedPolicy:
    """Call it with raw observations, `(obs_size,)` or `(n, obs_size)`; it returns deterministic actions."""

    def __init__(self, checkpoint: Path, manifest: Manifest) -> None:
        from aiorl.evaluation import load_policy_module  # imports torch

        self.checkpoint, self.manifest = checkpoint, manifest
        self._policy = load_policy_module(checkpoint, recorded_settings(checkpoint, manifest), manifest.spec)

    def __call__(self, obs: Any) -> NDArray[np.float32]:
        """Return the action in env units, `(action_size,)` or `(n, action_size)`; of a Dict, `policy` counts.

        Raises:
            ValueError: the observation has no group `policy`, or it does not have the policy's size.

        """
        import torch

        if isinstance(obs, dict) and "policy" not in obs:
            raise ValueError(f"this policy takes the observation group policy; there are {', '.join(obs)}")
        values = np.asarray(obs["policy"] if isinstance(obs, dict) else obs, dtype=np.float32)
        size = self.manifest.spec.group("policy").size
        if values.ndim not in (1, 2) or values.shape[-1] != size:
            raise ValueError(f"this policy takes observations of shape ({size},) or (n, {size}), not {values.shape}")
        with torch.inference_mode():
            batch = torch.from_numpy(np.atleast_2d(values))
            action: NDArray[np.float32] = self._policy.bounds(self._policy.act(batch)).numpy()
        return action[0] if values.ndim == 1 else action


def load_policy(path: str | Path) -> LoadedPolicy:
    """Load the policy of a run directory's newest whole checkpoint, or of one checkpoint.

    Raises:
        CheckpointError: there is none.

    """
    directory = Path(path)
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such run directory or checkpoint")
    if (directory / MANIFEST).is_file():
        return LoadedPolicy(directory, read_manifest(directory))
    found = CheckpointStore(directory / "checkpoints").newest_whole()
    return LoadedPolicy(found.path, found.manifest)
