"""Everything in one process: jobs, cron, the relay and a consumer, over a real NATS."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from salon_jobs import tenant_context
from salon_jobs.process.heartbeat import Heartbeat
from salon_jobs.worker.supervisor import Supervisor
from salon_jobs.worker.worker import WorkerOptions
from tests.e2e import tasks
from tests.e2e.worker_process import WorkerProcess
from tests.servers.nats import NatsBroker
from tests.support import seen
from tests.waiting import eventually

ORDERS = "rn::nats:::orders"
CONSUMERS = {"orders": {"SOURCE": ORDERS, "TASKS": {"order.created": tasks.write.name}}}


def test_one_process_does_everything(nats: NatsBroker, stores: list[UUID]) -> None:
    outbox = {"PRODUCER": "test", "POLL_INTERVAL": 0.2}
    settings: dict[str, Any] = {**nats.settings(), "OUTBOX": outbox, "CONSUMERS": CONSUMERS}
    parts = ("--with-scheduler", "--with-relay", "--with-consumer")
    with WorkerProcess(*parts, **settings, ready=True) as worker:
        # A relay counts as one for the others, by a row of its own that lives.
        eventually(lambda: worker.readiness()["relay"]["partitions"])
        answer = worker.readiness()
        assert answer["relay"]["relays"] == 1
        assert answer["scheduler_polled_s_ago"] >= 0
        assert "orders" in answer["consumers"]
        # So does a scheduler, without which the verdict would miss one.
        kinds = [("relay",), ("scheduler",), ("supervisor",), ("worker",)]
        eventually(lambda: seen("SELECT kind FROM salon_jobs_process ORDER BY 1"), kinds)
        assert "problems" in worker.readiness()
        for store in stores:
            with tenant_context(store):
                tasks.emit_order.enqueue(store_id=store, to=ORDERS)
        for store in stores:
            worker.wait_for("job_succeeded", task_name=tasks.write.name, store_id=str(store))
        assert worker.end() == 0
        assert not worker.logged("process_registered_again")
    assert seen("SELECT DISTINCT status FROM salon_jobs_message") == [("published",)]
    assert sorted(one.store_id for one in nats.received(ORDERS)) == sorted(map(str, stores))
    assert [json.loads(one.payload) for one in nats.received(ORDERS)] == [{"note": "emitted"}] * len(stores)
    assert seen("SELECT count(*), count(DISTINCT store_id) FROM customer") == [(len(stores), len(stores))]
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)]


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("burst", [False, True])
def test_embedded_loops_are_stopped_once(burst: bool) -> None:
    """A second stop would force them; a burst stops them when the work ends by itself."""
    embedded = Mock(**{"run.return_value": True, "samples.return_value": []})
    heartbeat = Heartbeat("supervisor", concurrency=0, queues=None, using="default")
    options = WorkerOptions(concurrency=1, queues=None, burst=burst)
    worker = Supervisor(heartbeat, [], options, processes=0, embedded=[embedded])
    if not burst:
        worker.stop()
    assert worker.run()
    embedded.stop.assert_called_once_with()
