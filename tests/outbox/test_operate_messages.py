"""Shows what operators do with messages, what is said of each, and what a relay sends then."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from uuid import UUID

import psycopg
import pytest
from django.db import transaction

from salon_jobs import tenant_context
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage, Verdict
from salon_jobs.control import (
    ActionResult,
    MessageCriteria,
    pause_destination,
    replay_messages,
    resume_destination,
    retry_messages,
    skip_messages,
    unpark,
)
from salon_jobs.core.errors import MessageInvalid, OptionInvalid
from salon_jobs.outbox.control import retry_heads, send_skipped_messages
from tests.outbox import scene
from tests.outbox.rows import OPERATOR, ORDERS, block, blocked, statuses, write
from tests.outbox.scene import RunningRelay, answer_with, arrived, emitted, fill, ids, relaying
from tests.settings import url_for
from tests.support import change, elsewhere, seen, store_id_of, wait_until_waiting
from tests.waiting import LIMIT_S, eventually

GONE = "there is no such message, or you may not see it"


def test_retried_head_is_due_with_all_its_tries() -> None:
    head, behind = write("failed", aggregate="42"), write(aggregate="42")
    block(head, "parked")
    assert retry_messages([behind, head], using=OPERATOR) == [
        ActionResult(behind, False, f"message {head} blocks its aggregate; retry or skip that one first"),
        ActionResult(head, True),
    ]
    row = seen("SELECT status, retry_count, retry_at, sent_at FROM salon_jobs_message WHERE id = %s", head)
    assert row == [("pending", 0, None, None)]
    assert blocked() == [(head, "waiting", True, 0)]


def test_retried_message_is_put_in_front() -> None:
    alone, of_one, store = write("failed"), write("failed", aggregate="7"), store_id_of(5)
    third = write("failed", store=store)
    assert all(result.changed for result in retry_messages([alone, of_one, third], using=OPERATOR))
    assert blocked() == [(each, "waiting", True, 0) for each in (alone, of_one, third)]
    assert seen(
        "SELECT count(*) FROM salon_jobs_blocked_aggregate b JOIN salon_jobs_message m ON m.id = b.head_id"
        " WHERE (b.aggregate_type, b.aggregate_id, b.partition) = (m.aggregate_type, m.aggregate_id, m.partition)"
        " AND b.store_id IS NOT DISTINCT FROM m.store_id"
    ) == [(3,)]


def test_retry_of_a_waiting_message_keeps_its_count() -> None:
    waiting, alone = write(aggregate="42"), write()
    block(waiting, "waiting")
    block(alone, "waiting")
    assert [each.changed for each in retry_messages([alone, waiting], using=OPERATOR)] == [True, True]
    assert blocked() == [(waiting, "waiting", True, 10), (alone, "waiting", True, 10)]


def test_retry_of_several_in_one_aggregate() -> None:
    first, head, last = (write("failed", aggregate="42") for _ in range(3))
    block(head, "parked")
    parked = f"message {head} blocks its aggregate; retry or skip that one first"
    assert retry_messages([first], using=OPERATOR) == [ActionResult(first, False, parked)]
    assert retry_messages([last], using=OPERATOR) == [ActionResult(last, False, parked)]
    assert [each.changed for each in retry_messages([last, head], using=OPERATOR)] == [True, True]
    assert blocked() == [(head, "waiting", True, 0)]
    # The head waits by now, so an earlier one can go before it.
    assert retry_messages([first], using=OPERATOR) == [ActionResult(first, True)]
    assert blocked() == [(first, "waiting", True, 0)]
    assert set(statuses().values()) == {"pending"}


def test_why_messages_can_not_be_retried() -> None:
    ids = [write("published"), write("skipped"), write(), 10**12]
    assert [(each.changed, each.detail) for each in retry_messages(ids, using=OPERATOR)] == [
        (False, "it is published; only failed and waiting messages can be retried"),
        (False, "it is skipped; only failed and waiting messages can be retried"),
        (False, "it is pending; the relay will send it"),
        (False, GONE),
    ]
    assert blocked() == []


def test_skipped_head_frees_its_aggregate() -> None:
    head, behind, other = write("failed", aggregate="42"), write(aggregate="42"), write(aggregate="43")
    sent, last = write("published"), write(aggregate="43")
    block(head, "parked")
    block(other, "waiting")
    assert skip_messages([sent, head, last], using=OPERATOR) == [
        ActionResult(sent, False, "it is published; only pending and failed messages can be skipped"),
        ActionResult(head, True),
        ActionResult(last, True),
    ]
    assert blocked() == [(other, "waiting", False, 10)], "the last one held nobody back"
    assert statuses() == {head: "skipped", behind: "pending", other: "pending", sent: "published", last: "skipped"}
    assert seen("SELECT count(*) FROM salon_jobs_message WHERE ended_at IS NOT NULL") == [(2,)]


def test_store_skips_its_own_messages(stores: list[UUID]) -> None:
    own, other = write("failed", aggregate="1", store=stores[0]), write("failed", aggregate="2", store=stores[1])
    kept = write("failed", aggregate="3", store=stores[0])
    for head in (own, other, kept):
        block(head, "parked")
    assert skip_messages([own, other], using="web") == [ActionResult(i, False, GONE) for i in (own, other)]
    with tenant_context(stores[0], using="web"):
        assert skip_messages([other, own], using="web") == [ActionResult(other, False, GONE), ActionResult(own, True)]
        assert [each.detail for each in unpark([(ORDERS, "2")], using="web")] == ["it is not blocked"]
    assert blocked() == [(other, "parked", False, 10), (kept, "parked", False, 10)]
    assert statuses() == {own: "skipped", other: "failed", kept: "failed"}


def test_store_skips_a_message_as_it_fails(stores: list[UUID], tune: Callable[..., None]) -> None:
    """The store's statement began before the row that parks the aggregate was there, so a relay's sweep finds it."""
    tune(sweep_s=0.1)
    head, behind = (write(aggregate="1", kind=scene.ORDERS, store=stores[0]) for _ in range(2))
    kept = write("failed", aggregate="2", kind=scene.ORDERS)
    block(kept, "parked")

    def skip() -> list[ActionResult[int]]:
        with tenant_context(stores[0], using="web"):
            return skip_messages([head], using="web")

    with ThreadPoolExecutor(1) as pool, psycopg.connect(url_for("worker_runtime")) as failing:
        failing.execute("UPDATE salon_jobs_message SET status = 'failed', ended_at = now() WHERE id = %s", [head])
        failing.execute(
            "INSERT INTO salon_jobs_blocked_aggregate (aggregate_type, aggregate_id, partition, head_id, status)"
            " SELECT aggregate_type, aggregate_id, partition, id, 'parked' FROM salon_jobs_message WHERE id = %s",
            [head],
        )
        skipping = elsewhere(pool, skip)
        wait_until_waiting()
        failing.commit()
        assert skipping.result(LIMIT_S) == [ActionResult(head, True)]
    assert [row[0] for row in blocked()] == [head, kept]
    with relaying():
        eventually(statuses, {head: "skipped", behind: "published", kept: "failed"})
    assert [row[0] for row in blocked()] == [kept]


def test_unpark_by_pairs_and_by_destination() -> None:
    heads = [write("failed", aggregate=str(number)) for number in range(3)]
    alone, elsewhere_ = write(), write("failed", aggregate="0", kind="rn::nats:::stock")
    for head in (*heads, elsewhere_):
        block(head, "parked")
    block(alone, "waiting")
    assert unpark([(ORDERS, "1"), (ORDERS, "nobody"), ("rn::nats:::stock", "1")], using=OPERATOR) == [
        ActionResult((ORDERS, "1"), True),
        ActionResult((ORDERS, "nobody"), False, "it is not blocked"),
        ActionResult(("rn::nats:::stock", "1"), False, "it is not blocked"),
    ]
    assert [row[:2] for row in blocked() if row[2]] == [(heads[1], "waiting")]
    results = unpark(aggregate_type=ORDERS, using=OPERATOR)
    assert [each.changed for each in results] == [True] * 4
    assert {row[0] for row in blocked() if row[2]} == {*heads, alone}
    for wrong in ({}, {"aggregates": [(ORDERS, "1")], "aggregate_type": ORDERS}):
        with pytest.raises(OptionInvalid, match="pass aggregates, or aggregate_type"):
            unpark(using=OPERATOR, **wrong)  # type: ignore[arg-type]


def test_unpark_behind_messages_that_have_ended() -> None:
    ended, pruned = write("failed", aggregate="1"), write("failed", aggregate="2")
    block(ended, "parked")
    block(pruned, "parked")
    change("UPDATE salon_jobs_message SET status = 'published', sent_at = now(), ended_at = NULL WHERE id = %s", ended)
    change("DELETE FROM salon_jobs_message WHERE id = %s", pruned)
    assert [each.changed for each in unpark([(ORDERS, "1"), (ORDERS, "2")], using=OPERATOR)] == [True, True]
    assert blocked() == []


def test_head_that_blocks_nothing_is_not_unparked() -> None:
    """Of rows that an operator chose, those whose aggregate continued meanwhile are not counted."""
    gone, sent, parked = write("failed", aggregate="1"), write("published", aggregate="2"), write("skipped")
    block(parked, "parked")
    change("DELETE FROM salon_jobs_message WHERE id = %s", gone)
    assert retry_heads([gone, sent, parked], using=OPERATOR) == [
        ActionResult(gone, False, GONE),
        ActionResult(sent, False, "it is published; only failed and waiting messages can be retried"),
        ActionResult(parked, True),
    ]
    assert blocked() == []


def test_pause_keeps_the_tokens() -> None:
    states = "SELECT aggregate_type, paused, tokens FROM salon_jobs_destination"
    pause_destination(ORDERS, using=OPERATOR)
    change("UPDATE salon_jobs_destination SET tokens = 5")
    pause_destination(ORDERS, using=OPERATOR)
    assert seen(states) == [(ORDERS, True, 5.0)]
    resume_destination(ORDERS, using=OPERATOR)
    assert seen(states) == [(ORDERS, False, 5.0)]
    with pytest.raises(MessageInvalid, match="malformed"):
        pause_destination("orders", using=OPERATOR)


@pytest.mark.parametrize(
    ("operate", "status"), [(retry_messages, "pending"), (skip_messages, "pending"), (send_skipped_messages, "skipped")]
)
def test_mark_of_a_relay_comes_first(operate: Callable[..., list[ActionResult[int]]], status: str) -> None:
    message = write(status, aggregate="42")
    block(message, "waiting")
    marked = "UPDATE salon_jobs_message SET status = 'published', sent_at = now(), ended_at = NULL WHERE id = %s"
    with psycopg.connect(url_for("worker_runtime")) as relay, ThreadPoolExecutor(1) as pool:
        relay.execute(marked.encode(), [message])
        relay.execute("DELETE FROM salon_jobs_blocked_aggregate WHERE head_id = %s", [message])
        work = elsewhere(pool, lambda: operate([message], using=OPERATOR))
        wait_until_waiting()
        relay.commit()
        [result] = work.result(LIMIT_S)
    assert not result.changed
    assert result.detail.startswith("it is published; only ")
    assert statuses() == {message: "published"}
    assert blocked() == []


def test_two_operators_do_not_deadlock() -> None:
    ids = [write("failed", aggregate=str(number % 50)) for number in range(300)]
    with ThreadPoolExecutor(2) as pool:
        works = [elsewhere(pool, lambda o=o: retry_messages(o, using=OPERATOR)) for o in (ids, ids[::-1])]  # type: ignore[misc]
        results = [work.result(LIMIT_S) for work in works]
    assert sum(each.changed for result in results for each in result) == 300 + 50, "the second retries the heads again"
    assert {row[0] for row in blocked()} == set(ids[:50])


@pytest.mark.parametrize(
    ("work", "news"),
    [
        (lambda head: retry_messages([head], using=OPERATOR), "operator"),
        (lambda head: skip_messages([head], using=OPERATOR), "operator"),
        (lambda head: unpark([(ORDERS, "42")], using=OPERATOR), "operator"),
        (lambda head: pause_destination(ORDERS, using=OPERATOR), "operator"),
        (lambda head: resume_destination(ORDERS, using=OPERATOR), "operator"),
        (lambda head: replay_messages(MessageCriteria(ids=(head,)), requested_by="a", reason="b", using=OPERATOR), ""),
    ],
    ids=["retry", "skip", "unpark", "pause", "resume", "replay"],
)
def test_relays_are_notified_after_the_commit(work: Callable[[int], object], news: str) -> None:
    head = write("failed", aggregate="42")
    block(head, "parked")
    with psycopg.connect(url_for("worker_runtime"), autocommit=True) as relay:
        relay.execute("LISTEN salon_jobs_message")
        with transaction.atomic(OPERATOR):
            work(head)
            assert list(relay.notifies(timeout=0)) == []
        assert [notification.payload for notification in relay.notifies(timeout=LIMIT_S, stop_after=1)] == [news]


def test_many_go_in_batches(tune: Callable[..., None]) -> None:
    tune(changed_at_once=100)
    fill(250, "'failed'", to=ORDERS)
    assert sum(each.changed for each in retry_messages(ids(), using=OPERATOR)) == 250
    assert len(blocked()) == 250


def has_ended(**expected: int) -> None:
    """Wait until the relay has left the messages like this, and blocks nothing."""
    eventually(lambda: scene.statuses() == expected and blocked() == [])


def test_relay_finds_a_retried_message_below_its_cursor() -> None:
    answer_with(Verdict.REFUSED, times=1)
    emitted(number=1)
    with relaying():
        eventually(scene.statuses, {"failed": 1})
        emitted(number=2)
        eventually(arrived, [("", 2)])
        assert retry_messages(ids()[:1], using=OPERATOR)[0].changed
        eventually(arrived, [("", 2), ("", 1)])
        has_ended(published=2)


def test_relay_goes_on_behind_skipped_and_unparked_heads() -> None:
    answer_with(Verdict.REFUSED, aggregate="a", times=2)
    for number in range(3):
        emitted("a", number=number)
    held = "SELECT status, code FROM salon_jobs_blocked_aggregate"
    with relaying():
        eventually(lambda: scene.statuses() == {"failed": 1, "pending": 2} and len(blocked()) == 1)
        emitted("b", number=9)
        eventually(arrived, [("b", 9)])
        assert skip_messages(ids()[:1], using=OPERATOR)[0].changed
        eventually(scene.statuses, {"skipped": 1, "failed": 1, "pending": 1, "published": 1})
        eventually(lambda: seen(held), [("parked", "TEST.NO")])
        assert [each.changed for each in unpark([(scene.ORDERS, "a")], using=OPERATOR)] == [True]
        has_ended(skipped=1, published=3)
    assert arrived() == [("b", 9), ("a", 1), ("a", 2)]


def test_relay_sends_nothing_to_a_paused_destination() -> None:
    pause_destination(scene.ORDERS, using=OPERATOR)
    with relaying():
        emitted("a", number=1)
        emitted("b", number=2, to="rn::memory:::stock")
        eventually(lambda: arrived("rn::memory:::stock"), [("b", 2)])
        assert arrived() == []
        resume_destination(scene.ORDERS, using=OPERATOR)
        eventually(arrived, [("a", 1)])


@pytest.mark.parametrize("waits_for", ["its destination", "the broker", "others"])
def test_skipped_message_in_memory_is_not_sent(waits_for: str, change_settings: Callable[..., None]) -> None:
    """A relay has read it already, and may have to wait for hours before it can send anything."""
    change_settings(OUTBOX={"FETCH_LIMIT": 1})
    go_on = Event()
    if waits_for == "its destination":
        pause_destination(scene.ORDERS, using=OPERATOR)
    elif waits_for == "the broker":
        answer_with(Verdict.OUTAGE)
    else:
        answer_after(go_on)
    for number, aggregate in enumerate("abbb"):
        emitted(aggregate, number=number)
    with relaying() as running:
        eventually(lambda: in_memory(running), 4)
        skip_messages(ids()[2:], using=OPERATOR)
        eventually(lambda: in_memory(running), 2)
        MemoryPublisher.answer = None
        go_on.set()
        resume_destination(scene.ORDERS, using=OPERATOR)
        has_ended(published=2, skipped=2)
    assert sorted(arrived()) == [("a", 0), ("b", 1)]


def answer_after(event: Event) -> None:
    """Have the broker be slow until then."""

    def answer(_: OutgoingMessage) -> None:
        assert event.wait(LIMIT_S)

    MemoryPublisher.answer = answer


def in_memory(running: RunningRelay) -> int:
    """Return how many messages a relay has read and not marked."""
    return sum(each["in_memory"] for each in running.facts()["destinations"].values())


def test_relay_sends_a_replay_in_order() -> None:
    """Each message says what it repeats."""
    originals = [emitted("a", number=number) for number in range(3)]
    with relaying():
        eventually(scene.statuses, {"published": 3})
        criteria = MessageCriteria(aggregate_type=scene.ORDERS, from_id=1)
        replay_messages(criteria, requested_by="kei", reason="lost", using=OPERATOR)
        eventually(scene.statuses, {"published": 6})
    assert arrived() == [("a", 0), ("a", 1), ("a", 2)] * 2
    again = list(MemoryPublisher.published)[3:]
    assert [message.replay_of for message in again] == originals
    assert not {message.message_id for message in again} & set(originals)
