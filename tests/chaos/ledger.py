"""Comparison of what was asked with what was done, read as the superuser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from benchmarks.server import Database
from tests.chaos.load import ASKED
from tests.chaos.tasks import DONE

_UNDONE: Final = """
SELECT id, task, state, attempts, payload FROM salon_jobs_job WHERE NOT (task = 'chaos-keyed' AND state = 'cancelled')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Markers by what is wrong with them; ``rows`` are job rows that did not succeed."""

    asked: int
    lost: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])
    forgotten: list[str] = field(default_factory=list[str])
    unasked: list[str] = field(default_factory=list[str])
    rows: list[str] = field(default_factory=list[str])


def examine(database: Database, confirmed: Iterable[str]) -> Findings:
    """Compare what was asked with what was done. Call it while nothing is enqueued and no job is left.

    Of the markers of one key the last must be done, and each once at most: a job that died running is cancelled when a
    newer one has taken its key. ``forgotten`` were confirmed to the enqueuer and are not there; ``unasked`` were done
    although their transaction was never committed.
    """
    with database.connect() as connection:
        rows = connection.execute("SELECT name, email, count(*) FROM customer GROUP BY 1, 2").fetchall()
        left = connection.execute(_UNDONE).fetchall()
    asked = {marker for name, marker, _ in rows if name == ASKED}
    done = Counter({marker: count for name, marker, count in rows if name == DONE})
    return Findings(
        asked=len(asked),
        lost=sorted(marker for marker in _must_be_done(asked) if not done[marker]),
        doubled=sorted(marker for marker, count in done.items() if count > 1),
        forgotten=sorted(set(confirmed) - asked),
        unasked=sorted(set(done) - asked),
        rows=[f"job {row[0]} {row[1]} {row[2]} after {row[3]} attempts: {row[4]}" for row in left],
    )


def _must_be_done(asked: Iterable[str]) -> set[str]:
    last: dict[str, int] = {}
    others: set[str] = set()
    for marker in asked:
        series, _, number = marker.rpartition("/")
        if series.startswith("keyed/"):
            last[series] = max(last.get(series, 0), int(number))
        else:
            others.add(marker)
    return others | {f"{series}/{number}" for series, number in last.items()}
