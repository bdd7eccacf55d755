"""Ends of runs: each outcome is written under the fence, logged, counted and announced."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.error_report import report
from salon_jobs.core.errors import EndRefused, OutcomeUnknown
from salon_jobs.core.events import log_event, logging_errors
from salon_jobs.core.outcomes import (
    CANCELLED,
    Cancelled,
    Errored,
    Left,
    Lost,
    NotStarted,
    Outcome,
    Released,
    Snoozed,
    Split,
    Succeeded,
    Unknown,
    not_repeated,
)
from salon_jobs.core.records import ClaimedJob, JobState
from salon_jobs.core.run_log import LoggedLines
from salon_jobs.core.tracing import FinalFailure, report_failure
from salon_jobs.jobs import registry
from salon_jobs.jobs.current import CurrentJob
from salon_jobs.jobs.leases import Ended, Leases
from salon_jobs.jobs.result_waits import awaited
from salon_jobs.jobs.run import JobRun
from salon_jobs.jobs.statistics import ended_runs
from salon_jobs.process.log_lines import log_batch
from salon_jobs.signals import job_finished

LONGEST_LOGGED: Final = 500
# How long to leave a job with a payload of another version of the host's code, at least and at most.
_LEFT_S: Final = (1.0, 60.0)


def settle(running: JobRun, outcome: Outcome) -> Outcome:
    """Write the outcome under the fence, log it and send ``job_finished``; return what really happened.

    Raises database errors, also when another transaction holds up the job (``is_lock_conflict``); then call it again.
    """
    if isinstance(outcome, Succeeded):
        if outcome.finished or _finish(running):
            report_successes(running.runs)
            return outcome
    elif isinstance(outcome, Split):
        if _split(running, outcome):
            return outcome
    elif (state := _write(running, outcome)) is not None:
        announce(running, state, outcome.error if isinstance(outcome, (Errored, NotStarted)) else None)
        return outcome
    # The row is not ours. Only a run that sent its end without a clear answer can have been committed: other rows have
    # gone for other reasons.
    is_committed = (
        not isinstance(outcome, Lost)
        and running.is_unclear
        and running.leases.committed(running.job, began=running.started)
    )
    if is_committed is None:
        unknown = OutcomeUnknown(
            "the database was promoted before it answered the COMMIT: the job has ended, or is lost"
        )
        if running.trace is not None:
            running.trace.error = unknown
        for run in running.runs:
            log_end(logging.WARNING, events.JOB_OUTCOME_UNKNOWN, run, code=unknown.code, error=str(unknown))
            announce(run, None, unknown)
        return Unknown(unknown)
    if is_committed:
        # Without an interrupt, only an on_commit callback can have failed.
        raised = outcome.error if isinstance(outcome, (Errored, Split)) and running.interrupted_by is None else None
        if raised is not None:
            log_end(logging.ERROR, events.JOB_CALLBACK_FAILED, running, exc_info=raised)
        if running.trace is not None:
            running.trace.ended = events.JOB_SUCCEEDED
        for run in running.runs:
            run.finished = True
        report_successes(running.runs)
        return Succeeded(finished=True, callback_error=raised)
    for run in running.runs:
        log_end(logging.WARNING, events.JOB_LEASE_LOST, run)
    return Lost()


def _finish(running: JobRun) -> bool:
    """Finish the job of a run that succeeded; return whether it was still owned."""
    # An earlier try, whose answer was lost, may have finished it. This one is unclear until it is answered.
    was_unclear, running.is_unclear = running.is_unclear, True
    if running.leases.finish([running]):
        return True
    running.is_unclear = was_unclear
    return False


def _write(running: JobRun, outcome: Outcome) -> JobState | None:
    """Write and log any outcome but a success; return the job's state now, or None if this run does not own the row."""
    job, leases = running.job, running.leases
    match outcome:
        case Snoozed(delay=delay):
            ended = leases.requeue([(job.id, job.lease)], delay=delay).get(job.id)
            return _log_requeued(logging.INFO, events.JOB_SNOOZED, running, ended, delay_s=delay.total_seconds())
        case Released(begun=begun):
            wait = delay_of_release(running)
            ended = leases.requeue([(job.id, job.lease)], delay=wait, unbegun=not begun).get(job.id)
            return _log_requeued(logging.WARNING, events.JOB_RELEASED, running, ended)
        case Left(error=error):
            wait = _delay_of_left(job)
            ended = leases.requeue([(job.id, job.lease)], delay=wait, unbegun=True).get(job.id)
            return _log_requeued(
                logging.WARNING,
                events.JOB_RELEASED,
                running,
                ended,
                reason="payload unknown",
                code=error.code,
                error=str(error)[:LONGEST_LOGGED],
                delay_s=round(wait.total_seconds(), 3),
            )
        case Cancelled(kind=kind, detail=detail):
            reason = kind if kind == detail else f"{kind}: {detail}"
            if not leases.cancel_run(job, reason, ran_s=running.ran_s):
                return None
            log_end(logging.INFO, events.JOB_CANCELLED, running, reason=reason)
            return JobState.CANCELLED
        case NotStarted(error=error):
            if running.trace is not None:
                running.trace.error = error
            described, reason = report(error), f"expired: {error}"
            if not leases.expire_run(job, described, reason):
                return None
            log_end(
                logging.WARNING,
                events.JOB_EXPIRED,
                running,
                reason=reason,
                waited_s=round(running.waited_s, 3),
                error_class=described.error_class,
                code=described.code,
            )
            return JobState.CANCELLED
        case Errored(error=error, retryable=retryable, delay=delay):
            if running.trace is not None:
                running.trace.error = error
            if delay is None:
                delay = running.declaration.backoff.delay(job.attempt)
            described = report(error)
            ended = leases.fail(
                job,
                described,
                delay=delay,
                final=not retryable,
                reason=described.code or ("attempts_exhausted" if retryable else "not_retried"),
                ran_s=running.ran_s,
                log=lines.text if (lines := running.extension(LoggedLines)) and conf.keep_log != "none" else "",
            )
            if ended is None and not leases.failed_by(job):
                return None
            # If the row is no longer owned but failed under this lease, an earlier attempt was written and its answer
            # lost.
            state = JobState.FAILED if ended is None else ended.state
            fields: dict[str, Any] = {
                "error_class": described.error_class,
                "code": described.code,
                "error": described.message[:LONGEST_LOGGED],
            }
            match state:
                case JobState.FAILED:
                    log_end(logging.ERROR, events.JOB_FAILED, running, exc_info=error, **fields)
                    reported = running.trace is not None and error in running.trace.reported
                    report_failure(FinalFailure(job.id, job.task, job.store_id, job.attempt, error, reported))
                case JobState.CANCELLED:
                    log_end(
                        logging.WARNING, events.JOB_CANCELLED, running, reason=ended.reason if ended else "", **fields
                    )
                case _:
                    # The error rows have the tracebacks of failures that only repeat the first.
                    shown = error if job.attempt == 1 else None
                    fields["delay_s"] = round(delay.total_seconds(), 3)
                    log_end(logging.WARNING, events.JOB_RETRIED, running, exc_info=shown, **fields)
            return state
        case _:
            return None


