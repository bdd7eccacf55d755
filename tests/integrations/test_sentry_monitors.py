"""Shows the check-ins and the events of messages that reach Sentry, by a transport that keeps them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_trace_id
from sentry_sdk.integrations.django import DjangoIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.integrations.otlp import otel_propagation_context
from sentry_sdk.scope import register_external_propagation_context, remove_external_propagation_context

from salon_jobs import Snooze, cron, emit, fan_out
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import PublishFailure, Verdict
from salon_jobs.core import tracing
from salon_jobs.core.events import JOB_OUTCOME_UNKNOWN
from salon_jobs.integrations import opentelemetry
from salon_jobs.integrations.sentry import slug_of
from salon_jobs.schedules.entries import cron_entries
from salon_jobs.schedules.scheduler import Scheduler
from tests import tasks
from tests.integrations.conftest import sentry_client
from tests.outbox.scene import ORDERS, relay_in_burst
from tests.outbox.whole_way import delivered, discard, fail, make_due, processor, run_all
from tests.support import change, seen

SECRET = "a-customers-name"
TICK = datetime(2026, 5, 5, 18, tzinfo=UTC)
pytestmark = pytest.mark.usefixtures("hooks")


class Sent:
    """Keeps what would be sent, by kind."""

    def __init__(self) -> None:
        self.items: list[tuple[str, Any]] = []

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the items of one kind: event, check_in."""
        return [payload for found, payload in self.items if found == kind]


