"""Deletion of rows past their retention, in small batches."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from django.db import connections

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.events import log_event
from salon_jobs.core.records import INBOX_KEPT, JobState
from salon_jobs.db import statements

# Deletes one batch; returns the number of rows by kind, and whether there may be more.
_Turn: TypeAlias = Callable[[], tuple[Mapping[str, int], bool]]
# Must match the SQL statements.
BATCH: Final = 1000
_ROUND_S = 0.5
# The shortest retention for errors of jobs that succeeded or were deleted by hand.
_ORPHANS_KEPT = timedelta(days=1)
_PROGRESS_KEPT = timedelta(days=1)
_TICKS_KEPT = timedelta(days=30)
_STATISTICS_KEPT = timedelta(days=14)
# Tables whose rows are deleted only by age, and their time columns.
_OLD: Final = {
    "fan_outs": ("salon_jobs_fan_out", "created_at"),
    "statistics": ("salon_jobs_task_minute", "minute"),
    "depths": ("salon_jobs_queue_minute", "minute"),
    "results": ("salon_jobs_job_result", "expires_at"),
    "progress": ("salon_jobs_job_progress", "updated_at"),
    "unique": ("salon_jobs_unique", "expires_at"),
    "rates": ("salon_jobs_rate", "full_at"),
    # These only if their job is gone.
    "errors": ("salon_jobs_job_error", "occurred_at"),
    "steps": ("salon_jobs_job_step", "committed_at"),
}


class PruneCounts(NamedTuple):
    """Rows deleted in one round, by kind; ``more`` means that time ran out before all were deleted."""

    deleted: Mapping[str, int]
    more: bool = False


class Pruner:
    """Pruner of rows past their retention. Any number of pruners can work at once."""

    def __init__(self, *, using: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._using, self._clock = using, clock
        self._after = {"errors": 0, "steps": 0}

    def run_once(self) -> PruneCounts:
        """Delete for half a second at most, and log the counts if there are any. Worker role, autocommit.

        Never touches a queued or running job. Raises database errors; what was already deleted stays deleted.
        """
        end = self._clock() + _ROUND_S
        # A fan-out goes no later than its failed jobs: without them it would look as if they had succeeded.
        fan_outs_kept = min(conf.retain_failed or _TICKS_KEPT, _TICKS_KEPT)
        turns: list[_Turn] = [
            partial(self._turn, "fan_outs", prune_old("fan_outs"), fan_outs_kept),
            # No later than their failed jobs either; a flow that has not ended stays.
            partial(self._turn, "flows", statements.load("prune_flows"), fan_outs_kept),
            *(partial(self._jobs_turn, state, age) for state, age in retained().items() if age is not None),
            # They are kept until they expire; the errors of the results' jobs go with the others.
            *(partial(self._turn, kind, prune_old(kind), timedelta(0)) for kind in ("results", "unique", "rates")),
            # Progress of runs whose process died; a run that continues reports it again.
            partial(self._turn, "progress", prune_old("progress"), _PROGRESS_KEPT),
            partial(self._turn, "ticks", statements.load("prune_ticks"), _TICKS_KEPT),
            # By workers, since a relay to ``rn::jobs`` writes it too, and needs no consumer.
            partial(self._turn, "inbox", statements.load("prune_inbox"), INBOX_KEPT),
            *(partial(self._turn, kind, prune_old(kind), _STATISTICS_KEPT) for kind in ("statistics", "depths")),
            partial(self._orphans_turn, "steps", timedelta(0)),
        ]
        if (age := conf.retain_succeeded) is not None:
            turns.append(partial(self._orphans_turn, "errors", max(age, _ORPHANS_KEPT)))
        counts = Counter[str]()
        while turns:
            # One batch of each in turn, so that a kind with many rows does not starve the others.
            for turn in list(turns):
                batch, more = turn()
                counts.update(batch)
                if not more:
                    turns.remove(turn)
            if self._clock() >= end:
                break
        deleted = +counts  # without zeros
        if deleted:
            log_event(logging.INFO, events.PRUNED, **dict[str, Any](deleted))
        return PruneCounts(deleted, more=bool(turns))

    def _jobs_turn(self, state: JobState, age: timedelta) -> tuple[Mapping[str, int], bool]:
        jobs, errors = prune_jobs(state, age, using=self._using)
        return {state.value: jobs, "errors": errors}, jobs == BATCH

    def _turn(self, kind: str, statement: str, age: timedelta | None = None) -> tuple[Mapping[str, int], bool]:
        with connections[self._using].cursor() as cursor:
            parameters: dict[str, Any] = {"age": age}
            cursor.execute(statement, parameters)
            [deleted] = cursor.fetchone()
        return {kind: deleted}, deleted == BATCH

    def _orphans_turn(self, kind: str, age: timedelta) -> tuple[Mapping[str, int], bool]:
        """Prune the next page of a kind. One without orphans ends the round; the next round continues after it."""
        with connections[self._using].cursor() as cursor:
            parameters: dict[str, Any] = {"after": self._after[kind], "age": age}
            cursor.execute(prune_old(kind, "prune_orphans"), parameters)
            deleted, after = cursor.fetchone()
        self._after[kind] = after or 0
        return {kind: deleted}, bool(deleted and after)


def retained() -> dict[JobState, timedelta | None]:
    """Return how long ended jobs are kept, by state; None means forever."""
    return {
        JobState.SUCCEEDED: conf.retain_succeeded,
        JobState.CANCELLED: conf.retain_cancelled,
        JobState.FAILED: conf.retain_failed,
    }


def prune_jobs(state: JobState, age: timedelta, *, using: str) -> tuple[int, int]:
    """Delete one batch of jobs that ended in ``state`` longer than ``age`` ago; return (jobs, error rows).

    Fewer than ``BATCH`` jobs means that there are no more, or that others hold them. Role: worker, operator.
    """
    [(jobs, errors)] = statements.rows("prune_jobs", {"state": state.value, "age": age}, using=using)
    return jobs, errors


def count_prunable(state: JobState, age: timedelta, *, using: str) -> int:
    """Count the jobs that ended in ``state`` longer than ``age`` ago. Role: worker, operator."""
    [(count,)] = statements.rows("count_prunable", {"state": state.value, "age": age}, using=using)
    return int(count)


def prune_old(kind: str, statement: str = "prune_old") -> str:
    """Return the statement that deletes a batch of the old rows of one kind."""
    table, time_column = _OLD[kind]
    return statements.load(statement).replace("__table__", table).replace("__time__", time_column)