def _split(running: JobRun, outcome: Split) -> bool:
    """Requeue the jobs of a chunk, which was rolled back; return False if none of them is ours."""
    error = outcome.error
    pairs = [(run.job.id, run.job.lease) for run in running.runs]
    ended = running.leases.requeue(pairs, delay=delay_of_release(running), alone=outcome.alone)
    if not ended:
        return False
    described = report(error)
    if running.trace is not None:
        running.trace.error = error
    log_event(
        logging.WARNING,
        events.CHUNK_SPLIT,
        exc_info=error if running.interrupted_by is None else None,
        **identify(running.job),
        jobs=len(running.runs),
        queue=running.job.queue,
        error_class=described.error_class,
        code=described.code,
        error=described.message[:LONGEST_LOGGED],
    )
    for run in running.runs:
        end = ended.get(run.id)
        if end is None:
            log_end(logging.WARNING, events.JOB_LEASE_LOST, run)
            continue
        announce(run, _log_requeued(logging.INFO, events.JOB_RELEASED, run, end, reason="chunk split"))
    return True


def _log_requeued(level: int, event: str, running: JobRun, ended: Ended | None, **fields: Any) -> JobState | None:
    """Log that the job is queued again, or cancelled instead; return its state now, or None if it is not ours."""
    if ended is None:
        return None
    if ended.state is JobState.CANCELLED:
        log_end(_severity(ended), events.JOB_CANCELLED, running, reason=ended.reason)
    else:
        log_end(level, event, running, **fields)
    return ended.state


def refused(running: JobRun, error: Exception) -> Errored:
    """Return the final outcome of a run that succeeded, but whose end the database refuses to write."""
    size = 0 if running.result is None else len(running.result.value.encode())
    what = f"keep its result of {size:,} bytes" if size else "record that it succeeded"
    refusal = EndRefused(
        f"the handler of task {running.task!r} has returned, so what it did outside a transaction of its own stands, "
        f"but the database refuses to {what}: {type(error).__name__}: {str(error).strip()[:LONGEST_LOGGED]}"
    )
    refusal.__cause__ = error
    return Errored(refusal, retryable=False)


