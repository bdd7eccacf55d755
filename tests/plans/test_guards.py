"""Holds the triggers that guard the job table: every move between states, as the worker role and as the owner."""

from __future__ import annotations

from contextlib import suppress

import pytest
from django.db import DatabaseError, ProgrammingError, connections, transaction

from salon_jobs.core.records import JobState
from tests import tasks
from tests.support import change, moved_to, store_id_sql

LEGAL = {
    ("queued", "running"),  # claimed
    ("queued", "cancelled"),  # by an operator
    ("running", "queued"),  # retried, snoozed, given back, rescued
    ("running", "succeeded"),  # kept as succeeded
    ("running", "failed"),
    ("running", "cancelled"),  # discarded, expired, superseded
    ("failed", "queued"),  # retried by an operator
    ("failed", "cancelled"),
    ("cancelled", "queued"),
}


@pytest.mark.parametrize("alias", ["default", "owner"])
@pytest.mark.parametrize("old", JobState)
def test_a_job_moves_between_states_as_declared(database: None, old: JobState, alias: str) -> None:
    job = tasks.system.enqueue()
    change("SET session_replication_role = replica")
    change(f"UPDATE salon_jobs_job SET {moved_to(old)}")
    change("RESET session_replication_role")
    moved = []
    for new in JobState:
        with suppress(ProgrammingError), transaction.atomic(using=alias), connections[alias].cursor() as cursor:
            cursor.execute(f"UPDATE salon_jobs_job SET {moved_to(new)} WHERE id = %s", [job.id])
            assert cursor.rowcount == 1
            moved.append((old, new))
            transaction.set_rollback(True, using=alias)
    assert {move for move in moved if move[1] != old} == {move for move in LEGAL if move[0] == old}


@pytest.mark.parametrize("alias", ["default", "owner"])
@pytest.mark.parametrize(
    ("wrong", "by"),
    [
        ("id = id + 1", "Cannot update"),
        ("task = 'ping'", "Cannot update"),
        (f"store_id = {store_id_sql()}", "Cannot update"),
        ("state = 'paused'", "salon_jobs_job_state"),
    ],
)
def test_identity_and_states_are_guarded(database: None, wrong: str, by: str, alias: str) -> None:
    tasks.system.enqueue()
    with pytest.raises(DatabaseError, match=by), connections[alias].cursor() as cursor:
        cursor.execute(f"UPDATE salon_jobs_job SET {wrong}")
