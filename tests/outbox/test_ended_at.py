"""Shows what says when a message was sent or ended otherwise, and that it goes so long after that."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import IntegrityError, transaction

from salon_jobs import tenant_context
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.control import skip_messages
from salon_jobs.outbox import queries
from salon_jobs.outbox.control import send_skipped_messages
from salon_jobs.outbox.marker import MessagePruner
from tests.outbox.rows import OPERATOR
from tests.outbox.scene import emitted, fill, ids, message, relay_in_burst, statuses
from tests.support import change, elsewhere, seen, wait_until_waiting
from tests.waiting import LIMIT_S


def times() -> dict[str, tuple[str, bool, bool]]:
    """Return the status of each event's message, and whether it has ``sent_at`` and ``ended_at``."""
    rows = seen("SELECT event, status, sent_at IS NOT NULL, ended_at IS NOT NULL FROM salon_jobs_message")
    return {event: (status, sent, ended) for event, status, sent, ended in rows}


def id_of(event: str) -> int:
    [(number,)] = seen("SELECT id FROM salon_jobs_message WHERE event = %s", event)
    return int(number)


def test_times_of_each_end(stores: list[UUID]) -> None:
    verdicts = {"refused": Verdict.REFUSED, "filtered": Verdict.SKIPPED}

    def answer(message: OutgoingMessage) -> PublishFailure | None:
        return PublishFailure(verdicts[message.event], "MEMORY.NO") if message.event in verdicts else None

    with tenant_context(stores[0]):
        emitted(event="given up by the web")
    for event in ("published", "refused", "filtered", "given up"):
        emitted(event=event)
    with tenant_context(stores[0], using="web"):
        assert skip_messages([id_of("given up by the web")], using="web")[0].changed
    assert skip_messages([id_of("given up")], using=OPERATOR)[0].changed
    MemoryPublisher.answer = answer
    assert relay_in_burst()
    emitted(event="waiting")
    assert times() == {
        "published": ("published", True, False),
        "refused": ("failed", False, True),
        **dict.fromkeys(("filtered", "given up", "given up by the web"), ("skipped", False, True)),
        "waiting": ("pending", False, False),
    }
    in_time = "coalesce(sent_at, ended_at, now()) BETWEEN created_at AND now()"
    assert seen(f"SELECT bool_and({in_time}) FROM salon_jobs_message") == [(True,)]


def test_skipped_message_that_arrived_was_sent() -> None:
    message_id = emitted(event="crossed")
    assert skip_messages([id_of("crossed")], using=OPERATOR)[0].changed
    assert times() == {"crossed": ("skipped", False, True)}
    queries.mark_published([message(id_of("crossed"), message_id=message_id)], using="default")
    assert times() == {"crossed": ("published", True, False)}


def test_published_message_stays_so() -> None:
    """A relay that lost its partition may still skip what the next one has sent."""
    late = message(1, message_id=emitted(event="crossed"))
    queries.mark_published([late], using="default")
    queries.mark_skipped([(late, "a filter")], using="default")
    assert times() == {"crossed": ("published", True, False)}


@pytest.mark.parametrize(
    "times",
    [
        "status = 'published'",
        "status = 'published', sent_at = now(), ended_at = now()",
        "status = 'pending', sent_at = now()",
        "status = 'pending', ended_at = now()",
        "status = 'failed'",
        "status = 'failed', sent_at = now(), ended_at = now()",
        "status = 'skipped', sent_at = now()",
    ],
)
def test_wrong_times_are_refused(times: str) -> None:
    emitted(event="by hand")
    with pytest.raises(IntegrityError, match="salon_jobs_message_times"), transaction.atomic():
        change(f"UPDATE salon_jobs_message SET {times}")


def sent(status: str, age: timedelta, count: int = 1) -> None:
    fill(count, f"'{status}'", created_at=f"now() - interval '{age.total_seconds()} s'")


def test_retention_spares_what_is_unsent() -> None:
    year = timedelta(days=365)
    for status in ("pending", "failed", "published", "skipped"):
        sent(status, year, 3)
    sent("published", timedelta(days=6, hours=23))
    sent("skipped", timedelta(days=29))
    change("UPDATE salon_jobs_message SET created_at = now() - interval '1 year'")  # what counts is when each ended
    assert MessagePruner(using="default").run_once() == 6
    assert statuses() == {"pending": 3, "failed": 3, "published": 1, "skipped": 1}


def test_messages_sent_again_meanwhile_are_not_pruned(request: pytest.FixtureRequest) -> None:
    """The pruner has found one skipped long ago, and waits, when an operator has it sent after all."""
    sent("skipped", timedelta(days=365))
    reading = "FOR SELECT TO worker_runtime USING (pg_advisory_xact_lock_shared(7) IS NOT NULL)"
    change(f"CREATE POLICY waits ON salon_jobs_message AS RESTRICTIVE {reading}")
    request.addfinalizer(lambda: change("DROP POLICY waits ON salon_jobs_message"))
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using="owner"):
            seen("SELECT pg_advisory_xact_lock(7)")
            pruned = elsewhere(pool, lambda: MessagePruner(using="default").run_once())
            wait_until_waiting()
            assert send_skipped_messages(ids(), using=OPERATOR)[0].changed
        assert pruned.result(LIMIT_S) == 0
    assert statuses() == {"pending": 1}


def test_walk_of_the_pruner() -> None:
    """It goes past what is never sent, and ends where messages are young."""
    sent("pending", timedelta(days=400), 6_000)
    sent("published", timedelta(days=30), 6_000)
    sent("published", timedelta(0), 12_000)
    now = [0.0]
    pruner = MessagePruner(using="default", clock=lambda: now[0])
    assert pruner.run_once() == 6_000
    assert statuses() == {"pending": 6_000, "published": 12_000}
    change("UPDATE salon_jobs_message SET status = 'published', sent_at = now() - interval '8 days' WHERE id <= 6000")
    assert pruner.run_once() == 0, "the walk goes on where it was"
    now[0] = 3600.0
    assert pruner.run_once() == 6_000, "and from the start every hour"


@pytest.mark.parametrize(
    ("retention", "aged"),
    [(None, {"published": 3650, "skipped": 3650}), (timedelta(days=32), {"skipped": 31})],
    ids=["no retention", "skipped as long as published"],
)
def test_what_the_retention_keeps(
    change_settings: Callable[..., None], retention: timedelta | None, aged: dict[str, int]
) -> None:
    change_settings(OUTBOX={"RETAIN_PUBLISHED": retention})
    for status, days in aged.items():
        sent(status, timedelta(days=days))
    assert MessagePruner(using="default").run_once() == 0


@pytest.mark.slow
def test_late_messages_do_not_end_the_walk() -> None:
    sent("published", timedelta(days=8), 12_000)
    change("UPDATE salon_jobs_message SET sent_at = now() WHERE id < (SELECT min(id) + 6000 FROM salon_jobs_message)")
    assert MessagePruner(using="default").run_once() == 6_000