def end_begun(job_id: int, lease: int, leases: Leases) -> None:
    """Fail a job that runs at most once and whose only run has begun, but is lost here. Raises database errors."""
    if (job := leases.leased_job(job_id, lease)) is not None:
        running = JobRun(job, registry.get_declaration(job.task), leases, leases.connection)
        settle(running, not_repeated("the end of the run could not be written"))


def delay_of_release(running: JobRun) -> timedelta | None:
    """Return zero if the task has a wait timeout, since the run must not count towards it; None keeps ``run_at``."""
    timeouts = running.declaration.timeouts
    return timedelta(0) if timeouts is not None and timeouts.wait_timeout is not None else None


def _delay_of_left(job: ClaimedJob) -> timedelta:
    """Return how long to leave a job whose payload only another version of the code knows: its age again, in bounds.

    A new job soon meets a worker with that version; a backlog of old jobs costs little where there is none.
    """
    least_s, most_s = _LEFT_S
    return timedelta(seconds=min(most_s, max(least_s, time.time() - job.created_at_s)))


def announce(running: JobRun, state: JobState | None, error: BaseException | None = None) -> None:
    """Tell receivers, the task and waiting callers of a written end, whatever they raise."""
    if state is JobState.CANCELLED:
        with logging_errors("the log of job %s was not kept", running.id):
            running.leases.keep_logs([running])
    if awaited.until and state in (JobState.FAILED, JobState.CANCELLED):
        awaited.announce([running.id], using=running.leases.using)
    if job_finished.receivers:
        with logging_errors("receivers of job_finished raised for job %s", running.id):
            job_finished.send_robust(running.declaration, job=CurrentJob(running), state=state, error=error)
    if state is not None and running.declaration.on_end is not None:
        with logging_errors("the end of job %s could not be announced", running.id):
            running.declaration.on_end(running, state, error)


def report_successes(runs: Sequence[JobRun], on_announced: Callable[[], None] = lambda: None) -> None:
    """Log runs with a written success, in one write, and send ``job_finished`` for each.

    Calls ``on_announced`` after the receivers of each run.
    """
    ended_runs.count(events.JOB_SUCCEEDED, runs)
    if awaited.until:
        awaited.announce([running.id for running in runs], using=runs[0].leases.using)
    log_batch(logging.INFO, events.JOB_SUCCEEDED, runs, fields=_described)
    if conf.keep_succeeded:
        with logging_errors("the logs of %s jobs were not kept", len(runs)):
            runs[0].leases.keep_logs(runs)
    for running in runs:
        if running.declaration.on_end is not None or job_finished.receivers:
            announce(running, JobState.SUCCEEDED)
            on_announced()


def identify(job: ClaimedJob | Ended) -> dict[str, Any]:
    """Return the fields that every log record of a run has."""
    return {"task_name": job.task, "job_id": job.id, "store_id": job.store_id, "attempt": job.attempts + 1}


def report_given_back(jobs: Sequence[Ended], reason: str, *, level: int = logging.WARNING) -> None:
    """Log claimed jobs that this process gave back unstarted: queued again, or cancelled on request."""
    released = [job for job in jobs if job.state is JobState.QUEUED]
    log_batch(level, events.JOB_RELEASED, released, fields=lambda job: _unstarted(job, reason))
    for job in jobs:
        if job.state is JobState.CANCELLED:
            ended_runs.count_untimed(events.JOB_CANCELLED, job.task, job.queue)
            log_event(_severity(job), events.JOB_CANCELLED, **_unstarted(job, job.reason))


def _severity(cancelled: Ended) -> int:
    """Return the level of the record about a job that was cancelled on request, or superseded."""
    return logging.INFO if cancelled.reason == CANCELLED else logging.WARNING


def _unstarted(job: Ended, reason: str) -> dict[str, Any]:
    return {**identify(job), "queue": job.queue, "reason": reason}


def log_end(
    level: int, event: str, running: JobRun, *, exc_info: BaseException | None = None, **fields: object
) -> None:
    """Count and log the end of a run."""
    ended_runs.count(event, (running,))
    if running.trace is not None:
        running.trace.ended = event
    log_event(level, event, exc_info=exc_info, **_described(running), **fields)


def _described(running: JobRun) -> dict[str, Any]:
    fields = identify(running.job)
    fields["queue"] = running.job.queue
    fields["duration_ms"] = round(running.duration_s * 1000, 3)
    fields.update(running.log_fields)
    if running.trace is not None and running.trace.trace_id is not None:
        fields["trace_id"] = running.trace.trace_id
    return fields
