"""Shows that ``sent_at`` is the time of the publish alone, and that what ended otherwise says when."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.db import IntegrityError, transaction

from salon_jobs import tenant_context
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.control import retry_messages, skip_messages
from salon_jobs.inbox.queries import dismiss_messages
from salon_jobs.models import InboxMessage
from salon_jobs.outbox import queries
from salon_jobs.outbox.marker import MessagePruner
from tests.outbox.scene import emitted, relay_in_burst
from tests.outbox.test_backlog import message
from tests.support import change, seen

OPERATOR = "operator"


def answer(message: OutgoingMessage) -> PublishFailure | None:
    verdicts = {"refused": Verdict.REFUSED, "filtered": Verdict.SKIPPED}
    return PublishFailure(verdicts[message.event], "MEMORY.NO") if message.event in verdicts else None


def times() -> dict[str, tuple[str, bool, bool]]:
    """Return the status of each event's message, and whether it has ``sent_at`` and ``ended_at``."""
    rows = seen("SELECT event, status, sent_at IS NOT NULL, ended_at IS NOT NULL FROM salon_jobs_message")
    return {event: (status, sent, ended) for event, status, sent, ended in rows}


def id_of(event: str) -> int:
    [(number,)] = seen("SELECT id FROM salon_jobs_message WHERE event = %s", event)
    return int(number)


def test_sent_at_is_true_of_a_message_however_it_ended(stores: list[UUID]) -> None:
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
        "filtered": ("skipped", False, True),
        "given up": ("skipped", False, True),
        "given up by the web": ("skipped", False, True),
        "waiting": ("pending", False, False),
    }
    in_time = "coalesce(sent_at, ended_at, now()) BETWEEN created_at AND now()"
    assert seen(f"SELECT bool_and({in_time}) FROM salon_jobs_message") == [(True,)]


def test_a_failed_message_that_is_retried_has_not_ended_any_more() -> None:
    emitted(event="refused")
    MemoryPublisher.answer = answer
    assert relay_in_burst()
    assert retry_messages([id_of("refused")], using=OPERATOR)[0].changed
    assert times() == {"refused": ("pending", False, False)}
    MemoryPublisher.answer = None
    assert relay_in_burst()
    assert times() == {"refused": ("published", True, False)}


def test_a_message_that_arrived_although_it_was_skipped_was_sent() -> None:
    message_id = emitted(event="crossed")
    assert skip_messages([id_of("crossed")], using=OPERATOR)[0].changed
    assert times() == {"crossed": ("skipped", False, True)}
    queries.mark_published([message(id_of("crossed"), message_id=message_id)], using="default")
    assert times() == {"crossed": ("published", True, False)}


def test_skipped_messages_are_pruned_by_the_time_at_which_they_were_skipped() -> None:
    for event in ("long ago", "lately", "failed"):
        emitted(event=event)
    change("UPDATE salon_jobs_message SET created_at = now() - interval '1 year'")
    skip_messages([id_of("long ago"), id_of("lately")], using=OPERATOR)
    failed = "status = 'failed', ended_at = now() - interval '1 year'"
    change(f"UPDATE salon_jobs_message SET {failed} WHERE event = 'failed'")
    change("UPDATE salon_jobs_message SET ended_at = now() - interval '31 days' WHERE event = 'long ago'")
    assert MessagePruner(using="default").run_once() == 1
    assert times().keys() == {"lately", "failed"}


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
def test_not_even_sql_by_hand_can_make_the_times_lie(times: str) -> None:
    emitted(event="by hand")
    with pytest.raises(IntegrityError, match="salon_jobs_message_times"), transaction.atomic():
        change(f"UPDATE salon_jobs_message SET {times}")


def test_a_dismissed_incoming_message_says_when() -> None:
    rejected = {"consumer": "orders", "status": InboxMessage.Status.REJECTED}
    first, _ = (InboxMessage.objects.create(message_id=str(number), **rejected) for number in range(2))
    assert [each.changed for each in dismiss_messages([first.pk], using=OPERATOR)] == [True]
    rows = seen("SELECT status, ended_at BETWEEN received_at AND now() FROM salon_jobs_inbox ORDER BY id")
    assert rows == [("dismissed", True), ("rejected", None)]
