"""Shows that a job keeps the trace of whoever enqueued it, by whichever way it came, and that tracers harm nobody."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from salon_jobs import enqueue_job, fan_out, tenant_context
from salon_jobs.core import tracing
from tests import tasks
from tests.inside import trace_with
from tests.jobs.rows import jobs
from tests.support import change, run_on_threads
from tests.tracers import Failing, RecordingTracer
from tests.waiting import LIMIT_S, eventually

HEADERS = {"traceparent": "00-abc-def-01"}


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> RecordingTracer:
    """Be the only tracer."""
    remembering = RecordingTracer(HEADERS)
    trace_with(monkeypatch, remembering)
    return remembering


WAYS: dict[str, Callable[[UUID], object]] = {
    "one": lambda store: tasks.in_store.enqueue(store_id=store),
    "one of no store": lambda _: tasks.system.enqueue(),
    "many": lambda store: tasks.in_store.enqueue_many([tasks.in_store.call(store_id=store)] * 3),
    "many of no store": lambda _: tasks.system.enqueue_many([tasks.system.call()] * 3),
    "by key": lambda store: tasks.keyed.enqueue(store_id=store, number=1),
    "by key, of no store": lambda _: tasks.keyed_system.enqueue(note="a"),
    "by key, deduplicated": lambda s: tasks.keyed.using(job_key_mode="unsafe_dedupe").enqueue(store_id=s, number=1),
    "many by key": lambda s: tasks.keyed.enqueue_many([tasks.keyed.call(store_id=s, number=n) for n in range(3)]),
    "by name, of no store": lambda _: enqueue_job("test-system", {}),
}


def traces() -> list[Any]:
    return [None if trace is None else json.loads(trace) for (trace,) in jobs("trace")]


fail = tasks.raises(RuntimeError("the till is closed"))


@pytest.mark.parametrize("alias", ["default", "web"])
@pytest.mark.parametrize("way", WAYS)
def test_job_keeps_its_trace(stores: list[UUID], tracer: RecordingTracer, settings: Any, alias: str, way: str) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "DATABASE": alias}
    with transaction.atomic(using=alias) if "no store" in way else tenant_context(stores[0]):
        WAYS[way](stores[0])
    count = 3 if "many" in way else 1
    assert traces() == [HEADERS] * count
    [sent] = tracer.calls
    assert (sent.emitted, sent.system, sent.destination, sent.count) == (False, "salon_jobs", "default", count)
    assert count > 1 or sent.message_id == str(jobs("id")[0][0])


def test_fan_out_keeps_trace(stores: list[UUID], tracer: RecordingTracer) -> None:
    fan_out(tasks.keyed, number=1)
    tracer.given = {"traceparent": "another"}
    fan_out(tasks.keyed, number=1)
    assert traces() == [{"traceparent": "another"}] * 3, "as their payloads, it is that of the last"
    assert [sent.count for sent in tracer.calls] == [3, 0]


@pytest.mark.parametrize("mode", ["replace", "preserve_run_at"])
@pytest.mark.parametrize("task", [tasks.keyed, tasks.keyed_system], ids=["store", "system"])
def test_waiting_job_takes_new_trace(stores: list[UUID], tracer: RecordingTracer, task: Any, mode: str) -> None:
    arguments = {"note": "a"} if task is tasks.keyed_system else {"store_id": stores[0], "number": 1}
    task.using(job_key_mode=mode).enqueue(**arguments)
    tracer.given = {"traceparent": "another"}
    task.using(job_key_mode=mode).enqueue(**arguments)
    assert traces() == [tracer.given]


def test_sql_may_give_a_trace(database: None) -> None:
    change("SELECT salon_jobs_add_job('test-system', trace => '{\"traceparent\": \"x\"}')")
    change("SELECT salon_jobs_add_jobs('test-system', ARRAY['{}', '{}'])")
    assert traces() == [{"traceparent": "x"}, None, None]


@pytest.mark.parametrize("trace", ["null", "[]", '"x"', '{"traceparent": {}}', "[" * 3000 + "]" * 3000, "no JSON"])
def test_malformed_trace_has_no_headers(trace: str) -> None:
    assert tracing.headers_of(trace) == {}


def test_no_trace_without_tracer(stores: list[UUID]) -> None:
    for way in WAYS.values():
        with tenant_context(stores[0]):
            way(stores[0])
    assert {*map(str, traces())} == {"None"}


def test_run_is_traced(stores: list[UUID], hooks: tasks.Hooks, process_id: int, tracer: RecordingTracer) -> None:
    hooks.store = fail
    tasks.system.using(queue="tills").enqueue()
    tasks.in_store.using(queue="tills").enqueue(store_id=stores[0])
    tracer.calls.clear()
    run_on_threads(process_id)
    runs = sorted(tracer.calls, key=lambda run: str(run.task))
    assert [(run.task, run.queue, run.attempt, run.headers) for run in runs] == [
        (name, "tills", 1, HEADERS) for name in ("test-store", "test-system")
    ]
    assert [(run.ended, type(run.error)) for run in runs] == [
        ("job_retried", RuntimeError),
        ("job_succeeded", type(None)),
    ]


@pytest.mark.parametrize("trace", ["[]", "null", '{"traceparent": 1}'])
def test_malformed_trace_hurts_no_run(database: None, process_id: int, tracer: RecordingTracer, trace: str) -> None:
    tasks.system.enqueue()
    change("UPDATE salon_jobs_job SET trace = %s::jsonb", trace)
    tracer.calls.clear()
    run_on_threads(process_id)
    assert [run.ended for run in tracer.calls] == ["job_succeeded"]


@pytest.mark.parametrize("failing", ["_tracer", "_reporter"])
def test_failing_observer_affects_no_job(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch, caplog: Any, failing: str
) -> None:
    monkeypatch.setattr(tracing, failing, Failing())
    for body in (lambda **_: None, fail):
        hooks.store = body
        tasks.in_store.using(max_attempts=1).enqueue(store_id=stores[0])
        run_on_threads(process_id)
    assert jobs("state") == [("failed",)]
    assert "an observer could not end" in caplog.text
    assert ("an observer could not begin" in caplog.text) is (failing == "_tracer")


def test_unusual_headers_are_left_behind(database: None, tracer: RecordingTracer) -> None:
    tracer.given = {"traceparent": "t", "baggage": f"b={'x' * 8191}", "tracestate": "no\nline"}
    tasks.system.enqueue()
    assert traces() == [{"traceparent": "t"}]


@pytest.mark.parametrize("hanging", ["_tracer", "_reporter"])
def test_flush_does_not_wait_for_ever(tracer: RecordingTracer, monkeypatch: pytest.MonkeyPatch, hanging: str) -> None:
    released, flushed = threading.Event(), threading.Event()

    class Hanging(Failing):
        def flush(self) -> None:
            assert released.wait(LIMIT_S)
            flushed.set()

    monkeypatch.setattr(tracing, "_reporter", tracer)
    monkeypatch.setattr(tracing, hanging, Hanging())
    tracing.flush(0.3)
    assert not flushed.is_set()
    eventually(lambda: tracer.calls, ["flush"])  # the other one, in a thread of its own
    released.set()


def test_flush_survives_failing_observer(tracer: RecordingTracer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_reporter", Failing())
    tracing.flush(10)
    assert tracer.calls == ["flush"]
