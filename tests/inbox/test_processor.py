"""Turns deliveries into jobs on a real database as the worker role: each message into one job, whatever happens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest
from django.db import OperationalError, connections

from salon_jobs.brokers.source import Delivery
from salon_jobs.conf.sections import read_consumers
from salon_jobs.core.errors import PayloadInvalid
from salon_jobs.inbox import queries as inbox
from salon_jobs.inbox.processor import BatchResult, Processor
from salon_jobs.inbox.queries import take_store
from salon_jobs.jobs.pruning import Pruner
from tests.inbox.memory_source import again, message
from tests.settings import url_for
from tests.support import change, elsewhere, new_store_id, seen
from tests.waiting import LIMIT_S

TASKS = {"noted": "test-system", "placed": "test-store", "keyed": "test-keyed-system"}
pytestmark = pytest.mark.usefixtures("database")


def processor(name: str = "orders", **settings: Any) -> Processor:
    given = {"SOURCE": "rn::memory:::orders", "TASKS": TASKS, **settings}
    return Processor(name, read_consumers({name: given})[name], using="default")


def jobs() -> list[tuple[Any, ...]]:
    rows = seen("SELECT task, store_id, payload FROM salon_jobs_job ORDER BY id")
    return [(task, store_id, json.loads(payload)) for task, store_id, payload in rows]


def inbox_rows() -> list[tuple[Any, ...]]:
    return seen("SELECT message_id, status, code FROM salon_jobs_inbox ORDER BY id")


def counts(result: BatchResult) -> tuple[int, int, int, int, int]:
    return result.enqueued, result.duplicates, result.rejected, len(result.acknowledge), len(result.give_back)


def id_of(delivery: Delivery) -> str:
    assert delivery.envelope is not None
    return delivery.envelope.message_id


def test_batch_becomes_jobs(stores: list[UUID]) -> None:
    placed = message('{"number": 3}', "placed", store_id=str(stores[1]))
    batch = [message('{"note": "a"}'), placed, message('{"note": "b"}')]
    result = processor().process(batch)
    assert counts(result) == (3, 0, 0, 3, 0)
    assert result.acknowledge == batch
    system = [("test-system", None, {"note": note}) for note in "ab"]
    assert sorted(jobs(), key=str) == sorted([*system, ("test-store", stores[1], {"number": 3})], key=str)
    linked = seen(
        "SELECT i.message_id, j.payload ->> 'note', i.store_id, i.producer, i.event, i.raw FROM salon_jobs_inbox i"
        " JOIN salon_jobs_job j ON j.id = i.job_id"
    )
    assert set(linked) == {
        (id_of(batch[0]), "a", None, "test", "noted", ""),
        (id_of(batch[1]), None, stores[1], "test", "placed", ""),
        (id_of(batch[2]), "b", None, "test", "noted", ""),
    }


def test_message_delivered_twice_becomes_one_job() -> None:
    first, other = message(), message()
    # A crash between the commit and the acknowledgement looks like this: the whole batch comes again.
    assert counts(processor().process([first, other, again(first)])) == (2, 1, 0, 3, 0)
    result = processor().process([again(other), again(first), message()])
    assert counts(result) == (1, 2, 0, 3, 0)
    assert len(jobs()) == 3


def test_two_consumers_at_once() -> None:
    batch = [message() for _ in range(50)]
    together = threading.Barrier(2, timeout=LIMIT_S)

    def take(deliveries: list[Delivery]) -> int:
        together.wait()
        return sum(processor().process(deliveries[n : n + 10]).enqueued for n in range(0, 50, 10))

    with ThreadPoolExecutor(2) as pool:
        counting = [elsewhere(pool, lambda: take(batch)), elsewhere(pool, lambda: take(batch[::-1]))]
        assert sum(each.result(LIMIT_S) for each in counting) == 50
    assert len(jobs()) == 50


@pytest.mark.parametrize(("stored_s_ago", "enqueued"), [(60, 0), (-60, 1)], ids=["the same", "of a stream made again"])
def test_id_that_an_earlier_release_stored(stored_s_ago: int, enqueued: int) -> None:
    """It is that of a message only if it was received after that one was stored."""
    processor().process([message(message_id="orders:1")])
    stored_at = datetime.now(tz=UTC) - timedelta(seconds=stored_s_ago)
    now = replace(message(message_id="orders:1:17"), former_id="orders:1", stored_at=stored_at)
    other = replace(message(), former_id="orders:2", stored_at=stored_at)
    result = processor().process([now, other])
    assert counts(result) == (1 + enqueued, 1 - enqueued, 0, 2, 0)
    assert result.acknowledge == [now, other]


def test_equal_payloads_and_other_consumers() -> None:
    one = message('{"note": "same"}')
    assert processor().process([one, message('{"note": "same"}')]).enqueued == 2
    assert processor("audit").process([again(one)]).enqueued == 1


NO_ARGUMENTS = (
    *('{"note": 7}', '{"nope": 7}', "[1]", "{", "[" * 100_000, '{"note": "\\u0000"}', '{"note": "\\ud800"}'),
    f'{{"note": "{"x" * 1_048_577}"}}',
)


@pytest.mark.parametrize(
    ("delivery", "code"),
    [
        *((message(payload), "JOB.PAYLOAD_INVALID") for payload in NO_ARGUMENTS),
        *((message(event="placed", store_id=text), "JOB.PAYLOAD_INVALID") for text in ("", "no key")),
        (message(f'{{"store_id": "{new_store_id()}"}}', "placed", store_id=str(new_store_id())), "JOB.PAYLOAD_INVALID"),
        (message('{"note": "' + "x" * 2000 + '"}', "keyed"), "JOB.PAYLOAD_INVALID"),
        *((message(message_id=text), "INBOX.UNREADABLE") for text in ("", "x" * 256, "a\0b")),
        (Delivery(count=1, raw="gar\0bage \ud800", handle=1, fault="no JSON"), "INBOX.UNREADABLE"),
        (message(event="unheard-of"), "INBOX.UNKNOWN_EVENT"),
        (message(producer="stranger"), "INBOX.PRODUCER_REFUSED"),
        (message(replay_of=str(uuid4())), "INBOX.REPLAY_REFUSED"),
    ],
)
def test_rejected_message_holds_up_no_other(delivery: Delivery, code: str) -> None:
    good = message()
    result = processor(PRODUCERS=["test"], REPLAYS="refuse").process([delivery, good])
    assert counts(result) == (1, 0, 1, 2, 0)
    assert {row[1:] for row in inbox_rows()} == {("rejected", code), ("enqueued", "")}
    assert counts(processor(PRODUCERS=["test"], REPLAYS="refuse").process([again(delivery)])) == (0, 1, 0, 1, 0)
    assert len(jobs()) == 1


def test_field_that_an_event_gained() -> None:
    """It is ignored, unless the consumer rejects what it does not know."""
    grown = message('{"note": "a", "colour": "red"}')
    assert counts(processor(UNKNOWN_FIELDS="reject").process([grown])) == (0, 0, 1, 1, 0)
    assert seen("SELECT reason LIKE '%%no argument ''colour''%%' FROM salon_jobs_inbox") == [(True,)]
    assert counts(processor("audit").process([again(grown)])) == (1, 0, 0, 1, 0)
    assert jobs() == [("test-system", None, {"note": "a"})]


def test_numbers_keep_their_digits() -> None:
    """Another program writes a price as a number of JSON."""
    digits = "12345678901234567890.12345678901234567890"
    priced = processor(TASKS={"priced": "test-priced"})
    batch = [message(f'{{"price": {digits}, "share": 0.5, "parts": [1.10, {digits}]}}', "priced")]
    assert counts(priced.process(batch)) == (1, 0, 0, 1, 0)
    assert jobs() == [("test-priced", None, {"price": digits, "share": 0.5, "parts": ["1.10", digits]})]


def test_two_names_of_the_store_agree() -> None:
    first, second = new_store_id(), new_store_id()
    named: Any = SimpleNamespace(store_name="salon_id")
    one, other = (msgspec.Raw(f'"{store}"'.encode()) for store in (first, second))
    assert take_store({"salon_id": one, "store_id": one}, named) == take_store({"salon_id": one}, named) == first
    assert take_store({"number": msgspec.Raw(b"1")}, named) is None
    with pytest.raises(PayloadInvalid, match="names two stores, as store_id and as salon_id"):
        take_store({"salon_id": one, "store_id": other}, named)


def plain(raw: str, broker_id: str = "azure-1", *, count: int = 1) -> Delivery:
    return Delivery(count=count, raw=raw, handle=object(), fault="it is no message of ours", broker_id=broker_id)


PLAIN = {"SOURCE": "rn::azurequeue:::parse-tasks", "ENVELOPE": "none"}


def test_body_without_an_envelope(stores: list[UUID]) -> None:
    system = processor(**PLAIN, TASKS={"*": "test-system"})
    body = '{"note": "a"}'
    assert counts(system.process([plain(body, "1"), plain(body, "2")])) == (2, 0, 0, 2, 0)
    assert counts(system.process([plain(body, "1", count=2)])) == (0, 1, 0, 1, 0)

    of_the_body = processor(**PLAIN, TASKS={"*": "test-store"})
    assert counts(of_the_body.process([plain(f'{{"number": 7, "store_id": "{stores[1]}"}}', "3")])) == (1, 0, 0, 1, 0)
    of_one_store = processor(**PLAIN, TASKS={"*": "test-store"}, STORE=str(stores[0]))
    assert counts(of_one_store.process([plain('{"number": 8}', "4")])) == (1, 0, 0, 1, 0)

    # What looks like an envelope is none here.
    looks = plain('{"envelope": "1", "message_id": "9", "event": "noted", "payload": {}}', "5")
    ours = Delivery(count=1, raw=looks.raw, handle=1, envelope=message().envelope, broker_id="5")
    assert counts(system.process([ours])) == (0, 0, 1, 1, 0)

    assert jobs() == [
        ("test-system", None, {"note": "a"}),
        ("test-system", None, {"note": "a"}),
        ("test-store", stores[1], {"number": 7}),
        ("test-store", stores[0], {"number": 8}),
    ]
    assert inbox_rows() == [*((str(n), "enqueued", "") for n in (1, 2, 3, 4)), ("5", "rejected", "JOB.PAYLOAD_INVALID")]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("{", "its body is not JSON, plain or in base64: Input data was truncated"),
        ("bm8ganNvbg", "its body is not JSON, plain or in base64: JSON is malformed"),
        ("", "its body is not JSON, plain or in base64"),
        ('{"number": ' + "[" * 100_000, "its body is not JSON, plain or in base64"),
        ("[1]", "its body must be a JSON object: Expected `object`, got `array`"),
        ('"a"', "its body must be a JSON object: Expected `object`, got `str`"),
        ('{"number": "x", "store_id": "STORE"}', "number"),
        ('{"number": 1}', "its body has no store_id; send one, or set STORE when all are one store's"),
        ('{"number": 1, "store_id": "not mine"}', "its store ID must be"),
        ('{"number": 1, "store_id": 5.5}', "its store ID must be"),
    ],
)
def test_wrong_body_without_an_envelope(stores: list[UUID], raw: str, reason: str) -> None:
    """It is rejected, and can be tried again."""
    consumer = processor(**PLAIN, TASKS={"*": "test-store"})
    good = plain(f'{{"store_id": "{stores[0]}"}}', "good")
    bad = raw.replace("STORE", str(stores[0]))
    assert counts(consumer.process([plain(bad, "bad"), good])) == (1, 0, 1, 2, 0)
    assert counts(consumer.process([plain(bad, "bad", count=2)])) == (0, 1, 0, 1, 0)
    [(code, text, kept)] = seen("SELECT code, reason, raw FROM salon_jobs_inbox WHERE message_id = 'bad'")
    assert code == "JOB.PAYLOAD_INVALID"
    assert reason in text
    envelope = inbox.kept_envelope(kept)
    assert envelope is not None
    assert envelope.payload == bad
    change("UPDATE salon_jobs_inbox SET status = 'retry' WHERE message_id = 'bad'")
    again_with_store = processor(**PLAIN, TASKS={"*": "test-store"}, STORE=str(stores[1]))
    assert again_with_store.retry_requested() == 1
    is_job_now = "send one" in reason
    assert len(jobs()) == 1 + is_job_now
    status = "enqueued" if is_job_now else "rejected"
    assert seen("SELECT status FROM salon_jobs_inbox WHERE message_id = 'bad'") == [(status,)]


def test_rejection_is_kept_and_payload_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    bad = message('{"note": "secret"}', "unheard-of")
    processor().process([bad, Delivery(count=3, raw="gar\0bage", handle=1, fault="it is no JSON")])
    rows = seen("SELECT raw, reason, deliveries FROM salon_jobs_inbox ORDER BY deliveries")
    assert inbox.kept_envelope(rows[0][0]) == bad.envelope
    assert rows[0][1] == "TASKS maps no task to the event 'unheard-of'"
    assert rows[1] == ("gar\\0bage", "it is no JSON", 3)
    assert "message_rejected" in caplog.text
    assert "secret" not in caplog.text


def test_unknown_store_is_waited_for(stores: list[UUID]) -> None:
    late = new_store_id()
    waiting = processor()
    delivery = message(event="placed", store_id=str(late))
    result = waiting.process([delivery, message(event="placed", store_id=str(stores[0]))])
    assert counts(result) == (1, 0, 0, 1, 1)
    assert result.give_back == [delivery]
    change("INSERT INTO store (id, name) VALUES (%s, 'late')", late)
    assert counts(waiting.process([again(delivery)])) == (1, 0, 0, 1, 0)
    never = message(event="placed", store_id=str(new_store_id()), count=5)
    assert counts(waiting.process([never])) == (0, 0, 1, 1, 0)
    assert inbox_rows()[-1] == (id_of(never), "rejected", "INBOX.UNKNOWN_STORE")


def test_deleted_store_is_noticed(stores: list[UUID]) -> None:
    """A consumer that knew the store asks again once its answer is old."""
    now, read = 0.0, read_consumers({"orders": {"SOURCE": "rn::memory:::orders", "TASKS": TASKS}})
    known = Processor("orders", read["orders"], using="default", clock=lambda: now)
    placed = [message(event="placed", store_id=str(stores[0]), count=5) for _ in range(3)]
    assert counts(known.process(placed[:1])) == (1, 0, 0, 1, 0)
    change("DELETE FROM store WHERE id = %s", stores[0])
    assert counts(known.process(placed[1:2])) == (1, 0, 0, 1, 0), "it has just asked"
    now = 10.0
    assert counts(known.process(placed[2:])) == (0, 0, 1, 1, 0)
    assert inbox_rows()[-1] == (id_of(placed[2]), "rejected", "INBOX.UNKNOWN_STORE")


def test_store_of_the_settings(stores: list[UUID]) -> None:
    processor(STORE=str(stores[2])).process([message(event="placed"), message(event="placed", store_id=str(stores[0]))])
    assert {row[1] for row in jobs()} == {stores[2]}


def test_message_that_the_database_refuses() -> None:
    change(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN IF NEW.payload ->> 'note' = 'poison' THEN RAISE 'no poison' USING ERRCODE = 'check_violation';"
        " END IF; RETURN NEW; END$$"
    )
    change("CREATE TRIGGER refuse BEFORE INSERT ON salon_jobs_job FOR EACH ROW EXECUTE FUNCTION refuse()")
    try:
        poison = message('{"note": "poison"}')
        batch = [message(), poison, message()]
        result = processor().process(batch)
        assert counts(result) == (2, 0, 0, 2, 1)
        assert counts(processor().process([replace(poison, count=5)])) == (0, 0, 1, 1, 0)
        assert inbox_rows()[-1] == (id_of(poison), "rejected", "INBOX.ENQUEUE_FAILED")
    finally:
        change("DROP FUNCTION refuse CASCADE")


def test_lost_database_is_no_messages_fault() -> None:
    batch = [message(count=99), message(count=99)]
    waiting = processor()

    def kill(execute: Any, statement: str, *call: Any) -> Any:
        if "job_ids" in statement or "SET status = 'enqueued'" in statement:
            change("SELECT pg_terminate_backend(%s)", connections["default"].connection.info.backend_pid)
        return execute(statement, *call)

    with connections["default"].execute_wrapper(kill), pytest.raises(OperationalError):
        waiting.process(batch)
    connections["default"].close()
    assert (jobs(), inbox_rows()) == ([], [])
    assert counts(waiting.process(batch)) == (2, 0, 0, 2, 0)
    assert len(jobs()) == 2


def test_message_given_back_holds_its_aggregate(stores: list[UUID]) -> None:
    """What comes after it in the batch is given back too, whether a lock or a missing store holds it up.

    A lock costs no delivery: the message is not rejected, however often it has come.
    """
    about: dict[str, Any] = {"aggregate_type": "rn::memory:::orders", "aggregate_id": "7"}
    other = {**about, "aggregate_id": "8"}
    held, behind = (message(count=99, **about) for _ in range(2))
    free, alone = message(**other), message()
    with psycopg.connect(url_for("worker_runtime")) as blocking:
        blocking.execute(
            "INSERT INTO salon_jobs_inbox (consumer, message_id, status) VALUES ('orders', %s, 'enqueued')",
            [id_of(held)],
        )
        with connections["default"].cursor() as cursor:
            cursor.execute("SET lock_timeout = '50ms'")
        result = processor().process([held, behind, free, alone])
        assert counts(result) == (2, 0, 0, 2, 2)
        assert (result.give_back, result.acknowledge) == ([held, behind], [free, alone])
        blocking.rollback()
    assert processor().process([held]).enqueued == 1
    connections["default"].close()
    late = message(event="placed", store_id=str(new_store_id()), **about)
    result = processor().process([late, again(behind), message(event="placed", store_id=str(stores[0]), **other)])
    assert [id_of(each) for each in result.give_back] == [id_of(late), id_of(behind)]
    assert result.enqueued == 1


def test_stop_gives_back_the_rest() -> None:
    bad = message('{"note": "' + "x" * 2000 + '"}', "keyed")
    answers: Iterator[bool] = iter([False, True, True])
    result = processor().process([message(), bad, message()], stopping=lambda: next(answers))
    assert counts(result) == (1, 0, 0, 1, 2)


def test_retry_and_dismiss_rejected_messages(stores: list[UUID]) -> None:
    late = new_store_id()
    processor().process(
        [
            message('{"number": 5}', "placed", store_id=str(late), count=5),
            message(event="unheard-of"),
            Delivery(count=1, raw="garbage", handle=1, fault="no JSON"),
        ]
    )
    change("INSERT INTO store (id, name) VALUES (%s, 'late')", late)
    ids = [row[0] for row in seen("SELECT id FROM salon_jobs_inbox ORDER BY id")]
    assert all(each.changed for each in inbox.retry_messages(ids, using="operator"))
    assert not any(each.changed for each in inbox.retry_messages(ids, using="operator"))
    assert processor().retry_requested() == 3
    assert jobs() == [("test-store", late, {"number": 5})]
    codes = ("INBOX.UNKNOWN_EVENT", "INBOX.UNREADABLE")
    assert {row[1:] for row in inbox_rows()} == {("enqueued", ""), *(("rejected", code) for code in codes)}
    assert sorted(each.changed for each in inbox.dismiss_messages(ids, using="operator")) == [False, True, True]
    assert processor().retry_requested() == 0


@pytest.mark.parametrize(("note", "most"), [("д" * 500_000, 2**20), ('\\"' * 1_000_000, 2**22)])
def test_retry_of_a_large_message(settings: Any, note: str, most: int) -> None:
    """Whatever its letters are: a message that can become a job is kept whole until it does."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "MAX_PAYLOAD": most}
    processor(TASKS={"other": "test-system"}).process([message(f'{{"note": "{note}"}}')])
    assert inbox_rows()[0][1:] == ("rejected", "INBOX.UNKNOWN_EVENT")
    change("UPDATE salon_jobs_inbox SET status = 'retry'")
    assert processor().retry_requested() == 1
    assert jobs() == [("test-system", None, {"note": json.loads(f'"{note}"')})]


