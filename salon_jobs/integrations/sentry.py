"""Sentry: events for final failures and log records, and check-ins of cron monitors.

Traces are OpenTelemetry's. Sentry receives them through its own OpenTelemetry integration, which then also connects our
events to them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID, uuid5

import sentry_sdk
from django.utils.text import slugify
from sentry_sdk.crons import capture_checkin
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.scope import use_isolation_scope
from sentry_sdk.utils import capture_internal_exceptions

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.error_report import shown_message
from salon_jobs.core.events import PASSING_FILTERS, REPORTED_OTHERWISE, ROUTINE, logger
from salon_jobs.core.redaction import without_secrets
from salon_jobs.core.tracing import FinalFailure, MessageFailure, Run, report_by
from salon_jobs.schedules.entries import CronEntry, entries_of_tick

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint, MonitorConfig


def install() -> None:
    """Report failures and log records. Idempotent."""
    # The SDK would send every record (job_failed twice), and keep the rest as breadcrumbs in events of other stores.
    ignore_logger(logger.name)
    logger.logger.addFilter(record_reporter)
    report_by(SentryReporter())


class SentryReporter:
    """Reporter that uses the process's client; inactive without one."""

    def is_active(self) -> bool:
        """Return whether there is a client."""
        # init() binds its client to the global scope; a search of all scopes would take longer.
        return sentry_sdk.get_global_scope().client.is_active()

    @contextmanager
    def running(self, run: Run) -> Generator[None]:
        """Give a run its own breadcrumbs, tags and trace, since a thread runs jobs of one store after another."""
        # The entries of this job's tick. Its check-in lasts from its first run until it has ended for good.
        entries = [] if run.tick is None or not conf.sentry_monitors else entries_of_tick(run.task, run.tick)
        for entry in entries if run.attempt == 1 else ():
            _check_in(entry, run, "in_progress")
        with sentry_sdk.isolation_scope() as scope:
            scope.set_tags(_tags(run))
            scope.set_new_propagation_context()
            run.reported = reported = _Reported()
            scope.add_event_processor(reported)
            yield
        if run.ended in _OK or run.ended in _ERROR:
            for entry in entries:
                _check_in(entry, run, "ok" if run.ended in _OK else "error")

    def report(self, failure: FinalFailure | MessageFailure) -> None:
        """Capture one failure as one event. Without a client nothing is sent."""
        with sentry_sdk.new_scope() as scope:
            if isinstance(failure, MessageFailure):
                # The destination or source and the error code, never the text of a broker or a message.
                what = "message_rejected" if failure.consumer else "message_failed"
                scope.set_tags(
                    {
                        "message_id": failure.message_id,
                        "destination": failure.destination,
                        "message_event": failure.event,
                        "consumer": failure.consumer,
                        "store_id": "" if failure.store_id is None else str(failure.store_id),
                        "code": failure.code,
                        "attempt": failure.attempt,
                    }
                )
                scope.fingerprint = [what, failure.destination, failure.event, failure.code]
                scope.capture_message(f"{what}: {failure.code} ({failure.event})", "error")
            elif not failure.reported:  # otherwise its run's event has the tags
                # Neither the payload nor the local variables of frames, since a handler's arguments are the payload.
                # The text of the error comes from the error row.
                scope.set_tags(_tags(failure))
                scope.set_transaction_name(failure.task)
                scope.add_event_processor(_without_secrets)
                scope.capture_exception(failure.error)

    def flush(self) -> None:
        """Send the buffered events."""
        sentry_sdk.flush()


def _tags(job: FinalFailure | Run) -> dict[str, str | int]:
    return {
        "task_name": job.task,
        "store_id": "" if job.store_id is None else str(job.store_id),
        "attempt": job.attempt,
        "job_id": job.job_id,
    }


class _Reported:
    """The errors that a run itself has sent as events: a container, and the processor of the run's events.

    Only the last few are kept, since a handler may report each of many thousands that it survives. The SDK has only the
    id of the last event sent, so the result of each is looked up before the next one.
    """

    def __init__(self) -> None:
        self._sent: deque[BaseException] = deque(maxlen=_MOST_REPORTED)
        self._last: tuple[sentry_sdk.Scope, str, BaseException] | None = None

    def __contains__(self, error: object) -> bool:
        self._look_up()
        return any(error is each for each in self._sent)

    def __call__(self, event: Event, hint: Hint) -> Event:
        self._look_up()
        _, error, _ = hint.get("exc_info") or (None, None, None)
        if error is not None:
            self._last = sentry_sdk.get_isolation_scope(), event.get("event_id", ""), error
        return event

    def _look_up(self) -> None:
        last, self._last = self._last, None
        if last is None:
            return
        scope, event_id, error = last
        with use_isolation_scope(scope):
            if sentry_sdk.last_event_id() == event_id:
                self._sent.append(error)


_MOST_REPORTED: Final = 10


def _without_secrets(event: Event, _hint: Hint) -> Event:
    exceptions: Any = event.get("exception", {}).get("values", [])
    for exception in exceptions:
        exception["value"] = shown_message(str(exception.get("value") or ""))
        stacktrace: Any = exception.get("stacktrace")
        for frame in stacktrace["frames"] if stacktrace else ():
            for name in ("pre_context", "context_line", "post_context"):
                if lines := frame.get(name):
                    frame[name] = _shown_code(lines)
            frame.pop("vars", None)
    return event


def _shown_code(lines: Any) -> Any:
    if isinstance(lines, str):
        return without_secrets(lines, code=True)
    return [_shown_code(line) for line in lines]


