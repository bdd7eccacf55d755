"""Shows the spans of jobs and messages, by an exporter into memory, with the SDK as a project would set it up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from salon_jobs import emit, emit_many, fan_out, tenant_context
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import Verdict
from salon_jobs.core import tracing
from salon_jobs.core.errors import EnqueueRefused, OutcomeUnknown
from salon_jobs.core.events import JOB_OUTCOME_UNKNOWN
from salon_jobs.integrations import opentelemetry
from salon_jobs.outbox import Draft
from tests import tasks
from tests.inside import trace_with
from tests.outbox.scene import ORDERS, answer_with, relay_in_burst
from tests.outbox.whole_way import relay_and_consume, run_all

SECRET = "a-customers-name"
_exporter = InMemorySpanExporter()
pytestmark = pytest.mark.usefixtures("hooks")


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    """Set the process's provider, which can be set once; after the module it exports what nobody reads."""
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(_exporter))
    trace.set_tracer_provider(made)


@pytest.fixture(autouse=True)
def tracing_is_on(outbox: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trace as with ``TRACING``."""
    trace_with(monkeypatch, None)
    opentelemetry.install()
    _exporter.clear()
    yield
    _exporter.clear()


class Spans:
    """Finds what was exported."""

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in _exporter.get_finished_spans() if span.name == name]

    def __getitem__(self, name: str) -> ReadableSpan:
        [span] = self.all(name)
        return span

    @property
    def names(self) -> list[str]:
        return sorted(span.name for span in _exporter.get_finished_spans())


@pytest.fixture
def spans() -> Spans:
    return Spans()


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def context_of(span: ReadableSpan) -> SpanContext:
    context: SpanContext | None = span.context
    assert context is not None
    return context


def id_of(span: ReadableSpan) -> int:
    return context_of(span).span_id


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def one_trace(*spans: ReadableSpan) -> bool:
    return len({context_of(span).trace_id for span in spans}) == 1


def request() -> Any:
    return trace.get_tracer("host").start_as_current_span("request")


def run_of(task: str) -> tracing.Run:
    nothing: dict[str, Any] = {"store_id": None, "headers": {}, "tick": None, "waited_s": 0.0, "body_size": 0}
    return tracing.Run(task=task, job_id=1, queue="q", attempt=1, **nothing)


def test_enqueue_and_run_are_one_trace(stores: list[UUID], spans: Spans) -> None:
    with request():
        handle = tasks.in_store.using(queue="tills").enqueue(store_id=stores[0], number=7)
    run_all()
    asked, enqueue, run = spans["request"], spans["enqueue test-store"], spans["run test-store"]
    assert one_trace(asked, enqueue, run)
    assert (parent_of(enqueue), parent_of(run), linked(run)) == (id_of(asked), id_of(enqueue), [id_of(enqueue)])
    assert (enqueue.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    both = {
        "messaging.system": "salon_jobs",
        "messaging.destination.name": "tills",
        "salon_jobs.task": "test-store",
        "messaging.message.id": str(handle.id),
        "messaging.message.body.size": len('{"number":7}'),
    }
    assert attributes(enqueue) == both | {"messaging.operation.name": "enqueue", "messaging.operation.type": "send"}
    found = attributes(run)
    assert 0 <= found.pop("salon_jobs.waited_s") < 60
    assert found == both | {
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "salon_jobs.attempt": 1,
        "salon_jobs.store_id": str(stores[0]),
        "salon_jobs.ended": "job_succeeded",
        "messaging.message.body.size": len('{"number": 7}'),
    }


def test_way_of_a_message_is_one_trace(stores: list[UUID], spans: Spans) -> None:
    with request(), tenant_context(stores[0]):
        message_id = emit(ORDERS, aggregate_id="1", event="order.created", payload={"number": 7})
    relay_and_consume()
    run_all()
    names = ("emit orders", "publish orders", "consume orders", "run test-store")
    asked = spans["request"]
    found = [spans[name] for name in names]
    emitted, published, consumed, _ = found
    assert spans.names == sorted(["request", *names])
    assert one_trace(asked, *found)
    assert [parent_of(each) for each in found] == [id_of(each) for each in (asked, emitted, emitted, consumed)]
    assert [linked(each) for each in found[1:]] == [[id_of(each)] for each in (emitted, emitted, consumed)]
    kinds = [SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER, SpanKind.CONSUMER]
    assert [each.kind for each in found] == kinds
    operations = [attributes(each)["messaging.operation.type"] for each in found]
    assert operations == ["create", "send", "process", "process"]
    expected = {"message.id": str(message_id), "system": "memory", "destination.name": "orders"}
    for each in (emitted, published, consumed):
        assert {name: attributes(each)[f"messaging.{name}"] for name in expected} == expected
    assert attributes(consumed)["messaging.consumer.group.name"] == "billing"
    assert (emitted.end_time or 0) <= (published.start_time or 0) <= (published.end_time or 0)


def test_task_as_destination_continues_the_trace(stores: list[UUID], spans: Spans) -> None:
    with request(), tenant_context(stores[0]):
        emit("rn::jobs:::test-store", event="order.created", payload={"number": 7})
    assert relay_in_burst()
    run_all()
    consumed, run = spans["consume test-store"], spans["run test-store"]
    assert one_trace(spans["request"], spans["emit test-store"], consumed, run)
    assert parent_of(run) == id_of(consumed)


def test_each_attempt_is_a_span(spans: Spans) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError(SECRET)

    tasks.hooks.system = fail
    tasks.system.using(max_attempts=2).enqueue(note=SECRET)
    run_all(attempts=2)
    first, second = spans.all("run test-system")
    assert one_trace(spans["enqueue test-system"], first, second)
    assert [attributes(each)["salon_jobs.ended"] for each in (first, second)] == ["job_retried", "job_failed"]
    for number, each in enumerate((first, second), 1):
        assert each.status.status_code is StatusCode.ERROR
        assert (attributes(each)["error.type"], attributes(each)["salon_jobs.attempt"]) == ("RuntimeError", number)
    with pytest.raises(OSError, match=SECRET), tracing.observing(run_of("unsettled")):
        raise OSError(SECRET)
    assert attributes(spans["run unsettled"])["error.type"] == "OSError"
    assert SECRET not in "".join(span.to_json() for span in _exporter.get_finished_spans())


def test_unknown_outcome_is_an_error(spans: Spans) -> None:
    run = run_of("promoted")
    with tracing.observing(run):
        run.ended, run.error = JOB_OUTCOME_UNKNOWN, OutcomeUnknown()
    span = spans["run promoted"]
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["salon_jobs.ended"] == "job_outcome_unknown"
    assert attributes(span)["error.type"] == "OutcomeUnknown"


def test_refused_enqueue_is_an_error(stores: list[UUID], settings: Any, spans: Spans) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "DATABASE": "web"}
    with pytest.raises(EnqueueRefused), tenant_context(stores[0]):
        tasks.in_store.enqueue(store_id=stores[1])
    connections["web"].close()
    enqueue = spans["enqueue test-store"]
    assert enqueue.status.status_code is StatusCode.ERROR
    assert attributes(enqueue)["error.type"] == "EnqueueRefused"


def test_work_of_a_handler_belongs_to_its_run(stores: list[UUID], spans: Spans) -> None:
    async def work(store_id: UUID, **_: object) -> None:
        with trace.get_tracer("host").start_as_current_span("work"):
            await sync_to_async(tasks.system.enqueue)()

    tasks.hooks.coroutine = work
    tasks.async_store.enqueue(store_id=stores[0])
    run_all()
    run_all()
    assert parent_of(spans["work"]) == id_of(spans["run test-async-store"])
    assert parent_of(spans["enqueue test-system"]) == id_of(spans["work"])
    assert parent_of(spans["run test-system"]) == id_of(spans["enqueue test-system"])


def test_batch_is_one_span(stores: list[UUID], spans: Spans) -> None:
    tasks.in_store.enqueue_many(tasks.in_store.call(store_id=store) for store in stores)
    [enqueue] = spans.all("enqueue test-store")
    found = attributes(enqueue)
    assert found["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in found
    fan_out(tasks.in_store)
    run_all()
    parents = [parent_of(run) for run in spans.all("run test-store")]
    fanned_out = spans.all("enqueue test-store")[1]
    assert sorted(parents, key=str) == sorted([id_of(enqueue)] * 3 + [id_of(fanned_out)] * 3, key=str)
    with transaction.atomic():
        emit_many(Draft(aggregate_type=ORDERS, event=event, payload={}) for event in "ab")
    assert attributes(spans["emit orders"])["messaging.batch.message_count"] == 2


def test_refused_message_is_an_error(spans: Spans) -> None:
    answer_with(Verdict.REFUSED, detail=SECRET)
    with transaction.atomic():
        emit(ORDERS, event="order.created", payload={})
    relay_in_burst()
    published = spans["publish orders"]
    assert published.status.status_code is StatusCode.ERROR
    assert attributes(published)["error.type"] == "TEST.NO"
    assert SECRET not in published.to_json()


def test_baggage_goes_along() -> None:
    found: list[object] = []
    tasks.hooks.system = lambda **_: found.append(baggage.get_baggage("salon"))
    token = attach(baggage.set_baggage("salon", "ginza"))
    try:
        tasks.system.enqueue()
    finally:
        detach(token)
    run_all()
    assert found == ["ginza"]


def test_untraced_messages_make_no_spans(spans: Spans) -> None:
    tracing.trace_by(None)
    with transaction.atomic():
        emit(ORDERS, event="order.created", payload={})
        emit(ORDERS, event="order.created", payload={}, headers={"X-Kind": "test"})
    opentelemetry.install()
    assert relay_in_burst()
    assert spans.names == []
    assert len(MemoryPublisher.published) == 2
