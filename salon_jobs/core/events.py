"""Names of the log events, and the functions that log them. Payloads are never logged."""

from __future__ import annotations

import logging
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

from salon_jobs.core.error_report import shown_message, traceback_of
from salon_jobs.core.errors import Interrupted
from salon_jobs.core.text import LONGEST_MESSAGE, visible


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """Logger that never raises, whatever the host's handlers do: with a closed stderr, logging itself raises.

    ``lost`` counts the records that could not be written. An interrupt of a run passes.
    """

    lost = 0

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        try:
            super().log(level, msg, *args, **kwargs)
        except Interrupted:
            raise
        except BaseException:  # a handler may raise anything, even SystemExit
            self.lost += 1

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


logger: Final = SafeLogger(logging.getLogger("salon_jobs"))
# Classes of filters of ours that neither drop nor change the records that are written in a batch, and do not need them.
PASSING_FILTERS: Final = set[type[logging.Filter]]()

JOB_SUCCEEDED: Final = "job_succeeded"
JOB_RETRIED: Final = "job_retried"
JOB_FAILED: Final = "job_failed"
JOB_SNOOZED: Final = "job_snoozed"
JOB_CANCELLED: Final = "job_cancelled"
JOB_CANCEL_NOTICED: Final = "job_cancel_noticed"
JOB_EXPIRED: Final = "job_expired"
JOB_TIMED_OUT: Final = "job_timed_out"
JOB_RELEASED: Final = "job_released"
CHUNK_SPLIT: Final = "chunk_split"
JOB_LEASE_LOST: Final = "job_lease_lost"
JOB_OUTCOME_UNKNOWN: Final = "job_outcome_unknown"
JOB_RESCUED: Final = "job_rescued"
JOB_NOT_CLAIMED: Final = "job_not_claimed"
JOB_NOT_RESCUED: Final = "job_not_rescued"
JOB_HELD_UP: Final = "job_held_up"
RESCUE_HELD_UP: Final = "rescue_held_up"
JOB_CALLBACK_FAILED: Final = "job_callback_failed"
TASKS_UNKNOWN: Final = "tasks_unknown"
WORKER_STARTING: Final = "worker_starting"
WORKER_STOPPING: Final = "worker_stopping"
BURST_ENDED: Final = "burst_ended"
CONNECTIONS_SHORT: Final = "connections_short"
DATABASE_THREADS_BUSY: Final = "database_threads_busy"
PROCESS_STARTED: Final = "process_started"
PROCESS_DRAINING: Final = "process_draining"
PROCESS_STOPPING: Final = "process_stopping"
PROCESS_STOPPED: Final = "process_stopped"
PROCESS_RELOADING: Final = "process_reloading"
PROCESS_FAILED: Final = "process_failed"
THREAD_DIED: Final = "thread_died"
LOG_LOST: Final = "log_lost"
PROCESS_DEAD: Final = "process_dead"
PROCESS_REGISTERED_AGAIN: Final = "process_registered_again"
CHILD_DIED: Final = "child_died"
CHILD_KILLED: Final = "child_killed"
HEALTH_LISTENING: Final = "health_listening"
HEALTH_NOT_LISTENING: Final = "health_not_listening"
PROBLEMS_UNKNOWN: Final = "problems_unknown"
WAITING: Final = "waiting"
DATABASE_LOST: Final = "database_lost"
DATABASE_BACK: Final = "database_back"
STATEMENT_REFUSED: Final = "statement_refused"
CONNECTION_DISCARDED: Final = "connection_discarded"
LISTENER_LOST: Final = "listener_lost"
LISTENER_DEAF: Final = "listener_deaf"
MESSAGE_RETRIED: Final = "message_retried"
MESSAGE_FAILED: Final = "message_failed"
DESTINATIONS_LEFT_OUT: Final = "destinations_left_out"
MESSAGES_PASSED_OVER: Final = "messages_passed_over"
DESTINATION_LOST: Final = "destination_lost"
DESTINATION_BACK: Final = "destination_back"
DESTINATION_UNRESOLVABLE: Final = "destination_unresolvable"
MESSAGES_UNRESOLVABLE: Final = "messages_unresolvable"
PUBLISHER_BROKEN: Final = "publisher_broken"
TOPICS_READ: Final = "topics_read"
TOPICS_NOT_READ: Final = "topics_not_read"
PARTITIONS_OWNED: Final = "partitions_owned"
PARTITIONS_LOST: Final = "partitions_lost"
RELAYED: Final = "relayed"
RELAY_UNMARKED: Final = "relay_unmarked"
CRON_FIRED: Final = "cron_fired"
CRON_SKIPPED: Final = "cron_skipped"
CRON_MISSED: Final = "cron_missed"
CRON_FAILED: Final = "cron_failed"
CRON_HELD_UP: Final = "cron_held_up"
SCHEDULES_FIRED: Final = "schedules_fired"
SCHEDULES_MISSED: Final = "schedules_missed"
SCHEDULES_HELD_UP: Final = "schedules_held_up"
SCHEDULE_FAILED: Final = "schedule_failed"
ROLE_NOTICED: Final = "role_noticed"
CATALOGUE_DRIFT: Final = "catalogue_drift"
REQUEST_REFUSED: Final = "request_refused"
QUEUE_LAG: Final = "queue_lag"
MESSAGES_TAKEN: Final = "messages_taken"
MESSAGE_REJECTED: Final = "message_rejected"
MESSAGES_RETRIED: Final = "messages_retried"
SOURCE_LOST: Final = "source_lost"
SOURCE_BACK: Final = "source_back"
CONSUMER_FAILED: Final = "consumer_failed"
PRUNED: Final = "pruned"
STORE_MIGRATED: Final = "store_migrated"
STORE_BACKFILLED: Final = "store_backfilled"
STORE_ERASED: Final = "store_erased"


