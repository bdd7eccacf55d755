"""Reads the statistics of an hour, a day or a week in as many steps as a plot has room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone

from salon_jobs.core.histogram import percentile
from salon_jobs.overview.rows import rows


@dataclass(frozen=True, slots=True)
class Span:
    """Is a length of time and the steps it is read in."""

    length: timedelta
    step: timedelta


SPANS: Final[Mapping[str, Span]] = {
    "hour": Span(timedelta(hours=1), timedelta(minutes=1)),
    "day": Span(timedelta(days=1), timedelta(minutes=15)),
    "week": Span(timedelta(days=7), timedelta(hours=2)),
}


@dataclass(frozen=True, slots=True)
class Step:
    """Is what happened in one step; rates are a minute, waits in seconds. None: nothing is known of it."""

    at: datetime
    succeeded: float = 0.0
    retried: float = 0.0
    failed: float = 0.0
    wait_p50_s: float | None = None
    wait_p95_s: float | None = None
    waiting: int | None = None
    due: int | None = None


def history(span: Span, *, using: str, now: datetime | None = None) -> tuple[Step, ...]:
    """Return the steps up to now; of the last one a minute is over at least. Two queries. Role: operator, worker.

    A minute that has just begun would look as if everything had stopped.
    """
    step_s = span.step.total_seconds()
    until = now or timezone.now()
    ended = until - timedelta(minutes=1)
    first = ended.timestamp() - span.length.total_seconds() + step_s
    since = datetime.fromtimestamp(first - first % step_s, tz=until.tzinfo)
    runs = {row[0]: row[1:] for row in rows("runs_over_time", using=using, step=span.step, since=since)}
    depths = {row[0]: row[1:] for row in rows("depth_over_time", using=using, step=span.step, since=since)}
    steps: list[Step] = []
    at = since
    while at <= ended:
        minutes = min(step_s, (until - at).total_seconds()) / 60
        steps.append(_step(at, minutes, runs.get(at), depths.get(at, (None, None))))
        at += span.step
    return tuple(steps)


def _step(at: datetime, minutes: float, runs: tuple[Any, ...] | None, depth: tuple[Any, ...]) -> Step:
    if runs is None:
        return Step(at, waiting=depth[0], due=depth[1])
    succeeded, retried, failed, waits = runs
    return Step(
        at, succeeded / minutes, retried / minutes, failed / minutes,
        percentile(waits, 0.5), percentile(waits, 0.95), depth[0], depth[1],
    )  # fmt: skip
