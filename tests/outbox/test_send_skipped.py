"""Sends messages that were skipped: under their own ids, in their order, and none past what blocks its aggregate."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from django.db import transaction

from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.control import ActionResult, pause_destination, resume_destination, skip_messages
from salon_jobs.outbox.control import send_skipped_messages
from tests.outbox.rows import OPERATOR, block, blocked, write
from tests.outbox.scene import (
    ORDERS,
    arrived,
    emitted,
    fill,
    ids,
    numbers_by_aggregate,
    relay_in_burst,
    relaying,
    statuses,
)
from tests.support import change, seen
from tests.waiting import eventually


@pytest.fixture
def denied() -> set[str]:
    """Skip these events, as a list of the settings does."""
    events: set[str] = set()

    def answer(message: OutgoingMessage) -> PublishFailure | None:
        denied = message.event in events
        return PublishFailure(Verdict.SKIPPED, "SNS.EVENT_SKIPPED", "in SKIP_EVENTS") if denied else None

    MemoryPublisher.answer = answer
    return events


def skipped() -> list[int]:
    return [row[0] for row in seen("SELECT id FROM salon_jobs_message WHERE status = 'skipped' ORDER BY id")]


def changed(results: list[ActionResult[int]]) -> int:
    return sum(result.changed for result in results)


def test_order_and_ids_are_kept(denied: set[str]) -> None:
    """They arrive before what still waits."""
    denied.add("seen")
    for number in range(4):
        for aggregate in ("a", "b", ""):
            emitted(aggregate, event="seen", number=number)
    emitted("a", number=4)
    assert relay_in_burst()
    assert arrived() == [("a", 4)]
    emitted("a", number=5)  # written, and not relayed yet
    ids = seen("SELECT id, message_id FROM salon_jobs_message ORDER BY id")

    denied.clear()
    chosen = skipped()[::-1]
    assert send_skipped_messages(chosen, using=OPERATOR) == [ActionResult(each, True) for each in chosen]
    assert relay_in_burst()
    assert statuses() == {"published": 14}
    of = numbers_by_aggregate()
    assert (of["a"], of["b"], sorted(of[""])) == ([4, 0, 1, 2, 3, 5], [0, 1, 2, 3], [0, 1, 2, 3])
    assert seen("SELECT id, message_id FROM salon_jobs_message ORDER BY id") == ids
    assert {message.message_id for message in MemoryPublisher.published} == {row[1] for row in ids}
    assert blocked() == []


def test_running_relay_keeps_the_order_of_many(denied: set[str], tune: Callable[..., None]) -> None:
    tune(changed_at_once=100)
    denied.add("seen")
    fill(1500, aggregate_id="mod(n, 3)::text", event="'seen'", payload="json_build_object('number', n)")
    with relaying():
        eventually(statuses, {"skipped": 1500})
        denied.clear()
        assert changed(send_skipped_messages(skipped(), using=OPERATOR)) == 1500
        eventually(statuses, {"published": 1500})
    assert numbers_by_aggregate() == {str(n): [*range(n or 3, 1501, 3)] for n in range(3)}


@pytest.mark.parametrize("in_memory", [False, True])
def test_earlier_messages_go_first(in_memory: bool) -> None:
    pause_destination(ORDERS, using=OPERATOR)
    for number in range(4):
        emitted("a", number=number)
    assert changed(skip_messages(ids()[2:3], using=OPERATOR)) == 1
    if not in_memory:
        assert changed(send_skipped_messages(ids()[2:3], using=OPERATOR)) == 1
    with relaying() as relay:
        if in_memory:
            eventually(lambda: relay.facts()["destinations"].get(ORDERS, {}).get("in_memory"), 3)
            assert changed(send_skipped_messages(ids()[2:3], using=OPERATOR)) == 1
            eventually(lambda: relay.facts()["destinations"][ORDERS]["in_memory"] != 3)
        resume_destination(ORDERS, using=OPERATOR)
        eventually(statuses, {"published": 4})
    assert [number for _, number in arrived()] == [0, 1, 2, 3]
    assert blocked() == []


def test_behind_a_skipped_and_an_unresolvable_message() -> None:
    accepted: set[int] = set()

    def answer(message: OutgoingMessage) -> PublishFailure | None:
        number = json.loads(message.payload)["number"]
        return None if number in accepted else PublishFailure(Verdict.UNRESOLVABLE, "TEST.NOWHERE")

    MemoryPublisher.answer = answer
    for number in range(4):
        emitted("a", number=number)
    with relaying():
        eventually(lambda: [row[0] for row in blocked()] == ids()[:1])
        accepted.update({0, 2, 3})
        with transaction.atomic(using=OPERATOR):  # the relay sees all three at once
            for operate, number in ((skip_messages, 0), (skip_messages, 2), (send_skipped_messages, 2)):
                assert changed(operate(ids()[number : number + 1], using=OPERATOR)) == 1
        # The row stands for the first that is not sent, and says why.
        held = "SELECT head_id, code FROM salon_jobs_blocked_aggregate"
        eventually(lambda: seen(held) == [(ids()[1], "TEST.NOWHERE")])
        accepted.add(1)
        eventually(statuses, {"published": 3, "skipped": 1})
    assert arrived() == [("a", 1), ("a", 2), ("a", 3)]
    assert blocked() == []


@pytest.mark.parametrize(("status", "blocks"), [("failed", "parked"), ("pending", "waiting")])
def test_blocked_aggregate_stays_skipped(status: str, blocks: str) -> None:
    """The answer says what blocks it."""
    before, head, behind, free = write(aggregate="7"), write(status, aggregate="7"), write(aggregate="7"), write()
    block(head, blocks)
    change(
        "UPDATE salon_jobs_message SET status = 'skipped', ended_at = now() WHERE id = ANY (%s)", [before, behind, free]
    )
    rows = blocked()
    why = f"message {head} blocks its aggregate; send this one when that one is sent or skipped"
    assert send_skipped_messages([before, behind, free, 999], using=OPERATOR) == [
        ActionResult(before, False, why),
        ActionResult(behind, False, why),
        ActionResult(free, True),
        ActionResult(999, False, "there is no such message, or you may not see it"),
    ]
    assert blocked() == [*rows, (free, "waiting", True, 0)]
    assert skipped() == [before, behind]
