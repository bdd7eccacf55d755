"""Comparison of what was asked with what was done, read as the superuser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from benchmarks.server import Database
from tests.chaos.load import ASKED
from tests.chaos.tasks import DONE, MEMBERS, STEPS, part_of, tick_marker

_PARTS: Final = {"steps": STEPS, "flow": MEMBERS}
_UNDONE: Final = """
SELECT id, task, state, attempts, payload FROM salon_jobs_job
WHERE NOT (state = 'cancelled' AND (task = 'chaos-keyed' OR reason LIKE 'flow: %%'))
  AND task LIKE 'chaos-%%' AND NOT coalesce(tick > %s, false)
"""
_TICKS: Final = """
SELECT key, tick, tick <= %s
  FROM salon_jobs_schedule, generate_series(anchor_at + every, clock_timestamp(), every) AS tick
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Markers by what is wrong with them; ``rows`` are job rows that did not succeed.

    ``asked`` counts transactions of the enqueuer, ``effects`` rows that jobs, steps and members added, ``ticks`` those
    of them that a schedule owed.
    """

    asked: int
    effects: int
    ticks: int
    lost: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])
    forgotten: list[str] = field(default_factory=list[str])
    unasked: list[str] = field(default_factory=list[str])
    rows: list[str] = field(default_factory=list[str])


def examine(database: Database, confirmed: Iterable[str], until: datetime) -> Findings:
    """Compare what was asked with what was done. Call it while nothing is enqueued and no job is left.

    Schedules go on: of their ticks those up to ``until`` must be done.

    Of the markers of one key the last must be done, and each once at most: a job that died running is cancelled when a
    newer one has taken its key. ``forgotten`` were confirmed to the enqueuer and are not there; ``unasked`` were done
    although their transaction was never committed.
    """
    with database.connect() as connection:
        rows = connection.execute("SELECT name, email, count(*) FROM customer GROUP BY 1, 2").fetchall()
        left = connection.execute(_UNDONE, [until]).fetchall()
        ticks = connection.execute(_TICKS, [until]).fetchall()
    asked = {marker for name, marker, _ in rows if name == ASKED}
    done = Counter({marker: count for name, marker, count in rows if name == DONE})
    owed = {tick_marker(key, tick) for key, tick, is_owed in ticks if is_owed}
    allowed = {part for marker in asked for part in _parts(marker)} | {tick_marker(key, tick) for key, tick, _ in ticks}
    return Findings(
        asked=len(asked),
        effects=done.total(),
        ticks=len(owed),
        lost=sorted(marker for marker in _must_be_done(asked) | owed if not done[marker]),
        doubled=sorted(marker for marker, count in done.items() if count > 1),
        forgotten=sorted(set(confirmed) - asked),
        unasked=sorted(set(done) - allowed),
        rows=[f"job {row[0]} {row[1]} {row[2]} after {row[3]} attempts: {row[4]}" for row in left],
    )


def _parts(marker: str) -> list[str]:
    """Return the markers of everything that one marker asks for."""
    parts = _PARTS.get(marker.partition("/")[0])
    return [marker] if parts is None else [part_of(marker, part) for part in parts]


def _must_be_done(asked: Iterable[str]) -> set[str]:
    last: dict[str, int] = {}
    others: set[str] = set()
    for marker in asked:
        series, _, number = marker.rpartition("/")
        if series.startswith("keyed/"):
            last[series] = max(last.get(series, 0), int(number))
        else:
            others.update(_parts(marker))
    return others | {f"{series}/{number}" for series, number in last.items()}
