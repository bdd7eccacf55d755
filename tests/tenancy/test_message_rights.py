"""Shows who may do what with messages, as the real roles, on tables that are not empty."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.db import connections, transaction

from salon_jobs import tenant_context
from tests.outbox.test_operate_messages import ORDERS, block, blocked, statuses, write
from tests.support import change, seen
from tests.tenancy.test_job_rights import ask, refused

TABLES = ("message", "blocked_aggregate", "partition", "destination", "replay")


@pytest.fixture
def messages(stores: list[UUID]) -> list[int]:
    """Write a failed message of each store that holds back its aggregate, and one of no store."""
    ids = [write("failed", aggregate=str(number), store=store) for number, store in enumerate(stores)]
    for head in ids:
        block(head, "parked")
    change("INSERT INTO salon_jobs_destination (aggregate_type) VALUES (%s)", ORDERS)
    change("INSERT INTO salon_jobs_replay (requested_by, criteria, messages) VALUES ('kei', '{}', 1)")
    change("INSERT INTO salon_jobs_partition (partition) VALUES (0)")
    return [*ids, write()]


def test_the_web_role_sees_the_messages_of_its_current_store_alone(messages: list[int], stores: list[UUID]) -> None:
    for statement in ("SELECT id FROM salon_jobs_message", "SELECT head_id FROM salon_jobs_blocked_aggregate"):
        assert len(seen(statement)) >= 3
        assert ask("web", statement) == []
        for store, message in zip(stores, messages, strict=False):
            with tenant_context(store, using="web"):
                assert ask("web", statement) == [(message,)]
    for table in ("partition", "destination", "replay"):
        assert seen(f"SELECT count(*) FROM salon_jobs_{table}") == [(1,)]
        refused("web", f"SELECT * FROM salon_jobs_{table}")


def test_the_web_role_writes_and_changes_no_message_by_itself(messages: list[int], stores: list[UUID]) -> None:
    with tenant_context(stores[0], using="web"):
        refused(
            "web",
            "INSERT INTO salon_jobs_message (message_id, aggregate_type, event, payload, store_id)"
            " VALUES (gen_random_uuid(), %s, 'made', '{}', %s)",
            ORDERS,
            stores[0],
        )
        for column in ("status", "payload", "store_id", "retry_at", "replay_of"):
            refused("web", f"UPDATE salon_jobs_message SET {column} = {column}")
        for table in TABLES:
            refused("web", f"DELETE FROM salon_jobs_{table}")
        refused("web", "UPDATE salon_jobs_blocked_aggregate SET status = 'waiting'")
        refused("web", "UPDATE salon_jobs_destination SET paused = true")
        refused("web", "SELECT * FROM salon_jobs_gate()")
        refused("web", "SELECT nextval('salon_jobs_message_id_seq')")
    assert set(statuses().values()) == {"failed", "pending"}


def test_the_web_role_emits_for_its_current_store_and_no_other(messages: list[int], stores: list[UUID]) -> None:
    emit = "SELECT salon_jobs_emit(%s, '7', 'made', '{}')"
    many = (
        "SELECT salon_jobs_emit_many(ARRAY[gen_random_uuid()], ARRAY[%s], ARRAY['7'], ARRAY['made'], ARRAY['{}'],"
        " ARRAY['{}'], 'till')::text"
    )
    for statement in (emit, many):
        with tenant_context(stores[1], using="web"):
            ask("web", statement, ORDERS)
        ask("web", statement, ORDERS)
    written = seen("SELECT store_id FROM salon_jobs_message WHERE id > %s ORDER BY id", messages[-1])
    assert written == [(stores[1],), (None,), (stores[1],), (None,)]


def test_the_web_role_skips_messages_of_its_current_store_alone(messages: list[int], stores: list[UUID]) -> None:
    skip = "SELECT salon_jobs_skip_messages(%s)"
    assert ask("web", skip, messages) == []
    with tenant_context(stores[1], using="web"):
        assert ask("web", skip, messages) == [(messages[1],)]
    assert statuses() == {messages[0]: "failed", messages[1]: "skipped", messages[2]: "failed", messages[3]: "pending"}
    assert [row[0] for row in blocked()] == [messages[0], messages[2]]


def test_the_operator_and_the_worker_see_all_messages_and_an_audit_row_stays(messages: list[int]) -> None:
    for alias in ("operator", "default"):
        assert ask(alias, "SELECT id FROM salon_jobs_message ORDER BY id") == [(each,) for each in messages]
        assert ask(alias, "SELECT count(*) FROM salon_jobs_blocked_aggregate") == [(3,)]
    for statement in ("UPDATE salon_jobs_replay SET reason = ''", "DELETE FROM salon_jobs_replay"):
        refused("operator", statement)
    refused("operator", "UPDATE salon_jobs_partition SET owner = 1")
    refused("operator", "SELECT salon_jobs_emit(%s, '7', 'made', '{}')", ORDERS)
    with transaction.atomic("operator"), connections["operator"].cursor() as cursor:
        cursor.execute("UPDATE salon_jobs_message SET status = 'pending', ended_at = NULL WHERE status = 'failed'")
        assert cursor.rowcount == 3
