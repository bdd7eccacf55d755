"""Tests that a flow goes on, and starts each member exactly once, whatever is killed while it runs."""

from __future__ import annotations

import random
from uuid import UUID

from salon_jobs import flow, tenant_context
from salon_jobs.jobs import Member
from tests.e2e import tasks
from tests.e2e.killing import kill_children
from tests.e2e.worker_process import QUICK, WorkerProcess
from tests.support import seen

MEMBERS = 200


def test_graph_survives_kills(stores: list[UUID]) -> None:
    chance = random.Random(30)
    with tenant_context(stores[0]), flow("graph") as graph:
        members = list[Member]()
        for _ in range(MEMBERS):
            after = chance.sample(members[-40:], min(len(members[-40:]), chance.randrange(4)))
            members.append(graph.add(tasks.write.call(store_id=stores[0]), after=after))

    def succeeded() -> int:
        return int(seen("SELECT count(*) FROM salon_jobs_flow_member WHERE outcome = 'succeeded'")[0][0])

    with WorkerProcess("--processes", "2", ready=True, **QUICK) as worker:
        kill_children(worker, succeeded, MEMBERS, kills=4)
    assert seen("SELECT count(*) FROM customer") == [(MEMBERS,)], "each ran once"
    assert seen("SELECT count(*) FROM salon_jobs_flow_edge") == [(0,)]
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
