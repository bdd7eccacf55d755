"""Sends what needs a person to Sentry: each final failure of a job is one event, and so is each message that waits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import sentry_sdk
from sentry_sdk.integrations.logging import ignore_logger

from salon_jobs.conf import settings as conf
from salon_jobs.core.log_events import logger
from salon_jobs.core.redaction import redacted, redacted_text
from salon_jobs.core.telemetry import FinalFailure, MessageFailure, observe_failures
from salon_jobs.core.tracing import trace_by
from salon_jobs.integrations.sentry_spans import tracer

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint


def install() -> None:
    """Observe failures and follow jobs and messages. Our own log records are kept from becoming second events."""
    ignore_logger(logger.name)
    observe_failures(capture)
    trace_by(tracer)


def capture(failure: FinalFailure | MessageFailure) -> None:
    """Capture one failure as one event. Without a client nothing is sent."""
    if isinstance(failure, MessageFailure):
        _capture_message(failure)
    else:
        _capture_job(failure)


def _capture_job(failure: FinalFailure) -> None:
    """Send the payload along only when SENTRY_PAYLOAD is set, and rid of what REDACT names.

    So it is with the frames' local variables, since a handler's arguments are the payload; those of our own frames,
    which hold it as text, never go along.
    """
    with sentry_sdk.new_scope() as scope:
        scope.set_tags(
            {
                "task_name": failure.task,
                "store_id": "" if failure.store_id is None else str(failure.store_id),
                "attempt": failure.attempt,
                "job_id": failure.job_id,
            }
        )
        scope.set_transaction_name(failure.task)
        if conf.sentry_payload and failure.payload is not None:
            shown = json.dumps(redacted_text(failure.payload, conf.redact), ensure_ascii=False)
            scope.set_context("job", {"payload": shown})
        scope.add_event_processor(_rid_of_secrets)
        scope.capture_exception(failure.error)


def _capture_message(failure: MessageFailure) -> None:
    """Send where the message goes or comes from, and the code; nothing that a broker or a message says."""
    what = "message_set_aside" if failure.consumer else "message_failed"
    with sentry_sdk.new_scope() as scope:
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


def _rid_of_secrets(event: Event, _hint: Hint) -> Event:
    exceptions: Any = event.get("exception", {}).get("values", [])
    for exception in exceptions:
        stacktrace: Any = exception.get("stacktrace")
        for frame in stacktrace["frames"] if stacktrace else ():
            told = frame.pop("vars", None)
            if told and conf.sentry_payload and not str(frame.get("module")).startswith("salon_jobs."):
                frame["vars"] = redacted(told, conf.redact)
    return event
