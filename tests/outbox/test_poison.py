"""Shows that what SQL can write past ``emit`` neither stops a destination for the others nor blinds the operators."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from tests.management.operator import run
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
    "an unknown argument": '{"unknown": 1}',
}


@pytest.mark.parametrize("task", ["test-system", "test-keyed-system"])
def test_a_payload_that_becomes_no_job_is_its_own_fault_alone(task: str) -> None:
    fits = {"a long text"} if task == "test-system" else set[str]()  # it is in no key
    poison = [payload for name, payload in POISON.items() if name not in fits]
    for number, payload in enumerate([*poison, '{"note": "x"}']):
        change("SELECT salon_jobs_emit(%s, %s, 'e', %s::json)", f"rn::jobs:::{task}", str(number), payload)
    relay_in_burst()
    rows = seen("SELECT status, last_error <> '' FROM salon_jobs_message ORDER BY id")
    assert rows == [*[("failed", True)] * len(poison), ("published", False)]
    assert outages() == [""]


def test_operators_can_read_every_payload(client: Client) -> None:  # noqa: F811
    for payload in POISON.values():
        change("SELECT salon_jobs_emit(%s, 'a', 'e', %s::json)", ORDERS, payload)
    for number in ids():
        assert client.get(f"{MESSAGES}{number}/change/").status_code == 200
        run("messages", "show", str(number))
        assert json.loads(run("messages", "show", str(number), "--json")[0].encode())["id"] == number
