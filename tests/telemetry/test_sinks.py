"""metrics.jsonl and TensorBoard say the same, on one axis, over a run and its resume."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aiorl import StorageError
from aiorl.telemetry.sinks import MetricsSinks, read_metrics
from aiorl.telemetry.writer import FileWriter


def record(tick: int, **numbers: float) -> dict[str, float]:
    return {
        "time": 1000.0 + tick,
        "tick": tick,
        "env_steps": tick * 16,
        "gradient_steps": tick,
        "seconds": tick,
        **numbers,
    }


def scalars(run_dir: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def write(run_dir: Path, *records: dict[str, float], cut_back: int | None = None) -> None:
    async def main() -> None:
        writer = FileWriter()
        sinks = MetricsSinks(run_dir, writer, tensorboard=True)
        if cut_back is not None:
            sinks.cut_back(cut_back, cut_back * 16)
        for each in records:
            sinks.write(each)
        sinks.close()
        await writer.close()
        writer.raise_failure()

    asyncio.run(main())


def test_the_same_numbers_in_both(tmp_path: Path) -> None:
    write(tmp_path, *(record(tick, **{"loss/critic": tick / 2}) for tick in (1, 2, 3)))
    assert [each["loss/critic"] for each in read_metrics(tmp_path / "metrics.jsonl")] == [0.5, 1.0, 1.5]
    assert scalars(tmp_path, "loss/critic") == [(16, 0.5), (32, 1.0), (48, 1.5)]
    assert scalars(tmp_path, "gradient_steps") == [(16, 1), (32, 2), (48, 3)]


def test_a_resume_cuts_back_and_goes_on(tmp_path: Path) -> None:
    write(tmp_path, *(record(tick, x=1) for tick in (1, 2, 3, 4)))
    write(tmp_path, *(record(tick, x=2) for tick in (3, 4, 5)), cut_back=2)
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [(each["tick"], each["x"]) for each in records] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    assert scalars(tmp_path, "x") == [(16, 1), (32, 1), (48, 2), (64, 2), (80, 2)]


def test_evaluations_have_a_file_of_their_own_and_the_same_axis(tmp_path: Path) -> None:
    def evaluation(tick: int, mean: float) -> dict[str, Any]:
        return {**record(tick), "return_mean": mean, "length_mean": 20.0, "returns": [mean, mean]}

    def write_some(*evaluations: dict[str, Any], cut_back: int | None = None) -> None:
        async def main() -> None:
            writer = FileWriter()
            sinks = MetricsSinks(tmp_path, writer, tensorboard=True)
            if cut_back is not None:
                sinks.cut_back(cut_back, cut_back * 16)
            for each in evaluations:
                sinks.write_evaluation(each)
            sinks.close()
            await writer.close()
            writer.raise_failure()

        asyncio.run(main())

    write(tmp_path, record(3, x=1.0))
    write_some(
        evaluation(1, 5), evaluation(2, 6), evaluation(4, 7)
    )  # later than the metrics of tick 3: it took a while
    assert read_metrics(tmp_path / "evaluations.jsonl")[1] == evaluation(2, 6)
    assert scalars(tmp_path, "evaluation/return_mean") == [(16, 5), (32, 6), (64, 7)]
    assert scalars(tmp_path, "evaluation/length_mean") == [(16, 20), (32, 20), (64, 20)]
    write_some(evaluation(3, 8), cut_back=2)
    assert [each["return_mean"] for each in read_metrics(tmp_path / "evaluations.jsonl")] == [5, 6, 8]
    assert scalars(tmp_path, "evaluation/return_mean") == [(16, 5), (32, 6), (48, 8)]


def test_a_half_written_last_line_is_left_out_and_another_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"tick": 1}\n{"tick": 2}\n{"ti')
    assert [each["tick"] for each in read_metrics(path)] == [1, 2]
    path.write_text('{"tick": 1}\n{"ti\n{"tick": 2}\n')
    with pytest.raises(StorageError, match=r"metrics\.jsonl:2"):
        read_metrics(path)
    assert read_metrics(tmp_path / "nothing.jsonl") == []


def test_the_first_failed_write_is_reported(tmp_path: Path) -> None:
    async def main() -> None:
        writer = FileWriter()
        MetricsSinks(tmp_path / "gone", writer, tensorboard=False).write(record(1))
        await writer.close()
        with pytest.raises(StorageError, match="cannot be written"):
            writer.raise_failure()

    asyncio.run(main())
