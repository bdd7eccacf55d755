"""The demo stores rows with their messages or not at all, handles each message once, and verifies what it did."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from project.demo.management.commands import confirm_reservations, upload_files
from project.demo.tasks import parse_upload, record_confirmation
from project.demo.verify import Verifier
from project.demo.verify_messages import MessageVerifier, Stored, UploadVerifier
from project.demo.worker_log import WorkerLog
from project.local.smtp import LocalSmtp
from project.salon.uploads import upload
from salon_jobs import tenant_context
from salon_jobs.core.outcomes import Succeeded
from tests.demo.conftest import Connection, instants_of, run_in_all_stores, succeeded
from tests.support import run_due, seen

STORES = 12


def taken_in(connection: Connection, consumer: str) -> list[Stored]:
    """Mark all messages as published and received; return them as NATS would."""
    connection.execute("UPDATE salon_jobs_message SET status = 'published', sent_at = now()")
    connection.execute(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, status, job_id)"
        " SELECT %s, message_id, 'enqueued', id FROM salon_jobs_message",
        [consumer],
    )
    query = "SELECT aggregate_id, message_id::text, payload::text FROM salon_jobs_message ORDER BY id"
    return [
        (f"reservations.{store}", {"Nats-Msg-Id": message_id}, payload)
        for store, message_id, payload in connection.execute(query).fetchall()
    ]


def test_upload_commits_file_task_and_message(demo: Connection) -> None:
    count, rolled_back = run_in_all_stores(upload_files.Command(), demo)
    assert count + rolled_back == STORES
    assert min(count, rolled_back) > 0
    assert demo.execute("SELECT count(*) FROM source_file").fetchall() == [(count,)]
    taken_in(demo, "uploads")

    def problems() -> list[str]:
        return [problem.what for problem in UploadVerifier(demo, succeeded(count), left=0).problems()]

    assert problems() == []
    [(task,)] = demo.execute("DELETE FROM parse_task WHERE id = (SELECT id FROM parse_task LIMIT 1) RETURNING id")
    assert f"parse task {task}: 1 messages for 0 rows" in problems()


def test_confirmation_commits_its_message(demo: Connection) -> None:
    count, rolled_back = run_in_all_stores(confirm_reservations.Command(), demo)
    assert min(count, rolled_back) > 0
    stored = taken_in(demo, "confirmations")
    assert len(stored) == count

    def problems(stored: list[Stored]) -> str:
        return "; ".join(each.what for each in MessageVerifier(demo, stored, succeeded(count)).problems())

    assert problems(stored) == ""
    assert "no message about it arrived" in problems(stored[1:])
    assert "arrived more than once" in problems([*stored, stored[0]])


def test_confirmation_is_recorded_once(demo: Connection) -> None:
    query = "SELECT store_id, id, customer_id, starts_at FROM demo_expected.confirmation LIMIT 1"
    [(store, reservation, customer, starts_at)] = demo.execute(query).fetchall()
    for _ in range(2):
        with tenant_context(UUID(str(store))):
            record_confirmation.function(store, reservation, starts_at)
    notes = "SELECT n.store_id, n.customer_id FROM customer_note n JOIN reservation USING (id, store_id, customer_id)"
    assert demo.execute(notes).fetchall() == [(store, customer)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("100\n20", ("SUCCEEDED", 2, 120, "")),
        *(
            (f"100\n{line}\n20", ("FAILED", None, None, "line 2 is no amount of yen below 1,000,000,000"))
            for line in ("ten", "-1", "1000000000")
        ),
    ],
)
def test_parsing_names_wrong_line(
    content: str, expected: tuple[object, ...], stores: list[UUID], process_id: int
) -> None:
    with tenant_context(stores[0]):
        task = upload(stores[0], name="sales.txt", content=content)
    for _ in range(2):
        parse_upload.enqueue(store_id=stores[0], task_id=task.pk, source_file_id=task.source_file.pk)
        assert [type(outcome) for outcome in run_due(process_id)] == [Succeeded]
        assert seen("SELECT status, lines, total, error FROM parse_task") == [expected]


def test_verifier_names_undone_and_wrong_tables(demo: Connection, tmp_path: Path) -> None:
    """Nothing has run, and one job and one store are not as they should be."""
    demo.execute("INSERT INTO salon_jobs_job (task, store_id) SELECT 'ping', id FROM store LIMIT 1")
    demo.execute("UPDATE store SET name = 'x' WHERE id = (SELECT id FROM store LIMIT 1)")
    with LocalSmtp() as smtp:
        found = Verifier(demo, instants_of(demo)).problems((), smtp, WorkerLog(tmp_path / "worker.log"))
    named = {problem.what.split()[0].rstrip(":") for problem in found if "no job of" not in problem.what}
    undone = {
        "customer",
        "customer_note",
        "daily_sales",
        "operator_session",
        "parse_task",
        "reservation",
        "source_file",
    }
    assert named == undone | {"job", "operator_invitation", "store"}


@pytest.mark.parametrize(("since_s", "found"), [(1, 0), (-1, 1), (None, 1)])
def test_superseded_job_needs_later_success(demo: Connection, tmp_path: Path, since_s: int | None, found: int) -> None:
    """Another job of its key must have succeeded after it was created; the log says so, for its row is deleted."""
    superseded = """
        INSERT INTO salon_jobs_job (task, store_id, job_key, state, reason, finished_at)
        SELECT 'ping', id, 'one', 'cancelled', 'superseded', now() FROM store LIMIT 1
        RETURNING store_id::text, created_at
    """
    [(store, created_at)] = demo.execute(superseded).fetchall()
    log = WorkerLog(tmp_path / "worker.log")
    if since_s is not None:
        ended_at = (created_at + timedelta(seconds=since_s)).isoformat()
        log.tasks["ping"].add("succeeded", {"job_id": 1, "store_id": store, "time": ended_at})
    with LocalSmtp() as smtp:
        problems = Verifier(demo, instants_of(demo)).problems((), smtp, log)
    assert len([problem for problem in problems if problem.what.startswith("job ")]) == found
