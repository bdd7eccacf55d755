"""Shows the events and check-ins that reach Sentry, by a transport that keeps them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import sentry_sdk
from django.db import transaction
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_trace_id
from sentry_sdk.integrations.otlp import otel_propagation_context
from sentry_sdk.scope import register_external_propagation_context, remove_external_propagation_context

from salon_jobs import Discard, Snooze, cron, current_job, emit, fan_out
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import PublishFailure, Verdict
from salon_jobs.core import tracing
from salon_jobs.core.events import JOB_OUTCOME_UNKNOWN
from salon_jobs.integrations import opentelemetry, sentry
from salon_jobs.integrations.sentry import slug_of
from salon_jobs.schedules.scheduler import Scheduler
from tests import tasks
from tests.inside import declare_no_entries, trace_with
from tests.integrations.conftest import Sent
from tests.outbox.scene import ORDERS, relay_in_burst
from tests.outbox.whole_way import delivered, discard, fail, make_due, processor, run_all
from tests.support import another_process, be_silent, change, claim, rescuer, run_due, run_on_threads, seen

SECRET = "a-customers-name"
TICK = datetime(2026, 5, 5, 18, tzinfo=UTC)
Change = Callable[..., None]


def fail_until_the_end(process_id: int, hooks: tasks.Hooks, attempts: int) -> None:
    def body(note: str = "", **_: object) -> None:
        arguments = {"note": note, "attempt": current_job().attempt}
        raise RuntimeError("the till is closed") from KeyError(len(arguments))

    hooks.system = hooks.store = body
    for _ in range(attempts):
        change("UPDATE salon_jobs_job SET run_at = now() WHERE state = 'queued'")
        run_due(process_id)


def raised(event: dict[str, Any]) -> str:
    """Return the type of the error that an event shows."""
    return str(event["exception"]["values"][-1]["type"])


def test_exhausted_attempts_are_one_event(stores: list[UUID], hooks: tasks.Hooks, process_id: int, sent: Sent) -> None:
    handle = tasks.in_store.enqueue(store_id=stores[0], number=7)
    fail_until_the_end(process_id, hooks, 2)
    assert sent.events == [], "nothing on a retry"
    fail_until_the_end(process_id, hooks, 2)
    [event] = sent.events
    assert event["tags"] == {"task_name": "test-store", "store_id": str(stores[0]), "attempt": 3, "job_id": handle.id}
    assert event["transaction"] == "test-store"
    assert [value["type"] for value in event["exception"]["values"]] == ["KeyError", "RuntimeError"]
    assert event["exception"]["values"][-1]["stacktrace"]["frames"][-1]["function"] == "body"


def test_payload_never_goes_along(hooks: tasks.Hooks, process_id: int, sent: Sent) -> None:
    tasks.system.enqueue(note=SECRET)
    fail_until_the_end(process_id, hooks, 3)
    [event] = sent.events
    assert event["tags"]["store_id"] == ""
    assert SECRET not in sent.text


def test_success_and_discard_are_no_event(stores: list[UUID], hooks: tasks.Hooks, process_id: int, sent: Sent) -> None:
    def discard(**_: object) -> None:
        raise Discard("gone")

    hooks.store = discard
    tasks.system.enqueue()
    tasks.in_store.enqueue(store_id=stores[0])
    run_due(process_id)
    assert sent.events == []


def test_payload_that_never_fits_is_one_event(process_id: int, sent: Sent) -> None:
    tasks.system.enqueue(note=SECRET)
    change("""UPDATE salon_jobs_job SET payload = payload || '{"note": 1}'""")
    run_due(process_id)
    [event] = sent.events
    assert raised(event) == "PayloadInvalid"
    assert SECRET not in sent.text


@pytest.mark.parametrize(("deaths", "said"), [(1, "1 process has by now"), (3, "3 processes have by now")])
def test_job_that_kills_its_processes_is_one_event(
    stores: list[UUID], sent: Sent, monkeypatch: pytest.MonkeyPatch, deaths: int, said: str
) -> None:
    monkeypatch.setattr(tasks.in_store, "max_deaths", deaths)
    handle = tasks.in_store.using(max_attempts=1).enqueue(store_id=stores[0])
    for _ in range(deaths):
        assert sent.events == []
        process = another_process()
        be_silent(process)
        claim(process)
        rescuer().run_once()
    [event] = sent.events
    assert raised(event) == "ProcessDied"
    assert said in sent.text
    assert event["tags"]["job_id"] == handle.id


def log(error: Exception) -> None:
    logging.getLogger("host").error("could not open the till", exc_info=error)


def capture_and_more(error: Exception) -> None:
    sentry_sdk.capture_exception(error)
    sentry_sdk.capture_exception(KeyError("key"))


def capture_elsewhere(error: Exception) -> None:
    with sentry_sdk.isolation_scope():
        sentry_sdk.capture_exception(error)


def failing_and_telling(tell: Callable[[Exception], object]) -> Callable[..., None]:
    """Return a handler that fails, and tells it itself."""

    def body(**_: object) -> None:
        try:
            raise RuntimeError("the till is closed")
        except RuntimeError as error:
            tell(error)
            raise

    return body


@pytest.mark.parametrize("tell", [log, sentry_sdk.capture_exception, capture_and_more, capture_elsewhere])
@pytest.mark.parametrize("is_async", [False, True])
def test_failure_that_its_handler_reports_is_one_event(
    hooks: tasks.Hooks, process_id: int, sent: Sent, tell: Callable[[Exception], object], *, is_async: bool
) -> None:
    body = failing_and_telling(tell)

    async def coroutine(**_: object) -> None:
        body()

    hooks.system, hooks.coroutine = body, coroutine
    declared = tasks.async_system if is_async else tasks.system
    handle = declared.using(max_attempts=1).enqueue()
    run_on_threads(process_id)
    [event] = [event for event in sent.events if raised(event) == "RuntimeError"]
    assert event["tags"] == {"task_name": declared.name, "store_id": "", "attempt": 1, "job_id": handle.id}


def test_unsent_event_of_a_handler_counts_for_nothing(hooks: tasks.Hooks, process_id: int, sent: Sent) -> None:
    options = sentry_sdk.get_client().options
    options["before_send"] = lambda event, _: None if event.get("logger") == "host" else event
    hooks.system = failing_and_telling(log)
    handle = tasks.system.using(max_attempts=1).enqueue()
    run_on_threads(process_id)
    [event] = sent.events
    assert event["tags"]["job_id"] == handle.id


def test_failure_without_a_client(hooks: tasks.Hooks, process_id: int) -> None:
    tasks.system.enqueue()
    fail_until_the_end(process_id, hooks, 3)


def test_stores_share_no_scope(stores: list[UUID], hooks: tasks.Hooks, process_id: int, sent: Sent) -> None:
    """What one store's job left behind is not told with another's failure."""

    def body(store_id: UUID, **_: object) -> None:
        sentry_sdk.add_breadcrumb(message=f"worked on {store_id}")
        sentry_sdk.get_isolation_scope().set_tag("customer", str(store_id))
        if store_id == stores[1]:
            raise RuntimeError("the till is closed")

    hooks.store = body
    for store_id in stores[:2]:
        tasks.in_store.using(max_attempts=1).enqueue(store_id=store_id)
    run_on_threads(process_id)
    [event] = sent.events
    assert str(stores[0]) not in sent.text
    assert f"worked on {stores[1]}" in [crumb.get("message") for crumb in event["breadcrumbs"]["values"]]


def test_texts_and_lines_of_code_hide_secrets() -> None:
    frame: dict[str, Any] = {"context_line": 'login(password="hunter2")', "pre_context": ['"token=hunter2"']}
    values = [{"value": "password=hunter2" + "x" * 5_000_000, "stacktrace": {"frames": [frame]}}, {"value": None}]
    event: Any = {"exception": {"values": values}}
    shown = str(sentry._without_secrets(event, {}))  # pyright: ignore[reportPrivateUsage]
    assert "hunter2" not in shown
    assert "password=***" in shown
    assert len(shown) < 5000


def test_failed_message_is_one_event(sent: Sent, change_settings: Change) -> None:
    """A retry is none."""
    change_settings(OUTBOX={"RETRY_BACKOFF": 60})
    answers = iter([Verdict.RETRY, Verdict.REFUSED])
    MemoryPublisher.answer = lambda _: PublishFailure(next(answers), "TEST.NO", SECRET)
    with transaction.atomic():
        message_id = emit(ORDERS, aggregate_id="1", event="order.created", payload={"name": SECRET})
        emit(ORDERS, aggregate_id="1", event="order.created", payload={})
    relay_in_burst()
    assert sent.events == []
    make_due()
    for _ in range(2):
        relay_in_burst()
    [event] = sent.events
    assert event["tags"] == {
        "message_id": str(message_id),
        "destination": ORDERS,
        "message_event": "order.created",
        "consumer": "",
        "store_id": "",
        "code": "TEST.NO",
        "attempt": 2,
    }
    assert event["fingerprint"] == ["message_failed", ORDERS, "order.created", "TEST.NO"]
    assert "logentry" in event or event["message"] == "message_failed: TEST.NO (order.created)"
    assert seen("SELECT status FROM salon_jobs_message ORDER BY id") == [("failed",), ("pending",)]
    assert SECRET not in sent.text


def test_rejected_message_is_one_event(sent: Sent) -> None:
    with transaction.atomic():
        emit(ORDERS, event="unheard-of", payload={"name": SECRET})
    assert relay_in_burst()
    consumer = processor()
    for _ in range(2):
        consumer.process([delivered(message) for message in MemoryPublisher.published])
    [event] = sent.events
    assert (event["tags"]["consumer"], event["tags"]["code"]) == ("billing", "INBOX.UNKNOWN_EVENT")
    assert SECRET not in sent.text


def test_warnings_of_handlers_are_events(hooks: tasks.Hooks, sent: Sent) -> None:
    """Ours are none."""

    def body(note: str) -> None:
        logging.getLogger("host").info("quiet")
        logging.getLogger("host").warning("the drawer is stuck")
        raise Snooze(TICK - TICK)

    hooks.system = body
    tasks.system.enqueue(note=SECRET)
    run_all()
    [event] = sent.events
    assert event["logentry"]["message"] == "the drawer is stuck"
    assert SECRET not in sent.text


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch, hooks: tasks.Hooks, change_settings: Change) -> tasks.Hooks:
    """Declare one cron entry, and no other, and monitor it; return the hooks."""
    declare_no_entries(monkeypatch)
    cron("0 3 * * *", tasks.system, timezone="Asia/Tokyo", payload={"note": SECRET}, name="Nightly sales")
    change_settings(SENTRY_MONITORS=True)
    return hooks


def test_unknown_outcome_is_a_failed_check_in(entry: tasks.Hooks, sent: Sent) -> None:
    """Nobody runs it again."""
    nothing: dict[str, Any] = {"store_id": None, "headers": {}, "waited_s": 0.0, "body_size": 0}
    run = tracing.Run(task="test-system", job_id=1, queue="q", attempt=1, tick=TICK, **nothing)
    with tracing.observing(run):
        run.ended = JOB_OUTCOME_UNKNOWN
    assert sent.check_ins == ["in_progress", "error"]


def test_cron_entry_checks_in(entry: tasks.Hooks, sent: Sent) -> None:
    """When its job begins, and when it ends."""
    assert Scheduler(using="default").run_at(TICK) == 1
    assert sent.check_ins == []
    run_all()
    assert sent.check_ins == ["in_progress", "ok"]
    first, last = sent.of("check_in")
    assert first["check_in_id"] == last["check_in_id"]
    for each in (first, last):
        assert each["monitor_slug"] == "nightly-sales"
        assert each["monitor_config"]["schedule"] == {"type": "crontab", "value": "0 3 * * *"}
        assert each["monitor_config"]["timezone"] == "Asia/Tokyo"
        assert (each["environment"], each["release"]) == ("prod", "salon@1.2")


def test_similar_names_have_slugs_of_their_own() -> None:
    alike = ["集計", "清掃", "a" * 60, "a" * 60 + "b", "nightly 集計"]
    slugs = [slug_of(name) for name in alike]
    assert len({*slugs}) == len(alike)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]{0,48}[a-z0-9]", slug) for slug in slugs)
    assert slug_of("Nightly sales") == "nightly-sales"


@pytest.mark.parametrize(
    ("body", "expected"),
    [(fail, [["in_progress"], ["in_progress"], ["in_progress", "error"]]), (discard, [["in_progress", "error"]])],
)
def test_check_in_lasts_as_long_as_the_attempts(
    entry: tasks.Hooks, sent: Sent, body: Callable[..., None], expected: list[list[str]]
) -> None:
    """One of a job that was discarded is an error."""
    entry.system = body
    Scheduler(using="default").run_at(TICK)
    for statuses in expected:
        run_all()
        assert sent.check_ins == statuses
        change("UPDATE salon_jobs_job SET run_at = now() WHERE state = 'queued'")
    assert len({each["check_in_id"] for each in sent.of("check_in")}) == 1


def test_nothing_else_checks_in(stores: list[UUID], entry: tasks.Hooks, sent: Sent, change_settings: Change) -> None:
    """Neither a job without a tick, nor those of a fan-out, nor any where it is not asked for."""
    change_settings(SENTRY_MONITORS=False)
    Scheduler(using="default").run_at(TICK)
    run_all()
    assert sent.check_ins == []
    change_settings(SENTRY_MONITORS=True)
    entry.system = lambda **_: fan_out(tasks.in_store)
    tasks.system.enqueue()
    Scheduler(using="default").run_at(TICK.replace(day=6))
    run_all()
    run_all()
    assert sent.check_ins == ["in_progress", "ok"]


def trace_ids(found: list[dict[str, Any]]) -> set[str]:
    return {each["contexts"]["trace"]["trace_id"] for each in found}


def test_runs_have_a_trace_each(hooks: tasks.Hooks, sent: Sent) -> None:
    hooks.system = fail
    for _ in range(2):
        tasks.system.using(max_attempts=1).enqueue()
    run_all()
    assert len(trace_ids(sent.events)) == 2


def test_event_belongs_to_the_trace_of_its_run(hooks: tasks.Hooks, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentry's integration is set up as the guide says, without an exporter."""
    trace_with(monkeypatch, None)
    opentelemetry.install()
    tracer = TracerProvider().get_tracer("test")
    monkeypatch.setattr(tracing._tracer, "_tracer", tracer)
    register_external_propagation_context(otel_propagation_context)
    hooks.system = fail
    try:
        with tracer.start_as_current_span("request") as request:
            tasks.system.using(max_attempts=1).enqueue()
        run_all()
    finally:
        remove_external_propagation_context()
    assert len(sent.events) == 1
    assert trace_ids(sent.events) == {format_trace_id(request.get_span_context().trace_id)}
