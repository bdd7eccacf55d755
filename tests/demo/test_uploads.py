"""The demo stores each file with its task and its message, parses it once, and verifies all three."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from project.demo.management.commands.upload_files import Command
from project.demo.tasks import parse_upload
from project.demo.verify_messages import UploadVerifier
from project.salon.uploads import upload
from salon_jobs import tenant_context
from salon_jobs.core.outcomes import Succeeded
from tests.demo.conftest import Connection, run_in_all_stores, succeeded
from tests.support import run_due, seen

STORES = 12
DIFFERENT = """
    SELECT count(*) FROM demo_expected.parse_task AS e
    FULL JOIN parse_task AS t USING (store_id, status, lines, total) WHERE e.error IS NULL OR t.id IS NULL
"""


def taken_in(connection: Connection) -> None:
    """Mark all as published and received."""
    connection.execute("UPDATE salon_jobs_message SET status = 'published', sent_at = now()")
    connection.execute(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, status, job_id) "
        "SELECT 'uploads', message_id, 'enqueued', id FROM salon_jobs_message"
    )


def problems(connection: Connection, jobs: int, *, left: int = 0) -> list[str]:
    return [problem.what for problem in UploadVerifier(connection, succeeded(jobs), left=left).problems()]


def test_a_file_is_kept_with_its_task_and_its_message_or_not_at_all(demo: Connection) -> None:
    count, rolled_back = run_in_all_stores(Command(), demo)
    assert count + rolled_back == STORES
    assert min(count, rolled_back) > 0
    assert demo.execute("SELECT count(*) FROM source_file").fetchall() == [(count,)]
    assert demo.execute("SELECT status, count(*) FROM parse_task GROUP BY status").fetchall() == [("PENDING", count)]
    taken_in(demo)
    assert problems(demo, count) == []
    figures = UploadVerifier(demo, succeeded(count), left=0).figures(uploaded=count, rolled_back=rolled_back)
    assert (figures.published, figures.taken_in, figures.jobs) == (count, count, count)


def test_a_file_without_a_task_or_message_or_with_two_or_taken_twice_or_left_is_named(demo: Connection) -> None:
    count, _ = run_in_all_stores(Command(), demo)
    taken_in(demo)
    assert problems(demo, count - 1) == [
        f"{count} files became {count} messages and {count - 1} jobs; {count - 1} succeeded"
    ]
    assert problems(demo, count, left=2) == ["2 messages are still there"]
    demo.execute("UPDATE salon_jobs_inbox SET message_id = 'x' WHERE id = (SELECT min(id) FROM salon_jobs_inbox)")
    assert "message x: 1 times instead of 0" in problems(demo, count)
    [(one, file, other)] = demo.execute(
        "SELECT min(id::text), min(source_file_id::text) FILTER (WHERE id::text = (SELECT min(id::text) FROM"
        " parse_task)), max(id::text) FROM parse_task"
    ).fetchall()
    demo.execute("DELETE FROM parse_task WHERE id = %s", [one])
    assert f"parse task {one}: 1 messages for 0 rows" in problems(demo, count)
    assert f"parse task of file {file}: 0 messages for 0 rows" in problems(demo, count)
    demo.execute("DELETE FROM salon_jobs_message WHERE payload ->> 'task_id' = %s", [other])
    assert f"parse task {other}: 0 messages for 1 rows" in problems(demo, count)


def test_a_file_is_parsed_the_same_however_often_it_is_run(demo: Connection, process_id: int) -> None:
    run_in_all_stores(Command(), demo)
    tasks = demo.execute("SELECT store_id, id, source_file_id FROM parse_task").fetchall()
    assert demo.execute(DIFFERENT).fetchall()[0][0] > 0
    for _ in range(2):
        for store, task, file in tasks:
            parse_upload.enqueue(store_id=store, task_id=task, source_file_id=file)
        assert {type(outcome) for outcome in run_due(process_id)} == {Succeeded}
        assert demo.execute(DIFFERENT).fetchall() == [(0,)]


def test_everybody_sees_how_far_the_parsing_is(stores: list[UUID], process_id: int) -> None:
    with tenant_context(stores[0]):
        task = upload(stores[0], name="sales.txt", content="100\n20")
    parse_upload.enqueue(store_id=stores[0], task_id=task.pk, source_file_id=task.source_file.pk)
    statuses: list[str] = []

    def look(execute: Callable[..., Any], *arguments: Any) -> Any:
        [(status,)] = seen("SELECT status FROM parse_task")
        statuses.append(status)
        return execute(*arguments)

    with connection.execute_wrapper(look):
        run_due(process_id)
    assert list(dict.fromkeys(statuses)) == ["PENDING", "RUNNING"]
    assert seen("SELECT status, lines, total FROM parse_task") == [("SUCCEEDED", 2, 120)]


@pytest.mark.parametrize("content", ["100\nten\n20", "100\n-1", "100\n1000000000"])
def test_a_file_with_a_line_that_is_no_amount_fails_by_its_number(
    content: str, stores: list[UUID], process_id: int
) -> None:
    with tenant_context(stores[0]):
        task = upload(stores[0], name="sales.txt", content=content)
    parse_upload.enqueue(store_id=stores[0], task_id=task.pk, source_file_id=task.source_file.pk)
    run_due(process_id)
    assert seen("SELECT status, lines, total, error FROM parse_task") == [
        ("FAILED", None, None, "line 2 is no amount of yen below 1,000,000,000")
    ]
