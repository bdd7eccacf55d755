"""The functions by which the web role emits and skips messages. Which rows a role reaches is in ``matrix.py``."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.outbox.test_operate_messages import ORDERS, block, blocked, statuses, write
from tests.support import seen
from tests.tenancy.test_job_rights import ask, refused

EMIT = "SELECT salon_jobs_emit(%s, '7', 'made', '{}')"
EMIT_MANY = (
    "SELECT salon_jobs_emit_many(ARRAY[gen_random_uuid()], ARRAY[%s], ARRAY['7'], ARRAY['made'], ARRAY['{}'],"
    " ARRAY['{}'], 'till')::text"
)


@pytest.fixture
def messages(stores: list[UUID]) -> list[int]:
    """Write a failed message of each store that holds back its aggregate, and one of no store."""
    ids = [write("failed", aggregate=str(number), store=store) for number, store in enumerate(stores)]
    for head in ids:
        block(head, "parked")
    return [*ids, write()]


@pytest.mark.parametrize("statement", [EMIT, EMIT_MANY])
def test_the_web_role_emits_for_its_current_store_and_no_other(
    messages: list[int], stores: list[UUID], statement: str
) -> None:
    for current in (stores[1], None):
        ask("web", statement, ORDERS, store=current)
    written = seen("SELECT store_id FROM salon_jobs_message WHERE id > %s ORDER BY id", messages[-1])
    assert written == [(stores[1],), (None,)]
    refused("operator", EMIT, ORDERS)


def test_the_web_role_skips_messages_of_its_current_store_alone(messages: list[int], stores: list[UUID]) -> None:
    skip = "SELECT salon_jobs_skip_messages(%s)"
    assert ask("web", skip, messages) == []
    assert ask("web", skip, messages, store=stores[1]) == [(messages[1],)]
    assert statuses() == {messages[0]: "failed", messages[1]: "skipped", messages[2]: "failed", messages[3]: "pending"}
    assert [row[0] for row in blocked()] == [messages[0], messages[2]]


def test_the_web_role_reads_neither_gate_nor_sequence(stores: list[UUID]) -> None:
    for call in ("salon_jobs_gate()", "nextval('salon_jobs_message_id_seq')"):
        refused("web", f"SELECT {call}", store=stores[0])
