"""Sentry tracing of jobs and messages: ``queue.publish`` and ``queue.process`` spans in one trace.

Spans are created if the client has tracing enabled; otherwise the trace is still propagated, which connects errors.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import sentry_sdk
from sentry_sdk.tracing import Span, Transaction
from sentry_sdk.tracing_utils import has_tracing_enabled

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.tracing import SYSTEM, Published, Received, Run, Sent
from salon_jobs.integrations import sentry

_TRACE: Final = "sentry-trace"
_BAGGAGE: Final = "baggage"
_FAILED: Final = (events.JOB_EXPIRED, events.JOB_FAILED, events.JOB_RETRIED, events.JOB_LEASE_LOST, events.JOB_RELEASED)


class SentryTracer:
    """Tracer that uses the process's client; inactive without one."""

    def is_active(self) -> bool:
        """Return whether there is a client."""
        # init() binds its client to the global scope; searching all scopes would cost more.
        return sentry_sdk.get_global_scope().client.is_active()

    @contextmanager
    def sending(self, sent: Sent) -> Generator[None]:
        """Surround an enqueue, which publishes, or an emit, whose message a relay publishes."""
        if not _makes_spans():
            yield
            return
        operation = "queue.submit" if sent.emitted else "queue.publish"
        with sentry_sdk.start_span(op=operation, name=sent.name or sent.destination) as span:
            yield
            _describe(span, sent.system, sent.destination, message_id=sent.message_id, body_size=sent.body_size)
            if sent.count != 1:
                span.set_data("messaging.batch.message_count", sent.count)

    def headers(self) -> Mapping[str, str]:
        """Return the headers that continue the current trace."""
        return {_TRACE: sentry_sdk.get_traceparent() or "", _BAGGAGE: sentry_sdk.get_baggage() or ""}

    @contextmanager
    def running(self, run: Run) -> Generator[None]:
        """Give a run its own breadcrumbs, tags and transaction, since a thread runs jobs of one store after another."""
        monitors = sentry.begin(run) if conf.sentry_monitors else ()
        with sentry_sdk.isolation_scope() as scope:
            if _makes_spans():
                with _run_span(_continued(run.headers, "queue.task", run.task), run):
                    yield
            else:
                _belong(scope, run.headers)
                yield
        sentry.end(monitors, run)

    @contextmanager
    def consuming(self, message: Received) -> Generator[Mapping[str, str]]:
        """Surround the conversion of a message into a job."""
        if not _makes_spans():
            yield _carried(message.headers)
            return
        transaction, span = _started(message.headers, "queue.task", "queue.process", message.event)
        _describe(span, message.system, message.destination, message_id=message.message_id, body_size=message.body_size)
        span.set_data("messaging.message.retry.count", max(0, message.deliveries - 1))
        ended = "internal_error"
        try:
            yield {_TRACE: span.to_traceparent(), _BAGGAGE: transaction.get_baggage().serialize()}
            ended = "ok"
        finally:
            for each in (span, transaction):
                each.set_status(ended)
                each.finish()

    def published(self, message: Published) -> None:
        """Record one publish attempt of the relay; messages outside any trace are left out."""
        if _TRACE not in message.headers or not _makes_spans():
            return
        began, ended = message.began_ns / 1e9, message.ended_ns / 1e9
        transaction, span = _started(message.headers, "queue.relay", "queue.publish", message.event, at=began)
        _describe(span, message.system, message.destination, message_id=message.message_id, body_size=message.body_size)
        for each in (span, transaction):
            each.set_status("internal_error" if message.code else "ok")
            each.finish(end_timestamp=ended)

    def trace_id(self) -> str | None:
        """Return the id of the current trace, if it has a span."""
        span = sentry_sdk.get_current_span() if _makes_spans() else None
        return None if span is None else span.trace_id

    def flush(self) -> None:
        """Send what is buffered, events included."""
        sentry_sdk.flush()


tracer: Final = SentryTracer()


def _makes_spans() -> bool:
    return has_tracing_enabled(sentry_sdk.get_client().options)


def _belong(scope: sentry_sdk.Scope, headers: Mapping[str, str]) -> None:
    """Attach errors to the trace of the headers; takes 12 µs, where an unsent transaction takes 40."""
    if _TRACE in headers:
        # Baggage is needed for sampling only.
        scope.generate_propagation_context({_TRACE: headers[_TRACE]})
    else:
        scope.set_new_propagation_context()


def _continued(headers: Mapping[str, str], operation: str, name: str) -> Transaction:
    """Continue or begin a trace in the current isolation scope; returns the transaction, not started."""
    return sentry_sdk.continue_trace(_carried(headers), op=operation, name=name, source="task")


def _started(
    headers: Mapping[str, str], operation: str, span: str, name: str, *, at: float | None = None
) -> tuple[Transaction, Span]:
    """Start a transaction with one span outside the current scope: several are open at once."""
    with sentry_sdk.isolation_scope():
        transaction = _continued(headers, operation, name)
    if at is not None:
        transaction.start_timestamp = datetime.fromtimestamp(at, UTC)
    started: Any = sentry_sdk.start_transaction(transaction)
    return started, started.start_child(op=span, name=name, **({} if at is None else {"start_timestamp": at}))


def _carried(headers: Mapping[str, str]) -> dict[str, str]:
    """Return Sentry's own headers among those of a job or a message."""
    if _TRACE not in headers:
        return {}
    items = [item for item in headers.get(_BAGGAGE, "").split(",") if item.strip().startswith("sentry-")]
    return {_TRACE: headers[_TRACE], _BAGGAGE: ",".join(items)}


def _describe(span: Span, system: str, destination: str, *, message_id: str, body_size: int | None) -> None:
    data = {
        "messaging.system": system,
        "messaging.destination.name": destination,
        "messaging.message.id": message_id,
        "messaging.message.body.size": body_size,
    }
    for name, value in data.items():
        if value not in ("", None):
            span.set_data(name, value)


@contextmanager
def _run_span(transaction: Transaction, run: Run) -> Generator[None]:
    started: Any = sentry_sdk.start_transaction(transaction)
    with started, sentry_sdk.start_span(op="queue.process", name=run.task) as span:
        run.trace_id = run.trace_id or span.trace_id
        yield
        _end_run(span, run)


def _end_run(span: Span, run: Run) -> None:
    _describe(span, SYSTEM, run.queue, message_id=str(run.job_id), body_size=run.body_size)
    span.set_data("messaging.message.receive.latency", round(run.waited_s * 1000, 3))
    span.set_data("messaging.message.retry.count", run.attempt - 1)
    status = "internal_error" if run.ended in _FAILED else "ok"
    span.set_status(status)
    transaction = span.containing_transaction
    if transaction is not None:
        transaction.set_status(status)
        transaction.set_tag("store_id", "" if run.store_id is None else str(run.store_id))
        transaction.set_tag("job_ended", run.ended)
