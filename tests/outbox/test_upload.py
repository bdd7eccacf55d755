"""Uploads a file: its row, its job and its message are one transaction; a worker beyond Azure parses it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from uuid import UUID

import psycopg
import pytest
from django.db import connection, transaction

from salon_jobs import emit, tenant_context
from salon_jobs.inbox.consumer import Consumers
from tests.e2e.worker_process import eventually
from tests.outbox.scene import outages, relay_in_burst, relaying, statuses
from tests.servers.azure import AzureBroker
from tests.settings import url_for
from tests.support import change, run_due, seen
from tests.tasks import Hooks, in_store, keyed

PARSE = "rn::azurequeue:::parse-tasks"
pytestmark = pytest.mark.usefixtures("uploads")


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
    """Declare that what is uploaded is parsed by a store task."""
    consumer = {"SOURCE": PARSE, "TASKS": {"file.uploaded": in_store.name}}
    change_settings(**azure.settings(), CONSUMERS={"parser": consumer})
    return azure


@pytest.fixture
def uploads(database: None) -> Iterator[None]:
    """Make the business table, whose rows belong to stores."""
    change("CREATE TABLE upload (id bigint PRIMARY KEY, store_id uuid NOT NULL, content text NOT NULL, words bigint)")
    change("GRANT SELECT, INSERT, UPDATE ON upload TO worker_runtime")
    change("ALTER TABLE upload ENABLE ROW LEVEL SECURITY")
    change(
        "CREATE POLICY own ON upload TO worker_runtime "
        "USING (store_id = (SELECT NULLIF(current_setting('app.current_store_id', true), '')::uuid))"
    )
    yield
    change("DROP TABLE upload")


def parse(store_id: UUID, number: int) -> None:
    """Count the words of an upload, as its store; doing it again changes nothing."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE upload SET words = array_length(string_to_array(content, ' '), 1) WHERE id = %s", [number]
        )
        assert cursor.rowcount == 1


