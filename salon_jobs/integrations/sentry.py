"""Sends each final failure to Sentry: one event, with task, store, attempt and job id as tags."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import sentry_sdk
from sentry_sdk.integrations.logging import ignore_logger

from salon_jobs.conf import settings as conf
from salon_jobs.core.log_events import logger
from salon_jobs.core.telemetry import FinalFailure, carry_by, observe_failures, surround_runs

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint


def install() -> None:
    """Observe final failures, and keep runs apart. Our own log records are kept from becoming second events."""
    ignore_logger(logger.name)
    observe_failures(capture)
    surround_runs(isolate)
    carry_by(trace_headers)


def isolate() -> AbstractContextManager[object] | None:
    """Give a run breadcrumbs and tags of its own: a thread runs one store's job after another's."""
    # init() binds its client to the global scope; to look through all scopes would cost more.
    return sentry_sdk.isolation_scope() if sentry_sdk.get_global_scope().client.is_active() else None


def trace_headers() -> dict[str, str]:
    """Return what continues the current trace elsewhere; nothing without a client."""
    if not sentry_sdk.get_global_scope().client.is_active():
        return {}
    return {"sentry-trace": sentry_sdk.get_traceparent() or "", "baggage": sentry_sdk.get_baggage() or ""}


def capture(failure: FinalFailure) -> None:
    """Capture one final failure; the payload goes along only when SENTRY_PAYLOAD is set. No client: nothing is sent.

    Without it the frames lose their local variables as well, since a handler's arguments are the payload.
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
        if conf.sentry_payload:
            scope.set_context("job", {"payload": failure.payload})
        else:
            scope.add_event_processor(_without_local_variables)
        scope.capture_exception(failure.error)


def _without_local_variables(event: Event, _hint: Hint) -> Event:
    exceptions: Any = event.get("exception", {}).get("values", [])
    for exception in exceptions:
        stacktrace: Any = exception.get("stacktrace")
        if stacktrace:
            for frame in stacktrace["frames"]:
                frame.pop("vars", None)
    return event
