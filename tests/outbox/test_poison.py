"""Shows that what SQL can write past ``emit`` neither stops a destination for the others nor blinds the operators."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import transaction
from django.test import Client

from salon_jobs import emit
from salon_jobs.models import Message
from tests.outbox.scene import ORDERS, ids, outages, relay_in_burst
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
def test_a_payload_that_becomes_no_job_is_its_own_fault_alone(task: str, poison: str) -> None:
    if (task, poison) == ("test-system", "a long text"):
        return  # it is in no key
    for aggregate_id, payload in (("p", POISON[poison]), ("g", '{"note": "x"}')):
        change("SELECT salon_jobs_emit(%s, %s, 'e', %s::json)", f"rn::jobs:::{task}", aggregate_id, payload)
    relay_in_burst()
    rows = seen("SELECT status, last_error <> '' FROM salon_jobs_message ORDER BY id")
    assert rows == [("failed", True), ("published", False)]
    assert outages() == [""]


def test_a_payload_that_is_a_string_is_read_as_one() -> None:
    with transaction.atomic():
        for payload in ("text", "1", "null", None, [1], 1.5):
            emit(ORDERS, event="e", payload=payload)
    assert [message.payload for message in Message.objects.order_by("pk")] == ["text", "1", "null", None, [1], 1.5]
    assert Message.objects.order_by("pk").values_list("payload", flat=True).first() == "text"


@pytest.mark.parametrize("poison", POISON)
def test_operators_can_read_every_payload(client: Client, poison: str) -> None:  # noqa: F811
    change("SELECT salon_jobs_emit(%s, 'a', 'e', %s::json)", ORDERS, POISON[poison])
    [number] = ids()
    assert client.get(f"{MESSAGES}{number}/change/").status_code == 200
    for extra in ((), ("--json",)):
        out = StringIO()
        call_command("salon_jobs", "messages", "show", str(number), *extra, stdout=out)
        assert not extra or json.loads(out.getvalue().encode())["id"] == number
