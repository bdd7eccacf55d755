"""Shows that whatever is logged in a handler names its job, and that no record of a whole run holds a payload."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from enum import Enum
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.db import transaction

from salon_jobs import Snooze, current_job, emit, task, tenant_context
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import PublishFailure, Verdict
from salon_jobs.core import tracing
from salon_jobs.jobs import registry
from salon_jobs.process.logs import configure_logging
from tests import tasks
from tests.inside import trace_with
from tests.outbox.conftest import change_settings, outbox
from tests.outbox.scene import ORDERS, relay_in_burst
from tests.outbox.whole_way import delivered, discard, fail, processor, run_all
from tests.support import change, seen
from tests.tracers import RecordingTracer

SECRET = "a-customers-name"
FIELDS = ("task_name", "job_id", "store_id", "attempt", "trace_id")
__all__ = ["change_settings", "outbox"]  # fixtures
host = logging.getLogger("host.tills")
pytestmark = pytest.mark.usefixtures("hooks")


class Output(StringIO):
    """Holds what was written to standard output."""

    def records(self, **fields: object) -> list[dict[str, Any]]:
        """Return the records with these fields."""
        found = [json.loads(line) for line in self.getvalue().splitlines()]
        return [record for record in found if all(record.get(name) == value for name, value in fields.items())]


Configure = Callable[..., Output]


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Configure the log as the commands do, and undo that."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []

    def make(*, as_json: bool = True, log_level: str = "INFO") -> Output:
        output = Output()
        monkeypatch.setattr(sys, "stdout", output)
        configure_logging(log_format="json" if as_json else "text", level=log_level)
        return output

    yield make
    root.handlers[:] = handlers
    root.setLevel(level)


def test_records_name_the_job_during_its_run(stores: list[UUID], configure: Configure) -> None:
    tasks.hooks.store = tasks.hooks.system = lambda **_: host.info("asking the printer")
    output, expected = configure(), []
    for declared, store in ((tasks.in_store, stores[0]), (tasks.outside, stores[1]), (tasks.system, None)):
        given: dict[str, Any] = {"store_id": store} if store else {}
        of_store = {"store_id": str(store)} if store else {}
        job_id = declared.enqueue(**given).id
        expected.append({"task_name": declared.name, "job_id": job_id, **of_store, "attempt": 1})
    run_all()
    host.info("asking the printer")
    records = output.records(logger="host.tills")
    *found, after = [{name: record[name] for name in FIELDS if name in record} for record in records]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert after == {}


def test_each_attempt_is_named(configure: Configure) -> None:
    def fail_once(**_: object) -> None:
        host.info("asking the printer")
        if current_job().attempt == 1:
            raise OSError("the printer is off")

    tasks.hooks.system = fail_once
    output = configure()
    tasks.system.enqueue()
    run_all(attempts=2)
    assert [record["attempt"] for record in output.records(logger="host.tills")] == [1, 2]
    [retried], [succeeded] = (output.records(event=event) for event in ("job_retried", "job_succeeded"))
    assert (retried["attempt"], succeeded["attempt"]) == (1, 2)


def test_async_records_name_the_job(stores: list[UUID], configure: Configure) -> None:
    """Those of tasks that it awaits and of threads that it uses do, too."""

    async def embedded() -> None:
        host.info("in a task")

    async def work(**_: object) -> None:
        host.info("in the handler")
        await asyncio.gather(asyncio.create_task(embedded()), asyncio.to_thread(host.info, "in a thread"))
        await sync_to_async(host.info)("in its synchronous part")

    tasks.hooks.coroutine = work
    output = configure()
    for store in stores:
        tasks.async_store.enqueue(store_id=store)
    run_all()
    for store in stores:
        messages = [record["message"] for record in output.records(logger="host.tills", store_id=str(store))]
        assert sorted(messages) == ["in a task", "in a thread", "in its synchronous part", "in the handler"]
    assert len(output.records(logger="host.tills")) == 12


def test_thread_with_the_context_names_the_job(configure: Configure) -> None:
    def body(**_: object) -> None:
        threads = [
            threading.Thread(target=host.info, args=("without",)),
            threading.Thread(target=contextvars.copy_context().run, args=(host.info, "with")),
        ]
        for thread in threads:
            thread.start()
            thread.join()

    tasks.hooks.system = body
    output = configure()
    handle = tasks.system.enqueue()
    run_all()
    [without], [handed] = output.records(message="without"), output.records(message="with")
    if not getattr(sys.flags, "thread_inherit_context", False):
        assert "job_id" not in without
    assert handed["job_id"] == handle.id


def test_fields_of_a_record_stay(configure: Configure) -> None:
    tasks.hooks.system = lambda **_: host.info("asking", extra={"task_name": "mine", "attempt": "last"})
    output = configure()
    handle = tasks.system.enqueue()
    run_all()
    [record] = output.records(logger="host.tills")
    assert (record["task_name"], record["attempt"], record["job_id"]) == ("mine", "last", handle.id)


def test_text_format_appends_the_job(stores: list[UUID], configure: Configure) -> None:
    tasks.hooks.store = lambda **_: host.info("asking the printer")
    output = configure(as_json=False)
    handle = tasks.in_store.enqueue(store_id=stores[0])
    run_all()
    fields = f"task_name=test-store job_id={handle.id} store_id={stores[0]} attempt=1"
    asked, succeeded = output.getvalue().splitlines()
    assert asked.endswith(f"INFO    host.tills asking the printer {fields}")
    assert succeeded.count(fields) == 1


def test_text_cannot_forge_a_log_line(configure: Configure) -> None:
    output = configure(as_json=False)
    try:
        raise ValueError("of the till\n2026-01-01 INFO forged\x1b[2J")
    except ValueError:
        host.exception("said: %s", "予約\n2026-01-01 INFO forged \x9b2J")
    said, *traceback = output.getvalue().splitlines()
    assert said.endswith("said: 予約\\n2026-01-01 INFO forged \\x9b2J")
    assert traceback[-2:] == ["  ValueError: of the till", "  2026-01-01 INFO forged\\x1b[2J"]
    assert all(line.startswith("  ") and line.isprintable() for line in traceback)


def test_records_of_a_run_name_its_trace(
    stores: list[UUID], configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tracing(RecordingTracer):
        def running(self, run: tracing.Run) -> Any:
            run.trace_id = "a-trace"
            return super().running(run)

    trace_with(monkeypatch, Tracing({}))
    tasks.hooks.store = lambda **_: host.info("asking the printer")
    output = configure()
    tasks.in_store.enqueue(store_id=stores[0])
    run_all()
    names = {record.get("event", record.get("message")) for record in output.records(trace_id="a-trace")}
    assert names == {"asking the printer", "job_succeeded"}


class Size(Enum):
    """Value that payloads no longer allow."""

    SMALL = "small"


@pytest.fixture
def sized() -> Iterator[Any]:
    @task(name="test-sized")
    def with_size(size: Size = Size.SMALL) -> None:
        """Do nothing."""

    yield with_size
    registry.unregister("test-sized")


def test_no_log_record_holds_a_payload(stores: list[UUID], configure: Configure, sized: Any) -> None:
    ends: list[Callable[[], object]] = [lambda: None, discard, tasks.raises(Snooze(timedelta(0))), fail, fail]

    def body(**_: object) -> None:
        host.warning("attempt %s", current_job().attempt)
        ends[(current_job().id + current_job().attempt) % len(ends)]()

    async def work(**given: object) -> None:
        body(**given)

    tasks.hooks.system = body
    tasks.hooks.coroutine = work
    MemoryPublisher.answer = lambda m: PublishFailure(Verdict.REFUSED, "TEST.NO") if m.event == "refused" else None
    output = configure(log_level="DEBUG")
    logging.getLogger("django.db.backends").setLevel("INFO")  # which logs every statement
    for _ in range(10):
        tasks.system.enqueue(note=SECRET)
        tasks.async_system.enqueue(note=SECRET)
    tasks.keyed_system.enqueue(note=SECRET)
    sized.enqueue()
    change("UPDATE salon_jobs_job SET payload = %s WHERE task = 'test-sized'", json.dumps({"size": SECRET}))
    with tenant_context(stores[0]):
        for event in ("order.created", "noted", "unheard-of", "refused"):
            emit(ORDERS, event=event, payload={"note": SECRET, "number": SECRET}, headers={"X-Name": SECRET})
    with transaction.atomic():
        emit("rn::jobs:::test-sized", event="sized", payload={"size": SECRET})
    relay_in_burst()
    processor().process([delivered(message) for message in MemoryPublisher.published])
    run_all(attempts=4)
    events = {record["event"] for record in output.records() if "event" in record}
    assert events >= {f"job_{ended}" for ended in ("succeeded", "cancelled", "snoozed", "retried", "failed")}
    assert events >= {"message_failed", "message_rejected"}
    assert len(output.records(logger="host.tills")) > 20
    assert seen("SELECT reason FROM salon_jobs_job WHERE task = 'test-sized'") == [("JOB.PAYLOAD_INVALID",)]
    assert [line for line in output.getvalue().splitlines() if SECRET in line] == []
