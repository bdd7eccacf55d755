"""Uploads a file: its row, its task and its message are one transaction; a worker beyond Azure parses it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import transaction

from project.demo import tasks as _tasks  # noqa: F401 - registers the one that parses
from project.salon.models import ParseTask, SourceFile
from project.salon.uploads import upload
from salon_jobs import emit, tenant_context
from salon_jobs.inbox.consumer import Consumers
from tests.e2e.worker_process import eventually
from tests.outbox.scene import outages, relay_in_burst, relaying, statuses
from tests.servers.azure import AzureBroker
from tests.settings import url_for
from tests.support import change, run_due, seen

PARSE = "rn::azurequeue:::parse-tasks"
pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureBroker]:
    """Run Azurite with the queue, which a deployment makes."""
    broker = AzureBroker()
    try:
        broker.start()
        broker.destination("parse-tasks")
        yield broker
    finally:
        broker.close()


@pytest.fixture
def both_sides(azure: AzureBroker, change_settings: Callable[..., None], outbox: None) -> AzureBroker:
    """Declare the consumer of the demo, on the other side of Azure."""
    consumer = {"SOURCE": PARSE, "TASKS": {"file.uploaded": "parse-upload"}}
    change_settings(**azure.settings(), CONSUMERS={"uploads": consumer})
    return azure


def counts() -> list[int]:
    """Count files, tasks and messages."""
    tables = ("source_file", "parse_task", "salon_jobs_message")
    return [int(seen(f"SELECT count(*) FROM {table}")[0][0]) for table in tables]


def parsed() -> list[tuple[object, ...]]:
    """Return the name, status and total of each file."""
    return seen("""
        SELECT name, status, total FROM source_file JOIN parse_task ON source_file_id = source_file.id ORDER BY name
    """)


def test_an_upload_is_parsed_once_on_the_other_side(
    both_sides: AzureBroker, stores: list[UUID], process_id: int
) -> None:
    own, other = stores[:2]
    with tenant_context(own):
        upload(own, name="never", content="1")
        transaction.set_rollback(True)
    assert counts() == [0, 0, 0]

    with tenant_context(own):
        first = upload(own, name="first", content="100\n20")
    with tenant_context(other):
        second = upload(other, name="second", content="3")
    assert counts() == [2, 2, 2]
    assert both_sides.received(PARSE) == []

    assert relay_in_burst()
    assert statuses() == {"published": 2}
    assert {(message.store_id, message.payload) for message in both_sides.received(PARSE)} == {
        (str(store), f'{{"task_id":"{task.pk}","source_file_id":"{task.source_file.pk}"}}')
        for store, task in ((own, first), (other, second))
    }

    assert Consumers(burst=True, using="default").run()
    assert both_sides.received(PARSE) == []
    assert seen("SELECT task, store_id FROM salon_jobs_job ORDER BY store_id") == [
        ("parse-upload", own),
        ("parse-upload", other),
    ]
    assert parsed() == [("first", "PENDING", None), ("second", "PENDING", None)]

    run_due(process_id)
    assert parsed() == [("first", "SUCCEEDED", 120), ("second", "SUCCEEDED", 3)]


def test_an_upload_while_azure_is_down_is_parsed_when_it_is_back(
    both_sides: AzureBroker, stores: list[UUID], process_id: int
) -> None:
    with relaying():
        both_sides.stop()
        try:
            with tenant_context(stores[0]):
                upload(stores[0], name="while it was down", content="4")
            eventually(lambda: outages() == ["AZURE.UNREACHABLE"])
            assert statuses() == {"pending": 1}
        finally:
            both_sides.start()
        eventually(lambda: statuses() == {"published": 1}, 20)
    assert seen("SELECT retry_count FROM salon_jobs_message") == [(0,)]

    assert Consumers(burst=True, using="default").run()
    run_due(process_id)
    assert parsed() == [("while it was down", "SUCCEEDED", 4)]


def test_a_crash_between_send_and_commit_leaves_nothing_and_one_between_send_and_mark_parses_once(
    both_sides: AzureBroker, stores: list[UUID], process_id: int
) -> None:
    # The uploader dies when everything is written and nothing committed: its socket closes, no rollback is sent.
    dying = psycopg.connect(url_for("app"))
    dying.execute("SELECT set_config('app.current_store_id', %s, true)", [str(stores[0])])
    file, task = uuid4(), uuid4()
    dying.execute("INSERT INTO source_file VALUES (%s, 'lost', '1', %s)", [file, stores[0]])
    dying.execute(
        "INSERT INTO parse_task (id, store_id, source_file_id, status, error) VALUES (%s, %s, %s, 'PENDING', '')",
        [task, stores[0], file],
    )
    payload = json.dumps({"task_id": str(task), "source_file_id": str(file)})
    emit_sql = "SELECT salon_jobs_emit(%s, %s, 'file.uploaded', %s, producer => 'salon')"
    dying.execute(emit_sql, [PARSE, str(task), payload])
    dying.pgconn.finish()
    with tenant_context(stores[0]):
        kept = str(upload(stores[0], name="kept by its commit", content="5").pk)
    assert relay_in_burst()
    assert [message.aggregate_id for message in both_sides.received(PARSE)] == [kept]
    assert counts() == [1, 1, 1]

    # The relay dies when Azure has the message and the table does not know it: the next one sends it again.
    change("UPDATE salon_jobs_message SET status = 'pending', sent_at = NULL")
    assert relay_in_burst()
    twice = both_sides.received(PARSE)
    assert [message.aggregate_id for message in twice] == [kept, kept]
    assert len({message.message_id for message in twice}) == 1

    assert Consumers(burst=True, using="default").run()
    assert seen("SELECT task, store_id FROM salon_jobs_job") == [("parse-upload", stores[0])]
    run_due(process_id)
    assert parsed() == [("kept by its commit", "SUCCEEDED", 5)]


def test_an_upload_is_parsed_where_bodies_carry_no_envelope(
    azure: AzureBroker, change_settings: Callable[..., None], stores: list[UUID], process_id: int
) -> None:
    plain = {**azure.settings()["AZURE"], "PLAIN_QUEUES": ["parse-tasks"]}
    consumer = {"SOURCE": PARSE, "ENVELOPE": "none", "TASKS": {"*": "parse-upload"}}
    change_settings(AZURE=plain, CONSUMERS={"uploads": consumer})
    written = []
    for store, name in ((stores[0], "emitted"), (stores[1], "other store"), (stores[0], "other writer")):
        with tenant_context(store):
            file = SourceFile.objects.create(store_id=store, name=name, content="7")
            task = ParseTask.objects.create(store_id=store, source_file=file)
            written.append({"task_id": str(task.pk), "source_file_id": str(file.pk), "store_id": str(store)})
            if name != "other writer":
                emit(PARSE, event="file.uploaded", payload=written[-1])
    assert relay_in_burst()
    assert statuses() == {"published": 2}

    # Another program writes to the same queue, as it pleases, and one of its bodies is broken.
    azure.spoil(PARSE, json.dumps(written[2]))
    azure.spoil(PARSE, '{"task_id": 4, ')
    with azure.queue(PARSE) as queue:
        there = queue.peek_messages(max_messages=32)
    bodies = [json.loads(base64.b64decode(message.content)) for message in there[:2]]
    assert sorted(bodies, key=written.index) == written[:2]

    assert Consumers(burst=True, using="default").run()
    with azure.queue(PARSE) as queue:
        assert queue.peek_messages() == []
    became = dict(seen("SELECT message_id, status FROM salon_jobs_inbox"))
    assert [became.pop(message.id) for message in there] == ["enqueued"] * 3 + ["rejected"]
    assert became == {}
    run_due(process_id)
    assert parsed() == [(name, "SUCCEEDED", 7) for name in ("emitted", "other store", "other writer")]
