"""Names of the log events, and their format as JSON lines. Payloads are never logged."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO, TypeVar
from uuid import UUID

from salon_jobs.core.error_report import shown_message, storable, traceback_of
from salon_jobs.core.errors import Interrupted
from salon_jobs.core.extensions import E, Extension
from salon_jobs.core.records import ClaimedJob
from salon_jobs.core.redaction import without_secrets
from salon_jobs.core.text import LONGEST_MESSAGE, bounded, visible, visible_json, visible_lines

if TYPE_CHECKING:
    from msgspec.json import Encoder

R = TypeVar("R")


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """Logger that never raises, whatever the handlers of the host do: with a closed stderr, logging itself raises.

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


class LoggedLines(Extension):
    """The last lines that one run logged, in up to 64 KiB of text."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._size = 0

    def add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line) + 1
        while self._size > LONGEST_RECORD:
            self._size -= len(self._lines.popleft()) + 1

    @property
    def text(self) -> str:
        """The lines as they may be shown: without secrets, and without what PostgreSQL cannot hold."""
        return storable(visible_lines(without_secrets("\n".join(self._lines))))[-LONGEST_RECORD:]


class LoggedRun(Protocol):
    """The run that log records belong to."""

    @property
    def job(self) -> ClaimedJob: ...
    def extension(self, kind: type[E], /) -> E | None: ...
    def attach(self, extension: E, /) -> E: ...


# Set while a job runs; None outside.
current_run: ContextVar[LoggedRun | None] = ContextVar("salon_jobs_current_run", default=None)

# Bound to every record of a run, in addition to the record's own fields.
BOUND: Final = ("task_name", "job_id", "store_id", "attempt", "trace_id")
# The longest line of a record, in bytes. Longer ones, such as one that a handler logs, lose the middles of their texts,
# first of the longest, so that the event and the job stay readable.
LONGEST_RECORD: Final = 1 << 16
_OF_ERRORS: Final = ("error", "detail", "reason")


def _writes(handler: logging.Handler) -> bool:
    return not isinstance(handler, logging.NullHandler)


class JobLog(logging.Handler):
    """Handler that keeps the last lines that each run logs, and ignores what is logged outside of any."""

    def listen(self) -> None:
        """Handle each record once: at the root, or at the logger that passes it to its own handlers alone.

        One that does not propagate and has no handler is silent on purpose.
        """
        if not logging.root.handlers and logging.lastResort is not None:
            logging.root.addHandler(logging.lastResort)  # which Python asks only where there is no other handler
        loggers = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
        heard = [each for each in loggers if not each.propagate and any(map(_writes, each.handlers))]
        for each in (logging.root, *heard):
            each.addHandler(self)

    def filter(self, record: logging.LogRecord) -> bool:
        return current_run.get() is not None

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # what is logged may raise anything when it is formatted
            if (run := current_run.get()) is not None:
                lines = run.extension(LoggedLines) or run.attach(LoggedLines())
                at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
                lines.add(f"{at} {record.levelname} {record.name}: {bounded(record.getMessage())}")
                if record.exc_info and record.exc_info[1] is not None:
                    lines.add(traceback_of(record.exc_info[1]))


def log_event(level: int, event: str, /, *, exc_info: BaseException | None = None, **fields: Any) -> None:
    """Log ``event`` with its fields, which plain formatters show too. Never raises, whatever ``exc_info`` does.

    The texts of errors, and the traceback, are bounded and without secrets here, for whatever handler there is.
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
    """Log whatever the block raises as an error of ``what``, such as a receiver: foreign code affects nothing else.

    An interrupt of the run passes.
    """
    try:
        yield
    except Interrupted:
        raise
    except BaseException:  # even SystemExit
        logger.exception(what, *args)


def log_batch(level: int, event: str, records: Iterable[R], *, fields: Callable[[R], dict[str, Any]]) -> None:
    """Log ``event`` once for each of ``records``, in a single write where our own handler is the only listener.

    ``fields`` returns the fields of a record.
    """
    if not logger.isEnabledFor(level):
        return
    handlers = [each for each in logging.getLogger().handlers if not isinstance(each, JobLog)]
    own = logger.logger
    writer = handlers[0] if len(handlers) == 1 and own.propagate and not own.handlers else None
    if isinstance(writer, JsonLinesHandler) and level >= writer.level:
        writer.write_batch(level, event, list(records), fields=fields)
        return
    for record in records:
        log_event(level, event, **fields(record))


