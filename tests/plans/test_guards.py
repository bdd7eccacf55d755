"""Holds the triggers that guard the job table: every move between states, legal or not, as the worker role."""

from __future__ import annotations

from itertools import permutations

import pytest
from django.db import ProgrammingError, connection, transaction

from salon_jobs.core.records import JobState
from tests import tasks
from tests.support import change, moved_to

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


@pytest.mark.parametrize(("old", "new"), list(permutations(JobState, 2)))
def test_a_job_moves_between_states_as_declared(database: None, old: JobState, new: JobState) -> None:
    job = tasks.system.enqueue()
    change("SET session_replication_role = replica")
    change(f"UPDATE salon_jobs_job SET {moved_to(old)}")
    change("RESET session_replication_role")
    move = f"UPDATE salon_jobs_job SET {moved_to(new)} WHERE id = %s"
    with connection.cursor() as cursor:
        if (old, new) in LEGAL:
            cursor.execute(move, [job.id])
            assert cursor.rowcount == 1
        else:
            with pytest.raises(ProgrammingError, match="Cannot update"), transaction.atomic():
                cursor.execute(move, [job.id])


@pytest.mark.parametrize("column", ["id = id + 1", "task = 'ping'", "store_id = gen_random_uuid()"])
def test_a_jobs_identity_never_changes(database: None, column: str) -> None:
    tasks.system.enqueue()
    with pytest.raises(ProgrammingError, match="Cannot update"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE salon_jobs_job SET {column}")


def test_a_state_that_nobody_knows_is_refused(database: None) -> None:
    tasks.system.enqueue()
    with pytest.raises(Exception, match="salon_jobs_job_state"), transaction.atomic(), connection.cursor() as c:
        c.execute("UPDATE salon_jobs_job SET state = 'paused'")