def test_retry_after_envelope_none(stores: list[UUID]) -> None:
    azure = "rn::azurequeue:::parse-tasks"
    for raw in (f'{{"number": 5, "store_id": "{stores[0]}"}}', "garbage"):
        unread = Delivery(count=1, raw=raw, handle=1, fault="Object missing required field `envelope`", broker_id=raw)
        assert counts(processor(SOURCE=azure).process([unread])) == (0, 0, 1, 1, 0)
    change("UPDATE salon_jobs_inbox SET status = 'retry'")
    assert processor(**PLAIN, TASKS={"*": "test-store"}).retry_requested() == 2
    assert jobs() == [("test-store", stores[0], {"number": 5})]
    assert [row[1:] for row in inbox_rows()] == [("enqueued", ""), ("rejected", "JOB.PAYLOAD_INVALID")]


def test_retry_of_a_refused_replay() -> None:
    processor(REPLAYS="refuse").process([message(replay_of=str(uuid4()))])
    [(row,)] = seen("SELECT id FROM salon_jobs_inbox")
    inbox.retry_messages([row], using="operator")
    change("ALTER TABLE salon_jobs_job ADD CONSTRAINT none_now CHECK (task <> 'test-system') NOT VALID")
    try:
        assert processor(REPLAYS="refuse").retry_requested() == 1
        assert inbox_rows()[0][1:] == ("rejected", "INBOX.ENQUEUE_FAILED")
    finally:
        change("ALTER TABLE salon_jobs_job DROP CONSTRAINT none_now")
    inbox.retry_messages([row], using="operator")
    assert processor(REPLAYS="refuse").retry_requested() == 1
    assert len(jobs()) == 1


