"""Running one benchmark after another, so that each has the machine to itself."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(module: str, *arguments: str, python: str = sys.executable) -> None:
    """Run a module to its end, with one thread in each process that does not choose for itself."""
    print(f"{module} {' '.join(arguments)}", file=sys.stderr, flush=True)
    subprocess.run([python, "-m", module, *arguments], check=True, stdout=subprocess.DEVNULL, env=environ())


def start(code: str) -> subprocess.Popen[bytes]:
    """Start Python code beside what comes next, with one thread."""
    return subprocess.Popen([sys.executable, "-c", code], env=environ())


def environ() -> dict[str, str]:
    """Return an environment in which every process has one thread, and finds this checkout."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **one_thread, "PYTHONPATH": str(ROOT)}
