"""Shows what a real relay sends after operators retried, skipped, unparked, paused and sent messages again."""

from __future__ import annotations

from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import Verdict
from salon_jobs.control import (
    MessageCriteria,
    pause_destination,
    replay_messages,
    resume_destination,
    retry_messages,
    skip_messages,
    unpark,
)
from tests.outbox.scene import ORDERS, answer_with, arrived, blocked_count, emitted, ids, relaying, statuses
from tests.support import seen
from tests.waiting import eventually

OPERATOR = "operator"
HELD = "SELECT status, code FROM salon_jobs_blocked_aggregate"


def test_a_failed_message_of_no_aggregate_is_found_again_below_the_cursor() -> None:
    answer_with(Verdict.REFUSED, times=1)
    emitted(number=1)
    with relaying():
        eventually(statuses, {"failed": 1})
        emitted(number=2)
        eventually(arrived, [("", 2)])
        assert retry_messages(ids()[:1], using=OPERATOR)[0].changed
        eventually(arrived, [("", 2), ("", 1)])
        eventually(lambda: statuses() == {"published": 2} and blocked_count() == 0)


def test_an_aggregate_goes_on_behind_a_skipped_head_and_an_unparked_one() -> None:
    answer_with(Verdict.REFUSED, aggregate="a", times=2)
    for number in range(3):
        emitted("a", number=number)
    with relaying():
        eventually(lambda: statuses() == {"failed": 1, "pending": 2} and blocked_count() == 1)
        emitted("b", number=9)
        eventually(arrived, [("b", 9)])
        assert skip_messages(ids()[:1], using=OPERATOR)[0].changed
        eventually(statuses, {"skipped": 1, "failed": 1, "pending": 1, "published": 1})
        eventually(lambda: seen(HELD), [("parked", "TEST.NO")])
        assert [each.changed for each in unpark([(ORDERS, "a")], using=OPERATOR)] == [True]
        eventually(lambda: statuses() == {"skipped": 1, "published": 3} and blocked_count() == 0)
    assert arrived() == [("b", 9), ("a", 1), ("a", 2)]


def test_a_paused_destination_gets_nothing_until_it_is_resumed() -> None:
    pause_destination(ORDERS, using=OPERATOR)
    with relaying():
        emitted("a", number=1)
        emitted("b", number=2, to="rn::memory:::stock")
        eventually(lambda: arrived("rn::memory:::stock"), [("b", 2)])
        assert arrived() == []
        resume_destination(ORDERS, using=OPERATOR)
        eventually(arrived, [("a", 1)])


def test_a_replay_arrives_in_order_and_says_what_it_repeats() -> None:
    originals = [emitted("a", number=number) for number in range(3)]
    with relaying():
        eventually(statuses, {"published": 3})
        criteria = MessageCriteria(aggregate_type=ORDERS, from_id=1)
        replay_messages(criteria, requested_by="kei", reason="lost", using=OPERATOR)
        eventually(statuses, {"published": 6})
    assert arrived() == [("a", 0), ("a", 1), ("a", 2)] * 2
    again = list(MemoryPublisher.published)[3:]
    assert [message.replay_of for message in again] == originals
    assert not {message.message_id for message in again} & set(originals)
