"""Metrics: what ticks report, gathered over an interval into one flat record."""

from __future__ import annotations

import time
from collections.abc import Iterable

from aiorl.protocol import EpisodeSums, PhaseTimes
from aiorl.settings import RunSettings
from aiorl.telemetry.tick import TickReport

Record = dict[str, float]
"""`time`, `tick`, `env_steps`, `gradient_steps`, `seconds`, and numbers named `section/name`."""


class MetricsInterval:
    """Gathers ticks until a record is due."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._reports: list[TickReport] = []
        self._since = time.monotonic()

    def start(self) -> None:
        """Count the interval from now on."""
        self._since = time.monotonic()

    def add(self, report: TickReport) -> None:
        """Add a finished tick."""
        self._reports.append(report)

    @property
    def is_due(self) -> bool:
        """Whether the interval is over."""
        telemetry = self._settings.telemetry
        if telemetry.interval_ticks is not None:
            return len(self._reports) >= telemetry.interval_ticks
        return time.monotonic() - self._since >= telemetry.interval_s

    @property
    def is_empty(self) -> bool:
        """Whether no tick finished since the last record."""
        return not self._reports

    def take(self, seconds: float) -> Record:
        """Return the record of the interval and start the next one; `seconds` of training so far."""
        reports, now = self._reports, time.monotonic()
        last, elapsed = reports[-1], max(now - self._since, 1e-9)
        record: Record = {
            "time": time.time(),
            "tick": last.tick,
            "env_steps": last.env_steps,
            "gradient_steps": last.gradient_steps,
            "seconds": seconds,
        }
        env_steps = sum(chunk.rows for report in reports for chunk in report.chunks)
        updates = [report for report in reports if report.update is not None]
        gradient_steps = len(updates) * self._settings.gradient_steps_per_update
        record["rate/env_steps_per_s"] = env_steps / elapsed
        record["rate/gradient_steps_per_s"] = gradient_steps / elapsed
        if not self._settings.on_policy:
            record["rate/replay_ratio"] = len(updates) * self._settings.rows_per_update / env_steps
        record |= _episodes([chunk.episodes for report in reports for chunk in report.chunks], last)
        record["env/invalid_rows"] = sum(chunk.invalid_rows for report in reports for chunk in report.chunks)
        record["env/nonfinite_rows"] = sum(chunk.nonfinite for report in reports for chunk in report.chunks)
        record |= _phases([chunk.phases for report in reports for chunk in report.chunks], len(reports))
        record |= _updates(updates)
        if last.packs:
            record["replay/rows"] = sum(pack.rows_present for pack in last.packs)
            record["replay/version_min"] = min(pack.version_min for pack in last.packs)
        if self._settings.on_policy:
            record["rollout/waiting"] = sum(report.waiting for report in reports) / len(reports)
        record["policy/version"] = last.weight_version
        # How many updates the chunk's policy was behind the learner's when the chunk was trained on.
        consumed_at = last.weight_version - (last.update is not None)
        record["policy/lag"] = consumed_at - min(chunk.weight_version for chunk in last.chunks)
        self._reports, self._since = [], now
        return record


def _episodes(sums: list[EpisodeSums], last: TickReport) -> Record:
    finished = sum(each.finished for each in sums)
    record: Record = {"episode/finished": finished}
    if finished:
        ended = [each for each in sums if each.finished]
        record["episode/return_interval_mean"] = sum(each.return_sum for each in ended) / finished
        record["episode/return_min"] = min(each.return_min for each in ended)
        record["episode/return_max"] = max(each.return_max for each in ended)
        record["episode/terminated_share"] = sum(each.terminated for each in sums) / finished
        record["episode/truncated_share"] = sum(each.truncated for each in sums) / finished
    windows = [chunk.episodes for chunk in last.chunks]
    if count := sum(each.window for each in windows):
        record["episode/return_mean"] = sum(each.window_return_mean * each.window for each in windows) / count
        record["episode/length_mean"] = sum(each.window_length_mean * each.window for each in windows) / count
    for name in {term.name for each in sums for term in each.reward_terms}:
        terms = [term for each in sums for term in each.reward_terms if term.name == name]
        record[name] = sum(term.total for term in terms) / max(1, sum(term.rows for term in terms))
    return record


def _phases(phases: Iterable[PhaseTimes], ticks: int) -> Record:
    """Return milliseconds per tick of each collector phase, mean over collectors, and its share."""
    phases = list(phases)
    sums = {name: sum(getattr(each, name) for each in phases) for name in PhaseTimes.__struct_fields__}
    total = max(sum(sums.values()), 1)
    record = {f"time/{name}_ms": value / len(phases) / 1e6 for name, value in sums.items()}
    return record | {f"share/{name}": value / total for name, value in sums.items()}


def _updates(reports: list[TickReport]) -> Record:
    updates = [report.update for report in reports if report.update is not None]
    record: Record = {}
    measured = [update.metrics for update in updates if update.metrics]  # an update on resets alone measures nothing
    for metrics in measured:
        for measure in metrics:
            record[measure.name] = record.get(measure.name, 0.0) + measure.value / len(measured)
    for phase in ("wait", "stage", "train", "publish") if updates else ():
        record[f"time/learner_{phase}_ms"] = sum(getattr(each, f"{phase}_ns") for each in updates) / len(updates) / 1e6
    return record
