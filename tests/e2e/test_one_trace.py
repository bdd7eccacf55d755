"""One message through a worker, a relay, a real NATS, a consumer and the worker again, each a process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connections

from salon_jobs import tenant_context
from tests.e2e import tasks
from tests.e2e.span_file import read_spans
from tests.e2e.worker_process import ConsumerProcess, RelayProcess, WorkerProcess
from tests.servers.nats import NatsBroker
from tests.support import seen
from tests.waiting import eventually

TRACED = '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'
ORDERS = "rn::nats:::orders"
CONSUMERS = {"orders": {"SOURCE": ORDERS, "TASKS": {"order.created": tasks.write.name}}}


def test_message_is_one_trace_through_all_processes(nats: NatsBroker, stores: list[UUID], tmp_path: Path) -> None:
    file = tmp_path / "spans"
    outbox = {"PRODUCER": "test", "POLL_INTERVAL": 0.2}
    settings: dict[str, Any] = {**nats.settings(), "OUTBOX": outbox, "CONSUMERS": CONSUMERS, "SPANS": str(file)}
    with (
        WorkerProcess(**settings, ready=True) as worker,
        RelayProcess(**settings) as relay,
        ConsumerProcess(**settings) as consumer,
    ):
        with tenant_context(stores[0]):
            tasks.emit_order.enqueue(store_id=stores[0], to=ORDERS)
        written = worker.wait_for("job_succeeded", task_name=tasks.write.name)
        emitter, relayed, consumed = worker.children()[0], relay.pid, consumer.pid
        assert read_spans(file) == [], "they go in batches"
        for process in (worker, relay, consumer):
            process.stop()
        for process in (worker, relay, consumer):
            assert process.wait() == 0
    spans = {span["name"]: span for span in read_spans(file)}
    names = ["run e2e-emit-order", "emit orders", "publish orders", "consume orders", "run e2e-write"]
    first, emitted, published, taken, ran = (spans[name] for name in names)
    assert {span["context"]["trace_id"] for span in spans.values()} == {f"0x{written['trace_id']}"}
    assert [span["parent_id"] for span in (first, emitted, published, taken, ran)] == [
        None,
        *(span["context"]["span_id"] for span in (first, emitted, emitted, taken)),
    ]
    assert [span["pid"] for span in (published, taken)] == [relayed, consumed]
    assert first["pid"] == emitted["pid"] == ran["pid"] == emitter["pid"]
    assert published["attributes"]["messaging.system"] == taken["attributes"]["messaging.system"] == "nats"


def test_hanging_agent_holds_nothing_up(database: None, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    os.mkfifo(agent)  # whoever writes waits for a reader
    with RelayProcess(SPANS=str(agent), OUTBOX={"PRODUCER": "test"}) as relay:
        relay.wait_for("partitions_owned")
        with connections["owner"].cursor() as cursor:
            cursor.execute("SELECT salon_jobs_emit('rn::jobs:::ping', '', 'e', '{}', %s)", [TRACED])
        eventually(lambda: seen("SELECT status FROM salon_jobs_message"), [("published",)])
        assert relay.end() == 0
        assert relay.logged("process_stopped", clean=True)