class LinesHandler(logging.StreamHandler[TextIO]):
    """Handler of a stream that may be closed or full: it counts what it cannot write, and raises nothing."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class names it
        logger.lost += 1
        with suppress(Exception):  # standard error may be closed as well
            super().handleError(record)


class JsonLinesHandler(LinesHandler):
    """Handler that writes each record as one JSON line, and a batch of records in one write."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.setFormatter(JsonFormatter())

    def write_batch(
        self, level: int, event: str, records: Sequence[R], *, fields: Callable[[R], dict[str, Any]]
    ) -> None:
        """Write one line for each of ``records``, in the formatter's format, with one timestamp and in one write.

        Like ``emit``, it reports errors on standard error and raises none.
        """
        try:
            head = {**JsonFormatter.head(time.time(), level, logger.name), "event": event}
            try:
                text = _as_text(_encoder().encode_lines([_of_store(head | fields(record)) for record in records]))
            except ValueError:
                text = "".join(f"{_json_line(_of_store(head | fields(record)))}\n" for record in records)
            if records:
                with self.lock or nullcontext():
                    self.stream.write(text)
                    self.flush()
        except Exception:  # a logging error must not reach the caller
            self.handleError(logging.LogRecord(logger.name, level, "", 0, event, None, None))


class JsonFormatter(logging.Formatter):
    """Formatter for JSON lines: time (UTC), level, logger, event or message, fields, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = self.head(record.created, record.levelno, record.name)
        bound = record.__dict__
        line.update((name, bound[name]) for name in BOUND if name in bound)
        event = getattr(record, "event", None)
        if event is None:
            line["message"] = bounded(record.getMessage(), LONGEST_RECORD)
        else:
            line["event"] = event
            line.update(getattr(record, "event_fields", {}))
        if record.exc_info:
            of_ours = event is not None and record.exc_text
            line["traceback"] = of_ours or self.formatException(record.exc_info)
        return _json_line(_of_store(line))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the base class names it
        return "" if ei[1] is None else traceback_of(ei[1], ei[2])

    @staticmethod
    def head(created: float, level: int, name: str) -> dict[str, Any]:
        """Return the fields that begin every line."""
        return {
            "time": datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds"),
            "level": logging.getLevelName(level).lower(),
            "logger": name,
        }


def _of_store(line: dict[str, Any]) -> dict[str, Any]:
    """Leave out the store of a line that has none: many projects have none at all."""
    if "store_id" in line and line["store_id"] is None:
        del line["store_id"]
    return line


@cache
def _encoder() -> Encoder:
    from msgspec.json import Encoder  # noqa: PLC0415 - takes longer to load than this module; most processes log no line

    return Encoder(enc_hook=str)


def _json_line(line: dict[str, Any]) -> str:
    text = _as_json(line)
    # A character takes up to four bytes; only a long line is measured.
    if len(text) <= LONGEST_RECORD // 4 or len(text.encode()) <= LONGEST_RECORD:
        return text
    for most in (10_000, 3_000, 1_000, 100):
        shortened = {bounded(name, most): _shortened(value, most) for name, value in line.items()}
        if len((text := _as_json(shortened)).encode()) <= LONGEST_RECORD:
            return text
    return _as_json({name: shortened[name] for name in _KEPT if name in shortened})


_KEPT: Final = ("time", "level", "logger", *BOUND, "event", "message", "code", "error_class", "error")


def _shortened(value: Any, most: int) -> Any:
    if value is None or isinstance(value, float | UUID) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    return bounded(value if isinstance(value, str) else _as_json(value), most)


def _as_json(line: Any) -> str:
    try:
        return _as_text(_encoder().encode(line))
    except ValueError:
        # A lone surrogate (from undecodable bytes) would break the stream that the line is written to.
        return visible_json(json.dumps(line, default=str, ensure_ascii=False))


def _as_text(lines: bytes) -> str:
    # Nearly all lines are plain ASCII, which takes no time to see.
    return lines.decode() if lines.isascii() and b"\x7f" not in lines else visible_json(lines.decode())
