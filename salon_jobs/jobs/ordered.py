"""Ordered jobs: what one of them waits for, and what waits for it."""

from __future__ import annotations

from typing import NamedTuple

from salon_jobs.core.records import JobState
from salon_jobs.core.units import with_noun
from salon_jobs.db import statements
from salon_jobs.models import Job


class PlaceInOrder(NamedTuple):
    """The job whose turn it is under the key of an ordered job, and how many wait before and after that one.

    ``turn`` is an ID, a task and a state, None while another transaction has locked the next job. Counts stop at 1,000.
    """

    turn: tuple[int, str, str] | None
    ahead: int
    behind: int

    def lines(self) -> list[str]:
        """Return what a person reads: whose turn it is, and the counts that are not zero."""
        turn = [] if self.turn is None else ["it is the turn of #{} {}: {}".format(*self.turn)]
        if self.turn is not None and self.turn[2] == JobState.FAILED:
            turn = [f"{turn[0]}; retry or discard it, and the next one runs"]
        counts = ((self.ahead, "before"), (self.behind, "after"))
        return turn + [f"{with_noun(count, 'job')} waiting {way} this one" for count, way in counts if count]


def place_in_order(job: Job, *, using: str) -> PlaceInOrder | None:
    """Return the place of an ordered job among those with its key; None if it is not ordered or has let its key go."""
    rows = [] if job.ordered is None else statements.rows("place_in_order", {"id": job.pk}, using=using)
    for turn_id, task, state, ahead, behind in rows:
        return PlaceInOrder(None if task is None else (turn_id, task, state), ahead, behind)
    return None
