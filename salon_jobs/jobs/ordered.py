"""Ordered jobs: the job for which one waits, and the jobs that wait for it."""

from __future__ import annotations

from typing import NamedTuple

from django.utils.translation import gettext, ngettext

from salon_jobs.core.records import JobState
from salon_jobs.db import statements
from salon_jobs.models import Job


class PlaceInOrder(NamedTuple):
    """The next job under the key of an ordered job, and how many wait before and after the ordered job.

    ``turn`` is an ID, a task and a state, None while another transaction has locked the next job. Counts stop at 1,000.
    """

    turn: tuple[int, str, str] | None
    ahead: int
    behind: int

    def lines(self) -> list[str]:
        """Return lines for people: the next job, and the counts that are not zero."""
        lines: list[str] = []
        if self.turn is not None:
            id_, task, state = self.turn
            said = gettext("it is the turn of #%(id)s %(task)s: %(state)s")
            if state == JobState.FAILED:
                said = gettext(
                    "it is the turn of #%(id)s %(task)s: %(state)s; retry or discard it, and the next one runs"
                )
            lines.append(said % {"id": id_, "task": task, "state": gettext(state)})
        if self.ahead:
            said = ngettext("%(jobs)s job waiting before this one", "%(jobs)s jobs waiting before this one", self.ahead)
            lines.append(said % {"jobs": f"{self.ahead:,}"})
        if self.behind:
            said = ngettext("%(jobs)s job waiting after this one", "%(jobs)s jobs waiting after this one", self.behind)
            lines.append(said % {"jobs": f"{self.behind:,}"})
        return lines


def place_in_order(job: Job, *, using: str) -> PlaceInOrder | None:
    """Return the place of an ordered job among those with its key; None if it is not ordered or has given it up."""
    rows = [] if job.ordered is None else statements.rows("place_in_order", {"id": job.pk}, using=using)
    for turn_id, task, state, ahead, behind in rows:
        return PlaceInOrder(None if task is None else (turn_id, task, state), ahead, behind)
    return None
