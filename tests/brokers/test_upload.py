"""Uploads a file: its row, its task and its message are one transaction; a worker beyond Azure parses it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import pytest
from azure.core.exceptions import ResourceExistsError
from django.db import transaction

from project.demo import tasks as _tasks  # noqa: F401 - registers the one that parses
from project.salon.models import ParseTask, SourceFile
from project.salon.uploads import upload
from salon_jobs import emit, tenant_context
from salon_jobs.inbox.consumer import Consumers
from tests.outbox.conftest import change_settings, outbox
from tests.outbox.scene import relay_in_burst, statuses
from tests.servers.azure import AzureBroker
from tests.servers.registry import on
from tests.support import run_due, seen

PARSE = "rn::azurequeue:::parse-tasks"
pytestmark = on("azurequeue")
__all__ = ["change_settings", "outbox"]  # fixtures


@pytest.fixture
def azure(broker: AzureBroker) -> AzureBroker:
    with suppress(ResourceExistsError):
        broker.destination("parse-tasks")
    return broker


def counts() -> list[int]:
    """Count files, tasks and messages."""
    tables = ("source_file", "parse_task", "salon_jobs_message")
    return [int(seen(f"SELECT count(*) FROM {table}")[0][0]) for table in tables]


def parsed() -> list[tuple[object, ...]]:
    """Return the name, status and total of each file."""
    return seen("""
        SELECT name, status, total FROM source_file JOIN parse_task ON source_file_id = source_file.id ORDER BY name
    """)


def test_upload_is_parsed_once(
    azure: AzureBroker, change_settings: Callable[..., None], stores: list[UUID], process_id: int
) -> None:
    change_settings(CONSUMERS={"uploads": {"SOURCE": PARSE, "TASKS": {"file.uploaded": "parse-upload"}}})
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
    assert azure.received(PARSE) == []

    assert relay_in_burst()
    assert statuses() == {"published": 2}
    assert {(message.store_id, message.payload) for message in azure.received(PARSE)} == {
        (str(store), f'{{"task_id":"{task.pk}","source_file_id":"{task.source_file.pk}"}}')
        for store, task in ((own, first), (other, second))
    }

    assert Consumers(burst=True, using="default").run()
    assert azure.received(PARSE) == []
    jobs = seen("SELECT task, store_id FROM salon_jobs_job ORDER BY store_id")
    assert jobs == [("parse-upload", own), ("parse-upload", other)]
    assert parsed() == [("first", "PENDING", None), ("second", "PENDING", None)]

    run_due(process_id)
    assert parsed() == [("first", "SUCCEEDED", 120), ("second", "SUCCEEDED", 3)]


def test_upload_without_an_envelope(
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
