"""Shows that what SQL can write past ``emit`` neither stops a destination for the others nor blinds the operators."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import transaction
from django.test import Client

from salon_jobs import emit
from salon_jobs.models import Message
from salon_jobs.outbox import destinations as streams
from salon_jobs.outbox import queries
from tests.e2e.worker_process import eventually
from tests.outbox.scene import ORDERS, arrived, emitted, relay_in_burst, relaying, statuses
from tests.outbox.test_message_admin import MESSAGES, client  # noqa: F401
from tests.support import change, seen

POISON = {
    "nested": '{"note": ' + "[" * 3000 + "]" * 3000 + "}",
    "a long number": '{"note": ' + "9" * 5000 + "}",
    "NUL": '{"note": "\\u0000"}',
    "half a surrogate": '{"note": "\\ud800"}',
    "a long text": json.dumps({"note": "x" * 20_000}),
    "a list": "[1]",
}


@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize("task", ["test-system", "test-keyed-system"])
def test_a_payload_that_becomes_no_job_is_its_own_fault_alone(database: None, task: str, poison: str) -> None:
    if (task, poison) == ("test-system", "a long text"):
        return  # it is in no key
    for aggregate_id, payload in (("p", POISON[poison]), ("g", '{"note": "x"}')):
        change("SELECT salon_jobs_emit(%s, %s, 'e', %s::json)", f"rn::jobs:::{task}", aggregate_id, payload)
    relay_in_burst()
    assert seen("SELECT status, last_error <> '' FROM salon_jobs_message ORDER BY id") == [
        ("failed", True),
        ("published", False),
    ]
    assert seen("SELECT outage FROM salon_jobs_destination") == [("",)]


def test_a_payload_that_is_a_string_is_read_as_one(database: None) -> None:
    with transaction.atomic():
        for payload in ("text", "1", "null", None, [1], 1.5):
            emit(ORDERS, event="e", payload=payload)
    assert [message.payload for message in Message.objects.order_by("pk")] == ["text", "1", "null", None, [1], 1.5]
    assert Message.objects.order_by("pk").values_list("payload", flat=True).first() == "text"


@pytest.mark.parametrize("poison", POISON)
def test_operators_can_look_at_every_payload(client: Client, stores: list[UUID], poison: str) -> None:  # noqa: F811
    change("SELECT salon_jobs_emit(%s, 'a', 'e', %s::json)", ORDERS, POISON[poison])
    [(number,)] = seen("SELECT id FROM salon_jobs_message")
    assert client.get(f"{MESSAGES}{number}/change/").status_code == 200
    for extra in ((), ("--json",)):
        out = StringIO()
        call_command("salon_jobs", "messages", "show", str(number), *extra, stdout=out)
        shown: Any = out.getvalue().encode()
        assert not extra or json.loads(shown)["id"] == number


@pytest.mark.parametrize("destination", ["rn::carrier-pigeon:::orders", "rn::memory:::a\u0001b"])
def test_a_destination_that_nobody_serves_makes_no_relay_unready(database: None, destination: str) -> None:
    change("SELECT salon_jobs_emit(%s, 'a', 'e', '{}')", destination)
    with relaying() as relay:
        eventually(lambda: destination in relay.facts()["destinations"])
        assert relay.facts()["brokers"] == {}
        assert relay.relay.samples()


def test_any_number_of_destinations_holds_up_none_that_was_known(database: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(streams, "_MOST", 5)
    queries.add_destinations([ORDERS])
    change("SELECT salon_jobs_emit('rn::memory:::a' || n, 'a', 'e', '{}') FROM generate_series(1, 20) n")
    emitted("a", number=1)
    assert relay_in_burst()
    assert arrived() == [("a", 1)]
    assert statuses() == {"published": 5, "pending": 16}
    assert seen("SELECT count(*) FROM salon_jobs_destination") == [(5,)]
