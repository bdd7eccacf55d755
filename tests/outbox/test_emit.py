"""Shows what ``emit`` writes, what it refuses, and that SQL can emit too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, IntegrityError, connections, transaction
from django.test.utils import CaptureQueriesContext

from project.salon.models import Customer
from salon_jobs import emit, emit_many, tenant_context
from salon_jobs.checks import check_publishers
from salon_jobs.core.errors import ConfigurationError, EmitRefused, MessageInvalid, SchemaMissing
from salon_jobs.models import Message
from salon_jobs.outbox import Draft
from tests.inside import trace_with
from tests.outbox.scene import ORDERS, arrived, emitted, relaying
from tests.support import change, new_store_id, seen
from tests.tracers import RecordingTracer
from tests.waiting import eventually


def test_row_of_a_message(stores: list[UUID]) -> None:
    payload = {"b": 1, "a": [Decimal("1.50"), date(2026, 5, 6), uuid4()], "ü": "ß"}
    with tenant_context(stores[1]):
        message_id = emit(ORDERS, aggregate_id="42", event="order.created", payload=payload, headers={"X-Kind": "test"})
    columns = "message_id, aggregate_type, aggregate_id, event, payload::text, headers::text, store_id, producer"
    text = f'{{"b":1,"a":["1.50","2026-05-06","{payload["a"][2]}"],"ü":"ß"}}'  # type: ignore[index]
    row = (message_id, ORDERS, "42", "order.created", text, '{"X-Kind":"test"}', stores[1], "salon")
    assert seen(f"SELECT {columns} FROM salon_jobs_message") == [row]
    rest = "SELECT status, retry_count, sent_at, last_error FROM salon_jobs_message"
    assert seen(rest) == [("pending", 0, None, "")]
    assert Message.objects.get().payload == {"b": 1, "a": ["1.50", "2026-05-06", str(payload["a"][2])], "ü": "ß"}  # type: ignore[index]


NESTED: list[Any] = []
for _ in range(100_000):
    NESTED = [NESTED]


@pytest.mark.parametrize("value", [None, 1.5, "text", "1", "null", [None, {"a": 0.1}], {"path": "\\u0000"}])
def test_payload_is_read_as_given(value: Any) -> None:
    with transaction.atomic():
        emit(ORDERS, event="e", payload=value)
    assert Message.objects.get().payload == value
    assert Message.objects.values_list("payload", flat=True).get() == value


def test_too_large_payload_spares_the_transaction(change_settings: Callable[..., None]) -> None:
    change_settings(MAX_PAYLOAD=1024)
    with transaction.atomic():
        with pytest.raises(MessageInvalid, match=r"payload is 1026 bytes long; at most 1024 are allowed .*MAX_PAYLOAD"):
            emit(ORDERS, event="e", payload="x" * 1024)
        emit(ORDERS, event="e", payload="x" * 1022)
    assert Message.objects.count() == 1


def test_many_large_messages_take_several_statements(tune: Callable[..., None]) -> None:
    tune(emitted_at_once=6, characters_at_once=1000)
    with transaction.atomic(), CaptureQueriesContext(connections["default"]) as queries:
        ids = emit_many(Draft(aggregate_type=ORDERS, event="e", payload=f"{n}" + "x" * 400) for n in range(10))
    written = [(message.message_id, message.payload[0]) for message in Message.objects.order_by("pk")]
    assert written == list(zip(ids, "0123456789", strict=True))
    assert len([query for query in queries if "emit_many" in query["sql"]]) == 4


def test_transaction_is_needed_on_the_connection_of_using() -> None:
    with pytest.raises(EmitRefused, match=r"transaction\.atomic\(using='default'\)"):
        emit(ORDERS, event="e", payload={})
    with transaction.atomic(), pytest.raises(EmitRefused, match=r"transaction\.atomic\(using='web'\)"):
        emit(ORDERS, event="e", payload={}, using="web")
    with transaction.atomic(using="web"):
        message_id = emit(ORDERS, event="e", payload={}, using="web")
        assert not Message.objects.exists(), "it is in the transaction of the other connection"
    assert Message.objects.get().message_id == message_id


def test_store_is_that_of_the_messages_connection(stores: list[UUID]) -> None:
    """Where the current store is set on another, the message would belong to none, or to another store."""
    first, second, _ = stores
    of_none = pytest.raises(EmitRefused, match=rf"store, {first}, is not set .*tenant_context\(…, using='default'\)")
    with tenant_context(first, using="web"), transaction.atomic(), of_none:
        emit(ORDERS, event="e", payload={})
    with tenant_context(first), tenant_context(second, using="web", switch=True):
        with pytest.raises(EmitRefused, match=f"store, {second}, is not set"):
            emit(ORDERS, event="e", payload={})
        emit(ORDERS, event="e", payload={}, using="web")
    assert seen("SELECT store_id FROM salon_jobs_message") == [(second,)]


TABLE = "ALTER TABLE salon_jobs_message"
NOT_ALLOWED, NO_TABLE = "permission denied.*; emit as the web or the worker role$", "; run: python manage.py migrate$"


@pytest.mark.parametrize(
    ("changed", "restored", "alias", "error", "says"),
    [
        ("SELECT 1", "SELECT 1", "operator", EmitRefused, NOT_ALLOWED),
        (
            f"{TABLE} ADD CONSTRAINT no_noise CHECK (event <> 'e')",
            f"{TABLE} DROP CONSTRAINT no_noise",
            "web",
            EmitRefused,
            "the database refused the message: .*no_noise",
        ),
        (f"{TABLE} RENAME TO x", "ALTER TABLE x RENAME TO salon_jobs_message", "default", SchemaMissing, NO_TABLE),
    ],
)
def test_refusals_name_the_remedy(
    database: None, settings: Any, changed: str, restored: str, alias: str, error: type[Exception], says: str
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "DATABASE": alias}
    change(changed)
    try:
        with pytest.raises(error, match=f"(?s){says}"), transaction.atomic(using=alias):
            emit(ORDERS, event="e", payload={})
    finally:
        change(restored)


def test_producer_is_required(settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "OUTBOX": {}}
    says = r"\['OUTBOX'\]\['PRODUCER'\] is not set: .* SALON_JOBS = {'OUTBOX': {'PRODUCER': 'shop'}}"
    with transaction.atomic(), pytest.raises(ConfigurationError, match=says):
        emit(ORDERS, event="e", payload={})


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"aggregate_type": "orders"}, "aggregate_type 'orders' is malformed; write an ARN or RN of six parts"),
        ({"aggregate_type": "rn::nats:::"}, "is malformed"),
        ({"aggregate_type": "rn::nats:::two words"}, "is malformed"),
        ({"aggregate_type": "rn::carrier-pigeon:::orders"}, "which has no publisher; choose one of azurequeue, jobs"),
        ({"aggregate_type": "rn::jobs:::tset-store"}, "no task 'tset-store'"),
        ({"aggregate_type": "rn::memory:::" + "x" * 255}, "aggregate_type is 268 characters long; at most 255"),
        ({"aggregate_id": "x" * 256}, "aggregate_id is 256 characters long"),
        ({"aggregate_id": 42}, r"aggregate_id must be a string, not int; write str\(…\)"),
        ({"event": ""}, "event must not be empty"),
        ({"event": "e\n"}, "characters that cannot be printed"),
        ({"payload": {"a": object()}}, "payload cannot be written as JSON"),
        ({"payload": {"a": "x\0"}}, r"payload cannot .* a NUL character, .* at `\$\.a`"),
        ({"payload": {"x\0": 1}}, r"payload cannot .* a NUL character, .* at `\$, a key`"),
        ({"payload": {"a": [None, 1.0, float("nan")]}}, r"payload cannot .*: nan is .* at `\$\.a\[2\]`"),
        ({"payload": float("-inf")}, r"-inf is not a number in JSON - at `\$`"),
        ({"payload": {"a": "\ud800"}}, "payload cannot be written as JSON"),
        ({"payload": {"a": 10**5000}}, "payload cannot be written as JSON"),
        ({"payload": NESTED}, "payload cannot be written as JSON"),
        ({"headers": {"a": "x" * 1_048_577}}, "headers is .* at most 1048576 are allowed .*MAX_PAYLOAD"),
        ({"payload": "x" * 1_048_577}, "payload is 1048579 bytes long"),
        ({"headers": {"Event": "x"}}, "'Event' is written by salon_jobs itself"),
        ({"headers": {"a b": "x"}}, "the name 'a b' must be only ASCII"),
        ({"headers": {"a": 1}}, "headers must be a dict of strings to strings"),
        ({"headers": {"a": "x\r\nb: y"}}, "the value of 'a' contains characters"),
    ],
)
def test_what_could_never_be_sent_is_refused(changed: dict[str, Any], error: str) -> None:
    draft: dict[str, Any] = {"aggregate_type": ORDERS, "aggregate_id": "a", "event": "e", "payload": {}} | changed
    with transaction.atomic():
        with pytest.raises(MessageInvalid, match=error):
            emit_many([Draft(**draft)])
        assert not Message.objects.exists()


def test_constraints_hold_without_emit() -> None:
    with pytest.raises(IntegrityError, match="salon_jobs_message_destination"):
        change("SELECT salon_jobs_emit('orders', 'a', 'e', '{}')")
    with pytest.raises(IntegrityError, match="salon_jobs_message_event"):
        change("SELECT salon_jobs_emit(%s, 'a', '', '{}')", ORDERS)
    emitted("a")
    for column, value in (("payload", "{}"), ("event", "x"), ("store_id", str(new_store_id()))):
        with pytest.raises(DatabaseError, match="Cannot update"):
            change(f"UPDATE salon_jobs_message SET {column} = %s", value)


def test_trigger_emits_and_wakes_the_relay(stores: list[UUID]) -> None:
    change(
        "CREATE FUNCTION emit_customer() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM salon_jobs_emit('rn::memory:::orders', NEW.id::text, 'customer.changed',"
        " json_build_object('number', 7)); RETURN NULL; END $$"
    )
    change("CREATE TRIGGER emit_it AFTER INSERT ON customer FOR EACH ROW EXECUTE FUNCTION emit_customer()")
    try:
        with relaying() as relay:
            relay.wait_for_partitions()
            with tenant_context(stores[0], using="web"):
                Customer.objects.using("web").create(store_id=stores[0], name="A")
            eventually(lambda: [number for _, number in arrived()], [7])
        assert seen("SELECT store_id FROM salon_jobs_message") == [(stores[0],)]
    finally:
        connections["web"].close()
        change("DROP TRIGGER emit_it ON customer")
        change("DROP FUNCTION emit_customer()")
        change("TRUNCATE customer CASCADE")


def test_trace_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = RecordingTracer({"traceparent": "00-abc-def-01", "baggage": ""})
    trace_with(monkeypatch, tracer)
    message_id = emitted("a")
    with transaction.atomic():
        emit_many(Draft(aggregate_type=ORDERS, event=event, payload={}) for event in ("a", "b"))
    assert set(seen("SELECT headers::text FROM salon_jobs_message")) == {('{"traceparent":"00-abc-def-01"}',)}
    one, two = tracer.calls
    assert (one.emitted, one.system, one.destination, one.name) == (True, "memory", "orders", "order.created")
    assert (one.count, one.message_id, one.body_size) == (1, str(message_id), len('{"number":0}'))
    assert (two.destination, two.name, two.count, two.message_id) == ("orders", "", 2, "")


def test_check_names_wrong_publishers(change_settings: Callable[..., None]) -> None:
    assert check_publishers() == []
    named = {"good": "salon_jobs.brokers.memory.MemoryPublisher", "gone": "shop.Gone", "other": "collections.deque"}
    change_settings(OUTBOX={"PUBLISHERS": named})
    first, second = check_publishers()
    assert (first.id, second.id) == ("salon_jobs.E051", "salon_jobs.E051")
    assert "SALON_JOBS['OUTBOX']['PUBLISHERS']['gone']: 'shop.Gone' cannot be imported" in first.msg
    assert "SALON_JOBS['OUTBOX']['PUBLISHERS']['other']: collections.deque is no" in second.msg