_OVER_S: Final = 300.0
# Events logged repeatedly while a problem lasts, and the fields that distinguish problems.
_LASTING: Final[dict[str, tuple[str, ...]]] = {
    events.CONNECTION_DISCARDED: ("database",),
    events.DATABASE_LOST: (),
    events.DESTINATIONS_LEFT_OUT: (),
    events.JOB_NOT_RESCUED: ("job_id",),
    events.LISTENER_LOST: (),
    events.MESSAGES_UNRESOLVABLE: ("aggregate_type", "code"),
    events.PUBLISHER_BROKEN: ("aggregate_type",),
    events.SOURCE_LOST: ("consumer",),
    events.STATEMENT_REFUSED: ("loop",),
    events.TOPICS_NOT_READ: (),
}
# A connection that broke and reconnects at once is not a problem yet.
_FROM_SECOND: Final = frozenset({events.DATABASE_LOST, events.LISTENER_LOST})
_ENDS: Final = {
    events.DATABASE_BACK: events.DATABASE_LOST,
    events.DESTINATION_BACK: events.PUBLISHER_BROKEN,
    events.SOURCE_BACK: events.SOURCE_LOST,
}
_TAGS: Final = (
    "task_name",
    "job_id",
    "store_id",
    "attempt",
    "code",
    "entry",
    "aggregate_type",
    "consumer",
    "loop",
    "kind",
)
_LEVELS: Final[dict[int, Literal["warning", "error", "fatal"]]] = {
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "fatal",
}


class RecordReporter(logging.Filter):
    """Logging filter that lets every record pass and reports those that need a person to Sentry.

    A lasting problem is reported once per process, until it is over or has not been logged for five minutes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        # How often each problem was logged, and when last.
        self._troubles: dict[tuple[object, ...], tuple[int, float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Report the record if necessary; always return True."""
        event: str | None = getattr(record, "event", None)
        if event in _ENDS:
            with self._lock:
                self._troubles.pop(_trouble(_ENDS[event], record), None)
        elif record.levelno >= logging.WARNING and sentry_sdk.get_client().is_active():
            with capture_internal_exceptions():
                if self._is_wanted(event, record):
                    _capture_record(event, record)
        return True

    def _is_wanted(self, event: str | None, record: logging.LogRecord) -> bool:
        if event in REPORTED_OTHERWISE or event in ROUTINE:
            return False
        if conf.sentry_level is None or record.levelno < logging.getLevelNamesMapping()[conf.sentry_level]:
            return False
        if event not in _LASTING:
            return True
        now = self._clock()
        trouble = _trouble(event, record)
        with self._lock:
            self._troubles = {key: known for key, known in self._troubles.items() if now - known[1] < _OVER_S}
            count = self._troubles.get(trouble, (0, now))[0] + 1
            self._troubles[trouble] = count, now
        return count == (2 if event in _FROM_SECOND else 1)


PASSING_FILTERS.add(RecordReporter)
record_reporter: Final = RecordReporter()


def _trouble(event: str, record: logging.LogRecord) -> tuple[object, ...]:
    fields: dict[str, Any] = getattr(record, "event_fields", {})
    return (event, *(fields.get(name) for name in _LASTING[event]))


def _capture_record(event: str | None, record: logging.LogRecord) -> None:
    """Send the record; our records hold no payload."""
    given: dict[str, Any] = getattr(record, "event_fields", {})
    fields = {name: str(value) for name, value in given.items() if value not in (None, "")}
    with sentry_sdk.new_scope() as scope:
        scope.fingerprint = [event or str(record.msg)]
        scope.set_level(_LEVELS[record.levelno])
        scope.set_tags({"log_event": event or "", **{name: fields[name] for name in _TAGS if name in fields}})
        scope.set_context("log", {"message": record.getMessage(), **fields})
        scope.add_event_processor(_without_secrets)
        if record.exc_info and record.exc_info[1] is not None:
            scope.capture_exception(record.exc_info[1])
        else:
            scope.capture_message(record.getMessage(), _LEVELS[record.levelno])


_CHECK_INS: Final = UUID("9a4d2c0e-6f5b-4f0c-9d47-1f2f6f5a7c11")
_LONGEST_SLUG: Final = 50
_MARGIN_MINUTES: Final = 5
# Final ends of a job; after any other outcome it runs again, and its check-in stays open.
_OK: Final = (events.JOB_SUCCEEDED,)
_ERROR: Final = (events.JOB_FAILED, events.JOB_CANCELLED, events.JOB_EXPIRED, events.JOB_OUTCOME_UNKNOWN)


def _check_in(entry: CronEntry, run: Run, status: str) -> None:
    # Derived from the tick and the job, so that the process of the next attempt finds it again.
    name = uuid5(_CHECK_INS, f"{entry.name}/{run.tick}/{run.job_id}").hex
    config: MonitorConfig = {
        "schedule": {"type": "crontab", "value": entry.expression.line},
        "timezone": entry.expression.timezone,
        "checkin_margin": _MARGIN_MINUTES,
    }
    capture_checkin(slug_of(entry.name), name, status, monitor_config=config)


def slug_of(name: str) -> str:
    """Return Sentry's slug of the entry's monitor: its name, made unique where a slug cannot hold all of it."""
    slug = slugify(name)
    if name.isascii() and 0 < len(slug) <= _LONGEST_SLUG:
        return slug
    mark = uuid5(_CHECK_INS, name).hex[:8]
    return f"{slug[: _LONGEST_SLUG - len(mark) - 1]}-{mark}".strip("-")