@pytest.fixture
def sent() -> Iterator[Sent]:
    """Initialise the SDK as the demo's settings do."""
    found = Sent()
    integrations = [DjangoIntegration(), LoggingIntegration(event_level=logging.WARNING)]
    options: dict[str, Any] = {"release": "salon@1.2", "environment": "prod", "include_local_variables": False}
    with sentry_client(lambda *item: found.items.append(item), integrations=integrations, **options):
        yield found


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare one cron entry, and no other."""
    monkeypatch.setattr(cron_entries, "_by_name", {})
    cron("0 3 * * *", tasks.system, timezone="Asia/Tokyo", payload={"note": SECRET}, name="Nightly sales")


def trace_ids(*found: dict[str, Any]) -> set[str]:
    return {each["contexts"]["trace"]["trace_id"] for each in found}


def test_a_run_whose_outcome_is_unknown_ends_its_check_in_as_an_error(
    entry: None, sent: Sent, change_settings: Callable[..., None]
) -> None:
    change_settings(SENTRY_MONITORS=True)
    nothing: dict[str, Any] = {"store_id": None, "headers": {}, "waited_s": 0.0, "body_size": 0}
    run = tracing.Run(task="test-system", job_id=1, queue="q", attempt=1, tick=TICK, **nothing)
    with tracing.observing(run):
        run.ended = JOB_OUTCOME_UNKNOWN
    assert check_ins(sent) == ["in_progress", "error"], "nobody runs it again"


def test_a_message_that_fails_is_one_event_and_a_retry_is_none(
    sent: Sent, change_settings: Callable[..., None]
) -> None:
    change_settings(OUTBOX={"RETRY_BACKOFF": 60})
    answers = iter([Verdict.RETRY, Verdict.REFUSED])
    MemoryPublisher.answer = lambda _: PublishFailure(next(answers), "TEST.NO", SECRET)
    with transaction.atomic():
        message_id = emit(ORDERS, aggregate_id="1", event="order.created", payload={"name": SECRET})
        emit(ORDERS, aggregate_id="1", event="order.created", payload={})
    relay_in_burst()
    assert sent.of("event") == []
    make_due()
    for _ in range(2):
        relay_in_burst()
    [event] = sent.of("event")
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
    assert SECRET not in json.dumps(sent.items)


def test_a_message_that_is_rejected_is_one_event(sent: Sent) -> None:
    with transaction.atomic():
        emit(ORDERS, event="unheard-of", payload={"name": SECRET})
    assert relay_in_burst()
    consumer = processor()
    for _ in range(2):
        consumer.process([delivered(message) for message in MemoryPublisher.published])
    [event] = sent.of("event")
    assert (event["tags"]["consumer"], event["tags"]["code"]) == ("billing", "INBOX.UNKNOWN_EVENT")
    assert SECRET not in json.dumps(sent.items)


def test_a_warning_of_a_handler_is_an_event_and_ours_are_not(sent: Sent) -> None:
    def body(note: str) -> None:
        logging.getLogger("host").info("quiet")
        logging.getLogger("host").warning("the drawer is stuck")
        raise Snooze(TICK - TICK)

    tasks.hooks.system = body
    tasks.system.enqueue(note=SECRET)
    run_all()
    [event] = sent.of("event")
    assert event["logentry"]["message"] == "the drawer is stuck"
    assert SECRET not in json.dumps(sent.items)


def check_ins(sent: Sent) -> list[str]:
    return [each["status"] for each in sent.of("check_in")]


def test_a_cron_entry_checks_in_when_its_job_begins_and_when_it_ends(
    entry: None, sent: Sent, change_settings: Callable[..., None]
) -> None:
    change_settings(SENTRY_MONITORS=True)
    assert Scheduler(using="default").run_at(TICK) == 1
    assert check_ins(sent) == []
    run_all()
    first, last = sent.of("check_in")
    assert (first["status"], last["status"]) == ("in_progress", "ok")
    assert first["check_in_id"] == last["check_in_id"]
    for each in (first, last):
        assert each["monitor_slug"] == "nightly-sales"
        assert each["monitor_config"]["schedule"] == {"type": "crontab", "value": "0 3 * * *"}
        assert each["monitor_config"]["timezone"] == "Asia/Tokyo"
        assert (each["environment"], each["release"]) == ("prod", "salon@1.2")


def test_entries_whose_slugs_would_be_equal_have_monitors_of_their_own() -> None:
    alike = ["集計", "清掃", "a" * 60, "a" * 60 + "b", "nightly 集計"]
    slugs = [slug_of(name) for name in alike]
    assert len({*slugs}) == len(alike)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]{0,48}[a-z0-9]", slug) for slug in slugs)
    assert slug_of("Nightly sales") == "nightly-sales"


@pytest.mark.parametrize(
    ("body", "expected"),
    [(fail, [["in_progress"], ["in_progress"], ["in_progress", "error"]]), (discard, [["in_progress", "error"]])],
)
def test_a_check_in_lasts_as_long_as_the_jobs_attempts_and_one_discarded_is_an_error(
    entry: None, sent: Sent, change_settings: Callable[..., None], body: Callable[..., None], expected: list[list[str]]
) -> None:
    change_settings(SENTRY_MONITORS=True)
    tasks.hooks.system = body
    Scheduler(using="default").run_at(TICK)
    for statuses in expected:
        run_all()
        assert check_ins(sent) == statuses
        change("UPDATE salon_jobs_job SET run_at = now() WHERE state = 'queued'")
    assert len({each["check_in_id"] for each in sent.of("check_in")}) == 1


def test_nothing_else_checks_in(
    stores: list[UUID], entry: None, sent: Sent, change_settings: Callable[..., None]
) -> None:
    change_settings(SENTRY_MONITORS=False)
    Scheduler(using="default").run_at(TICK)
    run_all()
    assert check_ins(sent) == [], "not asked for"
    change_settings(SENTRY_MONITORS=True)
    tasks.hooks.system = lambda **_: fan_out(tasks.in_store)
    tasks.system.enqueue()
    Scheduler(using="default").run_at(TICK.replace(day=6))
    run_all()
    run_all()
    assert check_ins(sent) == ["in_progress", "ok"], "neither a job without a tick, nor those of a fan-out"


def test_runs_have_a_trace_each(sent: Sent) -> None:
    tasks.hooks.system = fail
    for _ in range(2):
        tasks.system.using(max_attempts=1).enqueue()
    run_all()
    assert len(trace_ids(*sent.of("event"))) == 2


def test_with_opentelemetry_an_event_belongs_to_the_trace_of_its_run(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentry's integration is set up as the guide says, without an exporter."""
    monkeypatch.setattr(tracing, "_tracer", None)
    opentelemetry.install()
    tracer = TracerProvider().get_tracer("test")
    monkeypatch.setattr(tracing._tracer, "_tracer", tracer)
    register_external_propagation_context(otel_propagation_context)
    tasks.hooks.system = fail
    try:
        with tracer.start_as_current_span("request") as request:
            tasks.system.using(max_attempts=1).enqueue()
        run_all()
    finally:
        remove_external_propagation_context()
    [event] = sent.of("event")
    assert trace_ids(event) == {format_trace_id(request.get_span_context().trace_id)}
