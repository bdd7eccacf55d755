"""OpenTelemetry tracing of jobs and messages, following its semantic conventions for messaging.

Each job and each message carries the context it was created in. Its processing has that context as its parent and, as
the conventions require, as a link too: enqueue and run are one trace, and so are emit, publish, consume and run. The
messages of exceptions and broker errors are not recorded, since they can quote a payload.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from salon_jobs.brokers.broker import trace_name
from salon_jobs.core.tracing import SYSTEM, Run, Sent, TracedMessage, trace_by

Attributes = dict[str, AttributeValue]


class OpenTelemetryTracer:
    """Tracer that uses the tracer provider and propagators configured in the process."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("salon_jobs")

    @contextmanager
    def sending(self, sent: Sent) -> Generator[None]:
        """Wrap an enqueue, which sends, or an emit, which creates messages that the relay sends later."""
        name, kind = ("emit", "create") if sent.emitted else ("enqueue", "send")
        # A span of an enqueue is named after the task, since all queues are one table.
        subject = sent.destination if sent.emitted else sent.name
        attributes = _operation(name, kind, sent.system, sent.destination)
        with self._span(f"{name} {subject}".strip(), SpanKind.PRODUCER, attributes) as span:
            try:
                yield
            finally:
                span.set_attributes(_sent(sent))

    @contextmanager
    def _span(self, name: str, kind: SpanKind, attributes: Attributes, links: Sequence[Link] = ()) -> Generator[Span]:
        """Wrap a block in a span with the class of its error, and not the text."""
        with self._tracer.start_as_current_span(
            name, kind=kind, attributes=attributes, links=links, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                _fail(span, type(error).__qualname__)
                raise

    def headers(self) -> Mapping[str, str]:
        """Return the headers that the process's propagators write."""
        headers: dict[str, str] = {}
        propagate.inject(headers)
        return headers

    @contextmanager
    def running(self, run: Run) -> Generator[None]:
        """Wrap one run."""
        parent, links = _origin(run.headers)
        attributes = (
            _operation("run", "process", SYSTEM, run.queue)
            | _store(run.store_id)
            | {
                "messaging.message.id": str(run.job_id),
                "messaging.message.body.size": run.body_size,
                "salon_jobs.task": run.task,
                "salon_jobs.attempt": run.attempt,
                "salon_jobs.waited_s": run.waited_s,
            }
        )
        token = contexts.attach(parent)
        try:
            with self._span(f"run {run.task}", SpanKind.CONSUMER, attributes, links) as span:
                run.trace_id = _trace_id(span)
                yield  # an error raised here is ours: the run's own are outcomes
                span.set_attribute("salon_jobs.ended", run.ended)
                if run.has_failed:
                    _fail(span, run.ended if run.error is None else type(run.error).__qualname__)
        finally:
            contexts.detach(token)

    @contextmanager
    def consuming(self, message: TracedMessage) -> Generator[Mapping[str, str]]:
        """Wrap the conversion of a message into a job."""
        parent, links = _origin(message.headers)
        attributes = _of_message("consume", "process", message) | {
            "messaging.consumer.group.name": message.consumer,
            "salon_jobs.deliveries": message.deliveries,
        }
        span = self._tracer.start_span(
            f"consume {message.destination}", parent, SpanKind.CONSUMER, links=links, attributes=attributes
        )
        headers: dict[str, str] = {}
        propagate.inject(headers, trace.set_span_in_context(span, parent))
        try:
            yield headers
        except BaseException as error:
            _fail(span, type(error).__qualname__)
            raise
        finally:
            span.end()

    def published(self, message: TracedMessage, *, began_ns: int, ended_ns: int, code: str) -> None:
        """Record one publish attempt of the relay; messages outside any trace are left out."""
        parent, links = _origin(message.headers)
        if not links:
            return
        attributes = _of_message("publish", "send", message)
        span = self._tracer.start_span(
            f"publish {message.destination}", parent, SpanKind.CLIENT, attributes, links, began_ns
        )
        if code:
            _fail(span, code)
        span.end(ended_ns)

    def trace_id(self) -> str | None:
        """Return the id of the current trace."""
        return _trace_id(trace.get_current_span())

    def flush(self) -> None:
        """Export the spans that the SDK's processors still hold; the bare API holds none."""
        provider: Any = trace.get_tracer_provider()
        if hasattr(provider, "force_flush"):
            provider.force_flush()


def install() -> None:
    """Trace jobs and messages."""
    trace_by(OpenTelemetryTracer())


def _operation(name: str, kind: str, system: str, destination: str) -> Attributes:
    named: Attributes = {"messaging.operation.name": name, "messaging.operation.type": kind}
    if system:
        named["messaging.system"] = trace_name(system)
    if destination:
        named["messaging.destination.name"] = destination
    return named


def _of_message(name: str, kind: str, message: TracedMessage) -> Attributes:
    return (
        _operation(name, kind, message.system, message.destination)
        | _store(message.store_id)
        | {
            "messaging.message.id": message.message_id,
            "messaging.message.body.size": message.body_size,
            "salon_jobs.event": message.event,
        }
    )


def _sent(sent: Sent) -> Attributes:
    found: Attributes = {"salon_jobs.event" if sent.emitted else "salon_jobs.task": sent.name} if sent.name else {}
    if sent.count != 1:
        return found | {"messaging.batch.message_count": sent.count}
    if sent.message_id:
        found["messaging.message.id"] = sent.message_id
    return found if sent.body_size is None else found | {"messaging.message.body.size": sent.body_size}


def _store(store_id: object) -> Attributes:
    return {} if store_id is None else {"salon_jobs.store_id": str(store_id)}


def _origin(headers: Mapping[str, str]) -> tuple[Context, list[Link]]:
    """Return the context in the headers, and a link to the span that created them; none without headers."""
    context = propagate.extract(headers, Context())
    created = trace.get_current_span(context).get_span_context()
    return context, [Link(created)] if created.is_valid else []


def _fail(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


def _trace_id(span: Span) -> str | None:
    found = span.get_span_context()
    return trace.format_trace_id(found.trace_id) if found.is_valid else None
