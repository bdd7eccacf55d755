"""Who may do what with messages, as the real roles, on tables that are not empty."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.outbox.test_operate_messages import ORDERS, block, blocked, statuses, write
from tests.support import change, seen
from tests.tenancy.test_job_rights import ask, refused

INSERT = (
    "INSERT INTO salon_jobs_message (message_id, aggregate_type, event, payload, store_id)"
    f" VALUES (gen_random_uuid(), '{ORDERS}', 'made', '{{}}', current_setting('app.current_store_id')::uuid)"
)
COLUMNS = ("status", "payload", "store_id", "retry_at", "replay_of")
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
            assert ask("web", statement, store=store) == [(message,)]
    for table in ("partition", "destination", "replay"):
        assert seen(f"SELECT count(*) FROM salon_jobs_{table}") == [(1,)]
        refused("web", f"SELECT * FROM salon_jobs_{table}")


@pytest.mark.parametrize(
    "statement",
    [
        INSERT,
        *(f"UPDATE salon_jobs_message SET {column} = {column}" for column in COLUMNS),
        *(f"DELETE FROM salon_jobs_{table}" for table in TABLES),
        "UPDATE salon_jobs_blocked_aggregate SET status = 'waiting'",
        "UPDATE salon_jobs_destination SET paused = true",
        "SELECT * FROM salon_jobs_gate()",
        "SELECT nextval('salon_jobs_message_id_seq')",
    ],
)
def test_the_web_role_writes_and_changes_no_message_by_itself(
    messages: list[int], stores: list[UUID], statement: str
) -> None:
    refused("web", statement, store=stores[0])
    assert set(statuses().values()) == {"failed", "pending"}


def test_the_web_role_emits_for_its_current_store_and_no_other(messages: list[int], stores: list[UUID]) -> None:
    emit = "SELECT salon_jobs_emit(%s, '7', 'made', '{}')"
    many = (
        "SELECT salon_jobs_emit_many(ARRAY[gen_random_uuid()], ARRAY[%s], ARRAY['7'], ARRAY['made'], ARRAY['{}'],"
        " ARRAY['{}'], 'till')::text"
    )
    for statement in (emit, many):
        for current in (stores[1], None):
            ask("web", statement, ORDERS, store=current)
    written = seen("SELECT store_id FROM salon_jobs_message WHERE id > %s ORDER BY id", messages[-1])
    assert written == [(stores[1],), (None,), (stores[1],), (None,)]


def test_the_web_role_skips_messages_of_its_current_store_alone(messages: list[int], stores: list[UUID]) -> None:
    skip = "SELECT salon_jobs_skip_messages(%s)"
    assert ask("web", skip, messages) == []
    assert ask("web", skip, messages, store=stores[1]) == [(messages[1],)]
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
    retry = "UPDATE salon_jobs_message SET status = 'pending', ended_at = NULL WHERE status = 'failed' RETURNING id"
    assert len(ask("operator", retry)) == 3