def test_pruning_spares_what_waits() -> None:
    """By workers: what a relay turns into jobs is in the inbox too, and needs no consumer."""
    change(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, status, received_at) SELECT 'orders', status || n, status,"
        " now() - make_interval(days => n) FROM generate_series(29, 31) n,"
        " unnest(ARRAY['enqueued', 'rejected', 'retry', 'dismissed']) status"
    )
    assert Pruner(using="default").run_once().deleted == {"inbox": 4}  # of 30 and 31 days
    change("UPDATE salon_jobs_inbox SET consumer = 'gone', status = 'enqueued' WHERE status = 'retry'")
    assert Pruner(using="default").run_once().deleted == {"inbox": 1}  # one stays, which says that it was there
    assert inbox.has_messages("gone", using="default")
    kept = {row[0] for row in inbox_rows()}
    assert {"enqueued31", "dismissed31"}.isdisjoint(kept)
    assert {"rejected31", "retry31", "enqueued29", "dismissed29"} <= kept


def test_row_is_durable_before_the_acknowledgement() -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
    levels: list[str] = []

    def note(execute: Any, statement: str, *call: Any) -> Any:
        result = execute(statement, *call)
        if "salon_jobs_inbox" in statement and "ON CONFLICT" in statement:
            with connections["default"].connection.cursor() as raw:
                levels.append(raw.execute("SHOW synchronous_commit").fetchone()[0])
        return result

    with connections["default"].execute_wrapper(note):
        processor().process([message()])
    connections["default"].close()
    assert levels[-1] == "on"


def test_kept_envelope_is_whole() -> None:
    envelope = message(json.dumps({"note": "é\0"}), aggregate_id="a", replay_of="b").envelope
    assert envelope is not None
    assert inbox.kept_envelope(inbox.kept_text(envelope, "")) == envelope
