"""Carries rows to another database by ``dumpdata`` and ``loaddata``: nothing that waited runs there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import transaction

from salon_jobs import emit
from tests import tasks
from tests.outbox.scene import ORDERS
from tests.support import change, moved_to, seen

NOTE = '{"note": ""}'
TABLES = "salon_jobs_job, salon_jobs_job_result, salon_jobs_message"


@pytest.fixture
def carry(database: None, tmp_path: Path) -> Callable[[], None]:
    """Return a function that dumps all rows of salon_jobs as the owner, deletes them, and loads the dump."""

    def carry() -> None:
        file = tmp_path / "dump.json"
        call_command("dumpdata", "salon_jobs", database="owner", output=str(file), verbosity=0)
        change(f"TRUNCATE {TABLES}")
        call_command("loaddata", str(file), database="owner", verbosity=0)

    return carry


def test_loaded_jobs_are_cancelled(carry: Callable[[], None]) -> None:
    for _ in range(5):
        tasks.system.enqueue()
    [first, second, third, fourth, fifth] = [row[0] for row in seen("SELECT id FROM salon_jobs_job ORDER BY id")]
    change(f"UPDATE salon_jobs_job SET {moved_to('running')} WHERE id IN (%s, %s)", second, third)
    change(f"UPDATE salon_jobs_job SET {moved_to('failed')} WHERE id = %s", third)
    change(f"UPDATE salon_jobs_job SET {moved_to('cancelled')} WHERE id = %s", fourth)
    change("UPDATE salon_jobs_job SET payload = 'null' WHERE id = %s", fifth)
    carry()
    loaded = "loaded from a fixture"
    assert seen("SELECT id, state, reason, payload::text, finished_at IS NOT NULL FROM salon_jobs_job ORDER BY id") == [
        (first, "cancelled", loaded, NOTE, True),
        (second, "cancelled", loaded, NOTE, True),
        (third, "failed", "not_retried", NOTE, True),
        (fourth, "cancelled", "cancelled", NOTE, True),
        (fifth, "cancelled", loaded, "null", True),
    ]
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE leased_by IS NOT NULL") == [(0,)]


def test_loaded_messages_are_skipped(carry: Callable[[], None]) -> None:
    with transaction.atomic():
        for number in range(2):
            emit(ORDERS, aggregate_id="1", event="order.created", payload={"number": number})
    change("UPDATE salon_jobs_message SET status = 'published', sent_at = now() WHERE payload->>'number' = '0'")
    carry()
    states = "SELECT payload->>'number', status, last_error FROM salon_jobs_message ORDER BY id"
    assert seen(states) == [("0", "published", ""), ("1", "skipped", "loaded from a fixture")]


def test_result_of_none_can_be_loaded(carry: Callable[[], None]) -> None:
    change(
        "INSERT INTO salon_jobs_job_result VALUES (5, NULL, NULL, 'ping', 'default', 0, '{}', 'null',"
        " 1, 1, now(), now(), now(), now(), now())"
    )
    carry()
    assert seen("SELECT job_id, value::text FROM salon_jobs_job_result") == [(5, "null")]
