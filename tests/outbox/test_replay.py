"""Shows how messages are sent again on purpose: which, in what order, as what, and what is written about it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from salon_jobs.control import ActionResult, MessageCriteria, replay_messages
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.models import Message
from salon_jobs.models.fields import first_id_at
from tests.outbox.rows import OPERATOR, ORDERS, write
from tests.outbox.scene import fill
from tests.settings import url_for
from tests.support import change, elsewhere, seen, wait_until_waiting
from tests.waiting import LIMIT_S

WHY: dict[str, Any] = {"requested_by": "kei", "reason": "the warehouse lost them", "using": OPERATOR}
NEW = "SELECT id FROM salon_jobs_message WHERE replay_of IS NOT NULL"


def test_replay_of_ids(stores: list[UUID]) -> None:
    sent = write("published", aggregate="42", store=stores[0])
    change("UPDATE salon_jobs_message SET producer = 'till' WHERE id = %s", sent)
    failed, pending = write("failed", aggregate="42", store=stores[0]), write()
    done = replay_messages(MessageCriteria(ids=(pending, failed, sent, 10**12)), **WHY)
    assert (done.messages, done.first, done.last) == (2, sent, failed)
    assert done.refused == (
        ActionResult(pending, False, "it is pending; only failed, published, skipped ones are sent again"),
        ActionResult(10**12, False, "there is no such message, or you may not see it"),
    )
    same = "aggregate_type, aggregate_id, event, payload::text, headers::text, store_id, producer"
    [first, second] = seen(
        f"SELECT status, retry_count, {same} FROM salon_jobs_message WHERE replay_of IS NOT NULL ORDER BY id"
    )
    assert first == ("pending", 0, *seen(f"SELECT {same} FROM salon_jobs_message WHERE id = %s", sent)[0])
    assert second[-1] == ""
    assert seen(
        "SELECT o.id, n.message_id <> o.message_id FROM salon_jobs_message n"
        " JOIN salon_jobs_message o ON o.message_id = n.replay_of ORDER BY n.id"
    ) == [(sent, True), (failed, True)]
    criteria = {"ids": [pending, failed, sent, 10**12], "statuses": ["failed", "published", "skipped"]}
    rows = seen("SELECT id, requested_by, reason, criteria::json, messages FROM salon_jobs_replay")
    assert rows == [(done.replay_id, "kei", "the warehouse lost them", criteria, 2)]


def test_range_of_ids() -> None:
    ids = [write("published", aggregate=str(number % 2)) for number in range(6)]
    write("published", kind="rn::nats:::stock")
    skipped = write("skipped", aggregate="1")

    def would(**criteria: Any) -> tuple[int, int | None, int | None]:
        found = replay_messages(MessageCriteria(aggregate_type=ORDERS, **criteria), dry_run=True, using=OPERATOR)
        return found.messages, found.first, found.last

    assert would(from_id=1) == (7, ids[0], skipped)
    assert would(from_id=ids[1], to_id=ids[4]) == (4, ids[1], ids[4])
    assert would(from_id=1, aggregate_id="1") == (4, ids[1], skipped)
    assert would(from_id=1, statuses=("skipped",)) == (1, skipped, skipped)
    assert would(from_id=1, event="nonsense") == (0, None, None)
    assert seen(NEW) == []
    assert seen("SELECT count(*) FROM salon_jobs_replay") == [(0,)]
    assert replay_messages(MessageCriteria(aggregate_type=ORDERS, from_id=1, event="nonsense"), **WHY).replay_id is None
    assert seen("SELECT count(*) FROM salon_jobs_replay") == [(0,)]


def test_range_of_times() -> None:
    start = datetime(2026, 5, 6, tzinfo=UTC)
    fill(1000, "'published'", to=ORDERS, created_at=f"'{start}'::timestamptz + (n - 1) * interval '1 minute'")
    change("DELETE FROM salon_jobs_message WHERE id %% 7 = 0")
    for minutes in (-5, 0, 333, 999, 2000):
        at = start + timedelta(minutes=minutes)
        [(expected,)] = seen("SELECT min(id) FROM salon_jobs_message WHERE created_at >= %s", at)
        found = first_id_at(at, Message.objects.using(OPERATOR))
        assert seen("SELECT min(id) FROM salon_jobs_message WHERE id >= %s", found) == [(expected,)]
    since, until = start + timedelta(minutes=100), start + timedelta(minutes=200)
    would = replay_messages(
        MessageCriteria(aggregate_type=ORDERS, since=since, until=until), dry_run=True, using=OPERATOR
    )
    assert [(would.messages, would.first, would.last)] == seen(
        "SELECT count(*), min(id), max(id) FROM salon_jobs_message WHERE created_at >= %s AND created_at < %s",
        since,
        until,
    )


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ({}, "aggregate_type with a range"),
        ({"ids": (1,), "aggregate_type": ORDERS}, "by ids, or by aggregate_type"),
        ({"ids": (1,), "event": "made"}, "omit aggregate_id and event"),
        ({"aggregate_type": ORDERS}, "needs a range"),
        ({"from_id": 1}, "aggregate_type needs a range"),
        ({"aggregate_type": ORDERS, "since": datetime(2026, 5, 6)}, "since must be a datetime with a time zone"),  # noqa: DTZ001
        ({"ids": (1,), "statuses": ("pending",)}, "statuses must be some of"),
        ({"ids": (1,), "statuses": ()}, "statuses must be some of"),
    ],
)
def test_wrong_criteria(criteria: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionInvalid, match=message):
        replay_messages(MessageCriteria(**criteria), **WHY)


@pytest.mark.parametrize(
    "said", [{}, {"requested_by": "kei"}, {"reason": "x"}, {"requested_by": "kei", "reason": "x" * 1001}]
)
def test_name_and_reason_are_required(said: dict[str, str]) -> None:
    with pytest.raises(OptionInvalid, match=r"requested_by, and a reason|reason must be a string of 1 to 1000"):
        replay_messages(MessageCriteria(ids=(write("failed"),)), using=OPERATOR, **said)  # type: ignore[arg-type]
    assert seen(NEW) == []


def test_too_many_are_refused(tune: Callable[..., None]) -> None:
    tune(most_replayed=3)
    for _ in range(4):
        write("published")
    criteria = MessageCriteria(aggregate_type=ORDERS, from_id=1)
    for dry_run in (True, False):
        with pytest.raises(OptionInvalid, match="more than 3 messages match; name a smaller range"):
            replay_messages(criteria, dry_run=dry_run, **WHY)
    assert seen(NEW) == []


def test_order_is_kept_across_batches(tune: Callable[..., None]) -> None:
    tune(changed_at_once=100)
    fill(300, "'published'", to=ORDERS, aggregate_id="mod(n, 3)::text", payload="to_json(n)")
    assert replay_messages(MessageCriteria(aggregate_type=ORDERS, from_id=1), **WHY).messages == 300
    again = seen("SELECT payload::text::int FROM salon_jobs_message WHERE replay_of IS NOT NULL ORDER BY id")
    assert again == [(n,) for n in range(1, 301)]


def test_message_being_retried_is_left_out() -> None:
    message = write("failed")
    with psycopg.connect(url_for("jobs_operator")) as other, ThreadPoolExecutor(1) as pool:
        other.execute("UPDATE salon_jobs_message SET status = 'pending', ended_at = NULL WHERE id = %s", [message])
        work = elsewhere(pool, lambda: replay_messages(MessageCriteria(ids=(message,)), **WHY))
        wait_until_waiting()
        other.commit()
        done = work.result(LIMIT_S)
    assert (done.messages, done.replay_id) == (0, None)
    assert done.refused[0].detail.startswith("it is pending; only ")
    assert seen(NEW) == []