def insert(store_id: UUID, number: int, content: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO upload VALUES (%s, %s, %s)", [number, store_id, content])


def upload(store_id: UUID, number: int, content: str) -> None:
    """Write all that an upload is, as a view would."""
    insert(store_id, number, content)
    keyed.enqueue(store_id=store_id, number=number)
    emit(PARSE, aggregate_id=str(number), event="file.uploaded", payload={"number": number})


def counts() -> list[int]:
    """Count uploads, jobs and messages."""
    tables = ("upload", "salon_jobs_job", "salon_jobs_message")
    return [int(seen(f"SELECT count(*) FROM {table}")[0][0]) for table in tables]


def test_an_upload_is_parsed_once_on_the_other_side(
    both_sides: AzureBroker, stores: list[UUID], hooks: Hooks, process_id: int
) -> None:
    own, other = stores[:2]
    with tenant_context(own):
        upload(own, 1, "never seen")
        transaction.set_rollback(True)
    assert counts() == [0, 0, 0]

    with tenant_context(own):
        upload(own, 2, "a file of five words")
    with tenant_context(other):
        upload(other, 3, "two words")
    assert counts() == [2, 2, 2]
    assert both_sides.received(PARSE) == []

    assert relay_in_burst()
    assert statuses() == {"published": 2}
    assert {(message.store_id, message.payload) for message in both_sides.received(PARSE)} == {
        (str(own), '{"number":2}'),
        (str(other), '{"number":3}'),
    }

    change("DELETE FROM salon_jobs_job")  # what the uploader's own worker does with its jobs is another test's
    assert Consumers(burst=True).run()
    assert both_sides.received(PARSE) == []
    assert seen("SELECT task, store_id FROM salon_jobs_job ORDER BY store_id") == [
        (in_store.name, own),
        (in_store.name, other),
    ]

    hooks.store = parse
    run_due(process_id)
    assert seen("SELECT id, words FROM upload ORDER BY id") == [(2, 5), (3, 2)]
    assert counts() == [2, 0, 2]


def test_an_upload_while_azure_is_down_is_parsed_when_it_is_back(
    both_sides: AzureBroker, stores: list[UUID], hooks: Hooks, process_id: int
) -> None:
    with relaying():
        both_sides.stop()
        try:
            with tenant_context(stores[0]):
                upload(stores[0], 4, "while it was down")
            eventually(lambda: outages() == ["AZURE.UNREACHABLE"])
            assert statuses() == {"pending": 1}
        finally:
            both_sides.start()
        eventually(lambda: statuses() == {"published": 1}, 20)
    assert seen("SELECT retry_count FROM salon_jobs_message") == [(0,)]

    assert Consumers(burst=True).run()
    hooks.store = parse
    run_due(process_id)
    assert seen("SELECT words FROM upload") == [(4,)]


def test_a_crash_between_send_and_commit_leaves_nothing_and_one_between_send_and_mark_parses_once(
    both_sides: AzureBroker, stores: list[UUID], hooks: Hooks, process_id: int
) -> None:
    # The uploader dies when everything is written and nothing committed: its socket closes, no rollback is sent.
    dying = psycopg.connect(url_for("worker_runtime"))
    dying.execute("SELECT set_config('app.current_store_id', %s, true)", [str(stores[0])])
    dying.execute("INSERT INTO upload VALUES (5, %s, 'lost with its process')", [stores[0]])
    dying.execute("SELECT salon_jobs_emit(%s, '5', 'file.uploaded', '{\"number\": 5}', producer => 'salon')", [PARSE])
    dying.pgconn.finish()
    with tenant_context(stores[0]):
        upload(stores[0], 6, "kept by its commit")
    assert relay_in_burst()
    assert [message.aggregate_id for message in both_sides.received(PARSE)] == ["6"]
    assert seen("SELECT id FROM upload") == [(6,)]

    # The relay dies when Azure has the message and the table does not know it: the next one sends it again.
    change("UPDATE salon_jobs_message SET status = 'pending', sent_at = NULL")
    assert relay_in_burst()
    twice = both_sides.received(PARSE)
    assert [message.aggregate_id for message in twice] == ["6", "6"]
    assert len({message.message_id for message in twice}) == 1

    change("DELETE FROM salon_jobs_job")
    assert Consumers(burst=True).run()
    assert seen("SELECT task, store_id FROM salon_jobs_job") == [(in_store.name, stores[0])]
    parsed: list[int] = []

    def parse_and_count(store_id: UUID, number: int) -> None:
        parsed.append(number)
        parse(store_id, number)

    hooks.store = parse_and_count
    run_due(process_id)
    assert parsed == [6]
    assert seen("SELECT words FROM upload") == [(4,)]


def test_an_upload_is_parsed_where_bodies_carry_no_envelope(
    azure: AzureBroker, change_settings: Callable[..., None], stores: list[UUID], hooks: Hooks, process_id: int
) -> None:
    plain = {**azure.settings()["AZURE"], "PLAIN_QUEUES": ["parse-tasks"]}
    consumer = {"SOURCE": PARSE, "ENVELOPE": "none", "TASKS": {"*": in_store.name}}
    change_settings(AZURE=plain, CONSUMERS={"parser": consumer})
    for store, number, content in ((stores[0], 2, "a file of five words"), (stores[1], 3, "two words")):
        with tenant_context(store):
            insert(store, number, content)
            emit(PARSE, event="file.uploaded", payload={"number": number, "store_id": store})
    assert relay_in_burst()
    assert statuses() == {"published": 2}

    # Another program writes to the same queue, as it pleases, and one of its bodies is broken.
    with tenant_context(stores[0]):
        insert(stores[0], 4, "of another writer")
    azure.spoil(PARSE, f'{{"number": 4, "store_id": "{stores[0]}"}}')
    azure.spoil(PARSE, '{"number": 4, ')
    with azure.queue(PARSE) as queue:
        there = queue.peek_messages(max_messages=32)
    bodies = [json.loads(base64.b64decode(message.content)) for message in there[:2]]
    assert sorted(bodies, key=lambda body: body["number"]) == [
        {"number": 2, "store_id": str(stores[0])},
        {"number": 3, "store_id": str(stores[1])},
    ]

    assert Consumers(burst=True).run()
    with azure.queue(PARSE) as queue:
        assert queue.peek_messages() == []
    became = dict(seen("SELECT message_id, status FROM salon_jobs_inbox"))
    assert [became.pop(message.id) for message in there] == ["enqueued"] * 3 + ["rejected"]
    assert became == {}
    hooks.store = parse
    run_due(process_id)
    assert seen("SELECT id, words FROM upload ORDER BY id") == [(2, 5), (3, 2), (4, 3)]
    assert counts() == [3, 0, 2]
