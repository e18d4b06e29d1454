"""Imported once by the fork server, before any worker exists: what workers share.

BLAS reads its thread variables when numpy is imported, so they come first; each worker gives torch its own
share afterwards. Nothing here may touch an accelerator or start a thread.
"""

import contextlib
import gc
import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import gymnasium  # noqa: E402, F401
import mujoco  # noqa: E402, F401
import numpy  # noqa: E402, F401
import torch  # noqa: E402, F401

import aiorl.algorithms.sac.learner  # noqa: E402
import aiorl.collector.offpolicy  # noqa: E402
import aiorl.collector.onpolicy  # noqa: E402
import aiorl.evaluation  # noqa: E402
import aiorl.learner.offpolicy  # noqa: E402
import aiorl.learner.onpolicy  # noqa: E402, F401
from aiorl.settings.run import run_settings_model  # noqa: E402

# 15 MB that each worker would have for itself. A broken plug-in is told by the worker that needs it, not here.
with contextlib.suppress(Exception):
    run_settings_model()
gc.freeze()  # what is here now stays shared: no collection of a worker's touches it