# Failures that an observer reports with more detail than the log record (``tracing.report_failure``).
REPORTED_OTHERWISE: Final = frozenset({JOB_FAILED, MESSAGE_FAILED, MESSAGE_REJECTED})
# Warnings that need no action: each concerns one job, message or request, follows from another event, or addresses the
# developer who reads the log.
ROUTINE: Final = frozenset(
    {
        JOB_RETRIED,
        JOB_CANCELLED,
        JOB_EXPIRED,
        JOB_TIMED_OUT,
        JOB_RELEASED,
        JOB_LEASE_LOST,
        JOB_HELD_UP,
        JOB_RESCUED,
        CHUNK_SPLIT,
        CRON_HELD_UP,
        SCHEDULES_HELD_UP,
        MESSAGE_RETRIED,
        CHILD_KILLED,
        PROCESS_DEAD,
        PROCESS_FAILED,
        HEALTH_NOT_LISTENING,
        REQUEST_REFUSED,
        STORE_ERASED,
    }
)
_OF_ERRORS: Final = ("error", "detail", "reason")


def log_event(level: int, event: str, /, *, exc_info: BaseException | None = None, **fields: Any) -> None:
    """Log ``event`` with its fields, which plain formatters show too. Never raises, even if ``exc_info`` does.

    The texts of errors, and the traceback, are bounded and without secrets here, for any handler.
    """
    if not logger.isEnabledFor(level):
        return
    try:
        for name, value in fields.items():
            if isinstance(value, str) and (name in _OF_ERRORS or len(value) > LONGEST_MESSAGE):
                fields[name] = shown_message(value)
        text = visible(" ".join(f"{name}={value}" for name, value in fields.items() if value is not None))
        extra = {"event": event, "event_fields": fields}
        if exc_info is None:
            logger.logger.log(level, "%s %s", event, text, extra=extra)
            return
        raised = (type(exc_info), exc_info, exc_info.__traceback__)
        record = logger.logger.makeRecord(logger.name, level, __file__, 0, "%s %s", (event, text), raised, extra=extra)
        record.exc_text = traceback_of(exc_info)
        logger.logger.handle(record)
    except Interrupted:
        raise
    except BaseException as fault:  # formatting a job's exception may raise anything, even SystemExit
        logger.error("%s could not be logged in full: %s", event, type(fault).__name__)  # noqa: TRY400 - it would raise again


@contextmanager
def logging_errors(what: str, *args: object) -> Generator[None]:
    """Log any error of the block as an error of ``what``, such as a receiver: foreign code affects nothing else.

    An interrupt of the run passes.
    """
    try:
        yield
    except Interrupted:
        raise
    except BaseException:  # even SystemExit
        logger.exception(what, *args)
