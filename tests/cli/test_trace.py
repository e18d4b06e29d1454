"""`aiorl trace` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.helpers import aiorl, run_small


def test_a_traced_run_says_where_its_time_went_and_is_drawn(algorithm: str, tmp_path: Path) -> None:
    code, _, err = run_small("telemetry.trace=true", cwd=tmp_path, algorithm=algorithm)
    assert code == 0, err
    code, out, err = aiorl("trace", "run", cwd=tmp_path)
    assert code == 0, err
    assert "who waited for whom" in out and "overlap: both sides busy" in out
    assert all(word in out for word in ("collector 0", "learner 0", "coordinator", "env_step", "action_select"))
    assert "Traceback" not in err
    assert (tmp_path / "run" / "trace.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "run" / "trace.json").read_text())["displayTimeUnit"] == "ms"
    assert not (tmp_path / "run" / "trace").exists()

    code, _, err = aiorl("trace", "run", "--tick", "99999", cwd=tmp_path)
    assert code == 2 and "not 99999" in err


def test_nonsense_is_refused_in_one_line(tmp_path: Path) -> None:
    code, _, err = aiorl("trace", "nowhere", cwd=tmp_path)
    assert code == 2 and "no such run directory" in err and len(err.splitlines()) == 1
    code, _, err = run_small("budget.env_steps=80", cwd=tmp_path)
    assert code == 0, err
    code, _, err = aiorl("trace", "run", cwd=tmp_path)
    assert code == 2 and "telemetry.trace=true" in err and len(err.splitlines()) == 1
    (tmp_path / "run" / "trace.json").write_text("{")
    code, _, err = aiorl("trace", "run", cwd=tmp_path)
    assert code == 2 and "is no trace" in err and len(err.splitlines()) == 1
