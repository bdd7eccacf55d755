"""The demo stores each file with its message, parses it once, and verifies both."""

from __future__ import annotations

from uuid import UUID

from project.demo.management.commands.upload_files import Command
from project.demo.tasks import parse_upload
from project.demo.verify_messages import UploadVerifier
from salon_jobs import tenant_context
from tests.demo.conftest import Connection, run_in_all_stores, succeeded

STORES = 12
DIFFERENT = """
    SELECT count(*) FROM demo_expected.uploaded_file AS e
    FULL JOIN uploaded_file AS f USING (store_id, name, lines, total) WHERE e.name IS NULL OR f.name IS NULL
"""


def taken_in(connection: Connection) -> None:
    """Mark all as published and received, under ids of the broker."""
    connection.execute("UPDATE salon_jobs_message SET status = 'published', sent_at = now()")
    connection.execute(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, status, job_id) "
        "SELECT 'uploads', gen_random_uuid(), 'enqueued', id FROM salon_jobs_message"
    )


def problems(connection: Connection, jobs: int, *, left: int = 0) -> list[str]:
    return [problem.what for problem in UploadVerifier(connection, succeeded(jobs), left=left).problems()]


def test_a_file_is_kept_with_its_message_or_not_at_all(demo: Connection) -> None:
    count, rolled_back = run_in_all_stores(Command(), demo)
    assert count + rolled_back == STORES
    assert min(count, rolled_back) > 0
    assert demo.execute("SELECT count(*) FROM uploaded_file").fetchall() == [(count,)]
    taken_in(demo)
    assert problems(demo, count) == []
    figures = UploadVerifier(demo, succeeded(count), left=0).figures(uploaded=count, rolled_back=rolled_back)
    assert (figures.published, figures.taken_in, figures.jobs) == (count, count, count)


def test_a_file_without_a_message_or_with_two_or_taken_twice_or_left_is_named(demo: Connection) -> None:
    count, _ = run_in_all_stores(Command(), demo)
    taken_in(demo)
    assert problems(demo, count - 1) == [
        f"{count} files became {count} messages and {count - 1} jobs; {count - 1} succeeded"
    ]
    assert problems(demo, count, left=2) == ["2 messages are still there"]
    demo.execute(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, status) SELECT 'uploads', message_id, 'enqueued' "
        "FROM salon_jobs_message LIMIT 1"
    )
    assert any("has the id under which it was emitted" in what for what in problems(demo, count))
    [(one, other)] = demo.execute("SELECT min(id::text), max(id::text) FROM uploaded_file").fetchall()
    demo.execute("DELETE FROM uploaded_file WHERE id = %s", [one])
    assert f"file {one}: 1 messages for 0 rows" in problems(demo, count)
    demo.execute("DELETE FROM salon_jobs_message WHERE payload ->> 'task_id' = %s", [other])
    assert f"file {other}: 0 messages for 1 rows" in problems(demo, count)


def test_a_file_is_parsed_the_same_however_often_it_is_run(demo: Connection) -> None:
    run_in_all_stores(Command(), demo)
    files = demo.execute("SELECT store_id, id FROM uploaded_file").fetchall()
    assert demo.execute(DIFFERENT).fetchall()[0][0] > 0
    for _ in range(2):
        for store, file in files:
            with tenant_context(UUID(str(store))):
                parse_upload.function(store, file)
    assert demo.execute(DIFFERENT).fetchall() == [(0,)]
