"""Fenced statements of a worker: claim, finish and release jobs, on Django's own connection.

They run as the worker role, each in a transaction of its own, except a claim that counts limits, and statements that
finish jobs inside the handler's transaction. They use psycopg's cursors, for speed; errors are raised as Django's, so
that the connection notices them.

An end that is not a success can meet a transaction that has locked the row, or that has enqueued under the job's key
and not committed. It waits only a moment for that, and then raises an error for which ``is_lock_conflict`` is true.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import lru_cache, partial
from operator import itemgetter
from random import Random
from typing import Any, Final, NamedTuple

from django.db import DatabaseError, DataError, Error, IntegrityError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.error_report import ErrorReport, shown_message
from salon_jobs.core.events import log_event
from salon_jobs.core.outcomes import CANCEL_CLASS, DISCARD_CLASS, DISCARDED
from salon_jobs.core.records import ClaimedJob, JobState
from salon_jobs.core.run_log import LoggedLines
from salon_jobs.db.connections import raw_cursor
from salon_jobs.db.statements import array, is_lock_conflict, load, run_raw, short_lock_timeout
from salon_jobs.jobs import registry
from salon_jobs.jobs.registry import EndedRun
from salon_jobs.jobs.timeline import Timeline

LEASE_LOST = "SJ001"  # error code raised in db/sql/finish_function.sql
# A twin is a queued job that takes the same key while the end of this one is written.
_TWIN_TRIES = 5
# After a batch was held up, finish_many ends batches for so long: it skips locked rows.
_NOT_PLAIN_S = 5.0
# Further transactions can take keys between two tries; the next round handles the remaining jobs.
_HELD_TRIES = 3


class Ended(NamedTuple):
    """Job whose run ended without success, as ``end.sql`` returns it: queued again unless ``state`` says otherwise.

    ``attempts`` are those before the run; ``charged``: the rescue counts against the job; ``rescues``: how many do by
    now.
    """

    id: int
    task: str
    store_id: Any
    state: JobState
    reason: str
    attempts: int
    charged: bool
    queue: str
    rescues: int


class Leases:
    """Leases of one process on jobs of one database: the statements that claim the jobs, and end them."""

    def __init__(self, process_id: int, *, using: str, is_direct: Callable[[], bool] = lambda: False) -> None:
        """Work for a process; ``is_direct`` tells whether certainly no pooler shares its sessions.

        While it does, claims in due order and the ends of single jobs are prepared statements.
        """
        self.process_id, self.using, self.is_direct = process_id, using, is_direct
        self.timeline = Timeline(using=using)
        # Jobs that make claims fail, and when each is tried again. A repaired one stays, as a mark that it was logged.
        self._left_out: dict[int, float] = {}
        self._not_plain_until = 0.0
        # Unlike the system's, it gives no busy thread the interpreter's lock for 5 ms.
        self._random = Random(secrets.randbits(128))  # noqa: S311 - unique, not secret

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """This thread's connection."""
        return connections[self.using]

    def claim_due(
        self, tasks: Sequence[str], room: int, *, queues: Sequence[str] | None = None, now: datetime | None = None
    ) -> list[ClaimedJob]:
        """Claim up to ``room`` due jobs in claim order; ``queues`` None means all. A dead process gets none."""
        parameters = {
            "process_id": self.process_id,
            "tasks": _text_array(tuple(tasks)),
            "room": room,
            "now": now,
            "queues": None if queues is None else list(queues),
            "clock": time.monotonic(),
        }
        return self.claim("claim", parameters)

    def claim(self, statement: str, parameters: dict[str, Any]) -> list[ClaimedJob]:
        """Run a statement that claims jobs under a new lease; return them in the order in which they should run.

        The lease is random, since any counter of the server can go back: after a promotion that loses transactions, a
        new job gets the id of one that still runs. If rows make it fail, it runs again without them; in a transaction
        it raises ClaimFailed instead: end that, call ``leave_out``, and begin again.
        """
        prepare = statement == "claim" and self.is_direct()
        for is_last in (self.connection.in_atomic_block, True):
            parameters["token"], parameters["left_out"] = self._random.getrandbits(63) or 1, "{}"
            if self._left_out:
                now = time.monotonic()
                left_out = tuple(self._left_out.items())
                parameters["left_out"] = array(job_id for job_id, until in left_out if until > now)
            try:
                jobs: list[ClaimedJob] = run_raw(
                    statement, parameters, make_row=_claimed_job, many=True, prepare=prepare, using=self.using
                )
            except Error as error:
                sqlstate = getattr(error.__cause__, "sqlstate", None)
                if sqlstate is None or sqlstate[:2] in _OF_NO_ROW:
                    raise
                failed = ClaimFailed(error, statement, parameters)
                if is_last:
                    raise failed from error.__cause__
                self.leave_out(failed)
            else:
                jobs.sort(key=_claim_order)
                return jobs
        raise AssertionError  # the last try returns or raises

    def leave_out(self, failed: ClaimFailed) -> None:
        """Log the rows that make a claim fail, and leave them out of all claims for a minute.

        Raises the failure if no single row causes it.
        """
        body = load(_BODIES[failed.statement]).rpartition("\nUPDATE ")[0]
        with self.connection.cursor() as cursor:
            cursor.execute(f"{body}\nSELECT id FROM due", failed.parameters)
            due = [row[0] for row in cursor.fetchall()]
        refused = [row for row in self._rehearse(due, claim=True) if row[-1] is not None]
        if not refused:
            raise failed
        for *row, error in refused:
            if row[0] not in self._left_out:
                log_event(logging.ERROR, events.JOB_NOT_CLAIMED, **_named(row), error=error)
            self._left_out[row[0]] = time.monotonic() + _LEFT_OUT_S
        while len(self._left_out) > _MOST_LEFT_OUT:
            self._left_out.pop(next(iter(self._left_out)), None)  # another thread may have changed it

    def finish(self, runs: Sequence[EndedRun]) -> int:
        """Delete the jobs that these runs of one handler still own, or keep them as succeeded, with their results.

        Returns the number of these jobs. Waits for locked rows.
        """
        connection = self.connection
        with connection.wrap_database_errors:
            cursor = raw_cursor(connection)
            call = self.finish_call(runs, all_or_error=False, results="%s")
            cursor.execute(call.encode(), [_by_fence(runs)])
            finished: tuple[int] = cursor.fetchone()
            return finished[0]

    def finish_call(self, runs: Sequence[EndedRun], *, all_or_error: bool = True, results: str = "NULL") -> str:
        """Return a statement that finishes the jobs of one handler and returns how many.

        With ``all_or_error``, it raises LEASE_LOST if a lease is lost.
        """
        jobs = sorted(run.job for run in runs)  # their first field is the id
        ids, leases = (",".join([str(getattr(job, name)) for job in jobs]) for name in ("id", "lease"))
        how = f"{conf.keep_succeeded}, {runs[0].ran_s:f}, {all_or_error}, {results}"
        return f"SELECT salon_jobs_finish('{{{ids}}}', '{{{leases}}}', {self.process_id:d}, {how})"

    def finish_many(self, runs: Sequence[EndedRun]) -> set[int]:
        """Finish the jobs of any runs, keep their results, and return their fences. In autocommit.

        The others are locked, or not ours any more.
        """
        results, keep, fences = _by_fence(runs), conf.keep_succeeded, self._fences([run.job for run in runs])
        if len(runs) > 1 and results is None and not keep and time.monotonic() > self._not_plain_until:
            try:
                return {row[0] for row in run_raw("finish_plain", fences, many=True, using=self.using)}
            except OperationalError as error:
                if not is_lock_conflict(error):
                    raise
                self._not_plain_until = time.monotonic() + _NOT_PLAIN_S
        parameters = {
            **fences,
            "keep": keep,
            "ran_s": array([f"{run.ran_s:f}" for run in runs] if keep else []),
            "has_results": results is not None,
            "results": results,
        }
        is_one = len(runs) == 1
        statement, prepare = "finish_one" if is_one else "finish_many", is_one and self.is_direct()
        return {row[0] for row in run_raw(statement, parameters, many=True, prepare=prepare, using=self.using)}

    def save_step(self, job: ClaimedJob, **step: Any) -> bool:
        """Keep a step in the current transaction. Return False if the lease is lost. Waits for a locked row."""
        return bool(run_raw("save_step", {**self._fence(job), **step}, using=self.using))

    def keep_logs(self, runs: Sequence[EndedRun]) -> None:
        """Keep the logs of runs that have ended without failing, if their rows are kept and KEEP_LOG says so."""
        if conf.keep_log != "all":
            return
        logs = {run.job.id: (run.job.lease, lines.text) for run in runs if (lines := run.extension(LoggedLines))}
        if logs:
            leases, texts = zip(*logs.values(), strict=True)
            run_raw("keep_logs", {"ids": list(logs), "leases": list(leases), "logs": list(texts)}, using=self.using)

    def owned(self, jobs: Sequence[ClaimedJob]) -> set[int]:
        """Return the fences of the jobs that this process still owns."""
        return {row[0] for row in run_raw("owned", self._fences(jobs), many=True, using=self.using)}

    def fail(
        self,
        job: ClaimedJob,
        error: ErrorReport,
        *,
        delay: timedelta,
        final: bool,
        reason: str,
        ran_s: float | None = None,
        log: str = "",
    ) -> Ended | None:
        """Record the attempt's error, and retry, fail or supersede the job. Return None if the lease is lost.

        Raises an error for which ``is_lock_conflict`` is true.
        """
        how = "fail" if final else "retry"
        ended = self._end(how, [(job.id, job.lease)], wait=delay, reason=reason, ran_s=ran_s, log=log, **asdict(error))
        return ended[0] if ended else None

    def cancel_run(self, job: ClaimedJob, reason: str, *, ran_s: float | None = None) -> bool:
        """End a run as cancelled and count the attempt. Return False if the lease is lost. Can be held up."""
        error_class = DISCARD_CLASS if reason.startswith(DISCARDED) else CANCEL_CLASS
        reason = shown_message(reason)[:255]
        error = {"error_class": error_class, "message": reason, "traceback": reason}
        return bool(self._end("cancel", [(job.id, job.lease)], reason=reason, ran_s=ran_s, **error))

    def expire_run(self, job: ClaimedJob, error: ErrorReport, reason: str) -> bool:
        """Cancel a claimed job before its run, and record the error. Return False if the lease is lost.

        Can be held up.
        """
        return bool(self._end("expire", [(job.id, job.lease)], reason=reason, **asdict(error)))

    def begin_once(self, job: ClaimedJob) -> bool:
        """Record durably that the job's only run begins. Return False if the lease is lost, or it has begun before.

        Until it is requeued as ``unbegun``, or an operator retries it, nothing queues the job again. Can be held up.
        """
        with short_lock_timeout(using=self.using):
            return bool(run_raw("begin_once", self._fence(job), using=self.using))

    def requeue(
        self,
        jobs: Iterable[tuple[int, int]],
        *,
        delay: timedelta | None = None,
        alone: bool = False,
        unbegun: bool = False,
    ) -> dict[int, Ended]:
        """Requeue (id, lease) pairs without counting an attempt; return the results of those still owned, by id.

        With ``alone``, they join no chunk any more. ``unbegun``: their handlers were certainly not called, so that even
        a job that runs at most once may run. Can be held up, and then requeues none.
        """
        pairs = list(jobs)
        ended = self._end("requeue", pairs, wait=delay, alone=alone, unbegun=unbegun) if pairs else []
        return {job.id: job for job in ended}

    def give_back(self, jobs: Iterable[tuple[int, int]]) -> list[Ended]:
        """Requeue (id, lease) pairs as ``requeue`` does, but none that is held up or has begun its only run."""
        return self._end_free("requeue", dict(jobs))

    def rescue(
        self, message: str, *, charged: Collection[int] | None = None, ran: Collection[int] = (), again: bool = False
    ) -> list[Ended]:
        """Requeue the jobs of a process whose row is deleted, except those that are held up.

        ``charged`` are the ids that count a rescue and get an error with ``message``; None charges all, if it is
        unknown which had started, unless there is only one. A job fails of as many deaths as its task or the setting
        says; of those for which others may be to blame, not before the fifth. ``ran`` are further ids of jobs that had
        started, so that their wait begins anew. ``again``: an earlier rescue found these held up, so first ask which
        still are. A job is tried again if another takes its key in the meantime; a job that the database rejects is
        logged and left.
        """
        leases = dict(self.other_leases(()))
        if again:
            leases = self._free(leases)
        elif charged is None and len(leases) == 1:
            charged = [*leases]
        return self._end_free(
            "rescue",
            leases,
            message=message,
            error_class="salon_jobs.core.errors.ProcessDied",
            code="JOB.PROCESS_DIED",
            reason="process_died",
            alike="process died",
            charged=None if charged is None else list(charged),
            ran=list(ran),
            chunked=[task.name for task in registry.tasks() if task.chunk is not None],
            once=[task.name for task in registry.tasks() if task.at_most_once],
            deaths=conf.max_deaths,
            doubted=_DOUBTED_DEATHS,
            deaths_of=json.dumps({task.name: task.max_deaths for task in registry.tasks() if task.max_deaths}),
            limited=[task.name for task in registry.tasks() if task.timeouts and task.timeouts.wait_timeout],
        )

    def _end(self, how: str, leases: Iterable[tuple[int, int]], **parameters: Any) -> list[Ended]:
        """End the runs of these (id, lease) pairs without success; return those that were still owned. Can be held up.

        A job enqueued under the same key at the same moment makes it fail; the next try sees that job.
        """
        pairs = list(leases)
        ids, fences = [pair[0] for pair in pairs], [job_id ^ lease for job_id, lease in pairs]
        ended = {"how": how, "ids": ids, "fences": fences, "process_id": self.process_id}
        bound = {**END_DEFAULTS, **parameters, **ended}
        for tries_left in reversed(range(_TWIN_TRIES)):
            try:
                with short_lock_timeout(using=self.using):
                    rows = run_raw("end", bound, using=self.using)
                    return [Ended._make([*row[:3], JobState(row[3]), *row[4:]]) for row in rows]
            except IntegrityError:
                if not tries_left:
                    raise
        raise AssertionError  # the last try returns or raises

    def _end_free(self, how: str, leases: dict[int, int], **parameters: Any) -> list[Ended]:
        """End runs by ``_end``, except those that are held up; log and leave jobs that the database rejects."""
        for _ in range(_HELD_TRIES):
            if not leases:
                break
            try:
                return self._end(how, leases.items(), **parameters)
            except (DataError, IntegrityError) as error:
                if len(leases) == 1:
                    for row in self._rehearse(list(leases), claim=False):
                        log_event(logging.ERROR, events.JOB_NOT_RESCUED, **_named(row), error=str(error).strip())
                    break
                pairs = list(self._free(leases).items())
                half = len(pairs) // 2
                halves = (dict(pairs[:half]), dict(pairs[half:]))
                return [job for each in halves for job in self._end_free(how, each, **parameters)]
            except OperationalError as error:
                if not is_lock_conflict(error):
                    raise
                leases = self._free(leases)
        return []

    def _free(self, leases: dict[int, int]) -> dict[int, int]:
        return {job_id: leases[job_id] for job_id in self.unheld(list(leases))}

    def unheld(self, ids: Sequence[int]) -> list[int]:
        """Return the running jobs among these that can be requeued at once: no one else holds the row or the key.

        It takes a second at most; jobs that it has not checked by then are not among them.
        """
        return [row[0] for row in self._rehearse(ids, claim=False)] if ids else []

    def _rehearse(self, ids: Sequence[int], *, claim: bool) -> list[Any]:
        return run_raw("rehearse", {"ids": list(ids), "claim": claim}, using=self.using)

    def has_fresh_heartbeat(self) -> bool:
        """Return whether the process has a row whose heartbeat is younger than half of PROCESS_SILENT_AFTER."""
        parameters = {"process_id": self.process_id, "silent_after": conf.process_silent_after}
        return bool(run_raw("has_fresh_heartbeat", parameters, using=self.using)[0][0])

    def begun_once(self) -> set[tuple[int, int]]:
        """Return (id, lease) of jobs leased to this process that have begun their only run."""
        return {(row[0], row[1]) for row in run_raw("begun_once", {"process_id": self.process_id}, using=self.using)}

    def cancel_requests(self) -> set[tuple[int, int]]:
        """Return (id, lease) of jobs leased to this process whose cancellation was requested."""
        return {
            (row[0], row[1]) for row in run_raw("cancel_requests", {"process_id": self.process_id}, using=self.using)
        }

    def other_leases(self, known: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return (id, lease) of all jobs leased to this process but the ``known`` ones."""
        parameters = {"process_id": self.process_id, "fences": [job_id ^ lease for job_id, lease in known]}
        return [(row[0], row[1]) for row in run_raw("other_leases", parameters, using=self.using)]

    def committed(self, job: ClaimedJob, *, began: float | None = None) -> bool | None:
        """Return whether this run's COMMIT took effect, after an unclear end: row gone, or succeeded under this lease.

        False for a process that was declared dead: the row may be gone because another run of the job succeeded. With
        ``began``, when the run began (monotonic seconds), None if the row is gone and the server was promoted since:
        its COMMIT may have been lost, or the row.
        """
        [(took_effect, is_gone, _)] = run_raw("lease_state", self._fence(job), using=self.using)
        if took_effect and is_gone and began is not None and not self.timeline.continues_since(began):
            return None
        return bool(took_effect)

    def failed_by(self, job: ClaimedJob) -> bool:
        """Return whether the job failed for good under this run's lease."""
        return bool(run_raw("lease_state", self._fence(job), using=self.using)[0][2])

    def with_payload(self, job: ClaimedJob) -> ClaimedJob:
        """Return the job with its payload, read now if its claim left it out; without it if the lease is lost."""
        found = None if job.payload else self.leased_job(job.id, job.lease)
        return job if found is None else job._replace(payload=found.payload)

    def leased_job(self, job_id: int, lease: int) -> ClaimedJob | None:
        """Return the job if this process still holds it under this lease."""
        rows = run_raw("leased_job", {"id": job_id, "lease": lease, "process_id": self.process_id}, using=self.using)
        return ClaimedJob._make(rows[0]) if rows else None

    def _fence(self, job: ClaimedJob) -> dict[str, Any]:
        return {"id": job.id, "lease": job.lease, "process_id": self.process_id}

    def _fences(self, jobs: Sequence[ClaimedJob]) -> dict[str, Any]:
        ids, fences = array([job.id for job in jobs]), array([job.fence for job in jobs])
        return {"ids": ids, "fences": fences, "process_id": self.process_id}


class ClaimFailed(DatabaseError):
    """A claim that failed, perhaps because of a row."""

    def __init__(self, error: Error, statement: str, parameters: dict[str, Any]) -> None:
        super().__init__(*error.args)
        self.statement, self.parameters = statement, parameters


# Classes of errors that no row causes: of the connection, a prepared statement, the transaction, the server's resources
# and its operator.
_OF_NO_ROW: Final = frozenset({"08", "0A", "25", "26", "40", "53", "55", "57", "58"})
_LEFT_OUT_S: Final = 60.0
_MOST_LEFT_OUT: Final = 1000
# The statements that claims run, some as functions.
_BODIES: Final = {"claim": "claim_due", "claim_groups": "claim_by_group"}


# Like ClaimedJob._make and attrgetter, but without a Python call per row.
_claimed_job: Callable[[Sequence[Any]], ClaimedJob] = partial(tuple[Any, ...].__new__, ClaimedJob)
_claim_order = itemgetter(*(ClaimedJob._fields.index(name) for name in ("priority", "run_at_s", "id")))


def _by_fence(runs: Sequence[EndedRun]) -> str | None:
    """Return the results of runs as the JSON that ``finish.sql`` takes; None if there are none."""
    kept = [
        f'"{run.job.fence}":[{result.value},{result.keep.total_seconds()!r},{result.ran_s!r}]'
        for run in runs
        if (result := run.result) is not None
    ]
    return f"{{{','.join(kept)}}}" if kept else None


# How many processes must have died with a job, at least, for it to fail of deaths that others may have caused.
_DOUBTED_DEATHS: Final = 5
# Values of the parameters of ``end.sql`` that an end does not use.
END_DEFAULTS: Final[dict[str, Any]] = {
    **dict.fromkeys(("wait", "ran_s", "charged")),
    **dict.fromkeys(("alone", "unbegun"), False),
    **dict.fromkeys(("deaths", "doubted"), 0),
    "deaths_of": "{}",
    "once": [],
    "limited": [],
    "chunked": [],
    "ran": [],
    **dict.fromkeys(("reason", "error_class", "code", "message", "traceback", "alike", "log"), ""),
}


def _named(row: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a log record about a job from a row of ``rehearse``."""
    return dict(zip(("job_id", "task_name", "store_id", "attempt"), row, strict=False))


@lru_cache(maxsize=8)
def _text_array(names: tuple[str, ...]) -> str:
    """Return an array as PostgreSQL text; cached, since psycopg would write it again for each claim."""
    escaped = [name.replace("\\", "\\\\").replace('"', '\\"') for name in names]
    return "{" + ",".join([f'"{name}"' for name in escaped]) + "}"
