"""Shows what the project's Sentry client sends while schedulers, relays and jobs meet trouble."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import sentry_sdk
from django.db import transaction

from project.sentry import report_to
from salon_jobs import cron
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure
from salon_jobs.core import events as log_events
from salon_jobs.core.events import log_event, logger
from salon_jobs.integrations.sentry import RecordReporter
from salon_jobs.schedules.scheduler import Scheduler, register
from tests import tasks
from tests.inside import declare_no_entries
from tests.outbox.scene import emitted, relaying
from tests.outbox.whole_way import run_all
from tests.sentry_server import SentryServer
from tests.support import change
from tests.waiting import LIMIT_S, eventually

SECRET = "a-customers-name"
pytestmark = [
    pytest.mark.filterwarnings("ignore:The send_default_pii option:DeprecationWarning"),
    pytest.mark.usefixtures("hooks"),
]


@pytest.fixture
def sentry(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[SentryServer]:
    """Give a server, and this process the project's client and what it logs by default."""
    server = SentryServer()
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(logger.logger, "filters", [RecordReporter()])
    with server.serving():
        report_to(server.dsn)
        yield server
        sentry_sdk.get_client().close()
        sentry_sdk.get_global_scope().set_client(None)


def received(server: SentryServer) -> list[dict[str, Any]]:
    sentry_sdk.flush(timeout=LIMIT_S)
    return server.events


def test_broken_cron_entry_is_one_event_a_tick(sentry: SentryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def payload(tick: object) -> dict[str, Any]:
        note = SECRET
        raise ZeroDivisionError(len(note))

    declare_no_entries(monkeypatch)
    cron("0 18 * * *", tasks.system, payload=payload, name="nightly", backfill=timedelta(days=2))
    register(["nightly"], using="default")
    change("UPDATE salon_jobs_cron_entry SET registered_at = now() - interval '1 day'")
    scheduler = Scheduler(using="default")
    for _ in range(3):
        scheduler.poll()
    [event] = received(sentry)
    assert (event["fingerprint"], event["tags"]["entry"], event["level"]) == (["cron_failed"], "nightly", "error")
    assert event["exception"]["values"][-1]["type"] == "ZeroDivisionError"
    assert SECRET not in str(event)


def test_broken_publisher_is_one_event_until_it_works(sentry: SentryServer) -> None:
    tried: list[UUID] = []

    def break_down(message: OutgoingMessage) -> PublishFailure | None:
        tried.append(message.message_id)
        raise ZeroDivisionError

    with relaying():
        for number in (1, 2):
            tried.clear()
            MemoryPublisher.answer = break_down
            emitted("1", number=number)
            eventually(lambda: len(tried) >= 2)
            MemoryPublisher.answer = None
            eventually(lambda: len(MemoryPublisher.published), number)
            events = received(sentry)
            assert [event["fingerprint"] for event in events].count(["publisher_broken"]) == number


def test_broken_callback_on_commit_is_one_event(sentry: SentryServer, stores: list[UUID]) -> None:
    tasks.hooks.store = lambda **_: transaction.on_commit(lambda: 1 / 0)
    tasks.in_store.enqueue(store_id=stores[0])
    run_all()
    [event] = received(sentry)
    assert event["fingerprint"] == ["job_callback_failed"]
    assert (event["tags"]["task_name"], event["tags"]["store_id"]) == ("test-store", str(stores[0]))


def test_outage_is_one_event(sentry: SentryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its second line on; the next outage is another."""
    now = 1000.0
    monkeypatch.setattr(logger.logger, "filters", [RecordReporter(clock=lambda: now)])

    def lose(times: int) -> int:
        for _ in range(times):
            log_event(logging.WARNING, log_events.DATABASE_LOST, loop="claim", error="no route to host")
        return len(received(sentry))

    assert lose(1) == 0
    assert lose(1) == 1
    assert lose(50) == 1
    now += 299
    assert lose(1) == 1, "the same outage"
    now += 300
    assert lose(1) == 1, "the first line of the next one"
    log_event(logging.INFO, log_events.DATABASE_BACK, loop="claim")
    assert lose(1) == 1
    assert lose(1) == 2


def test_sources_of_two_consumers_are_two_troubles(sentry: SentryServer) -> None:
    for consumer in ("billing", "mailing", "billing"):
        log_event(logging.WARNING, log_events.SOURCE_LOST, consumer=consumer, error="no route to host")
    assert [event["tags"]["consumer"] for event in received(sentry)] == ["billing", "mailing"]
    log_event(logging.INFO, log_events.SOURCE_BACK, consumer="billing")
    log_event(logging.WARNING, log_events.SOURCE_LOST, consumer="billing", error="no route to host")
    assert len(received(sentry)) == 3


def test_record_is_grouped_by_its_words(sentry: SentryServer) -> None:
    for number in (1, 2):
        logger.error("the end of job %s could not be told", number)
    events = received(sentry)
    assert [event["fingerprint"] for event in events] == [["the end of job %s could not be told"]] * 2
    assert [event["message"] for event in events] == [f"the end of job {n} could not be told" for n in (1, 2)]


def test_our_records_are_no_breadcrumbs(sentry: SentryServer) -> None:
    log_event(logging.WARNING, log_events.JOB_RESCUED, store_id=SECRET)
    logging.getLogger("host").error("the printer is out of paper")
    [event] = received(sentry)
    assert SECRET not in str(event)
