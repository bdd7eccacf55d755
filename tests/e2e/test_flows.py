"""Tests that a flow goes on, and starts each member exactly once, whatever is killed while it runs."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from functools import partial
from uuid import UUID

from salon_jobs import flow, tenant_context
from salon_jobs.jobs import Member
from tests.e2e import tasks
from tests.e2e.test_supervisor import QUICK, URL
from tests.e2e.worker_process import WorkerProcess
from tests.support import seen
from tests.waiting import eventually

MEMBERS, KILLS = 400, 6


def test_a_graph_runs_to_its_end_while_processes_are_killed(stores: list[UUID]) -> None:
    chance = random.Random(30)
    with tenant_context(stores[0]), flow("graph") as graph:
        members = list[Member]()
        for _ in range(MEMBERS):
            after = chance.sample(members[-40:], min(len(members[-40:]), chance.randrange(4)))
            members.append(graph.add(tasks.write.call(store_id=stores[0]), after=after))
    succeeded = "SELECT count(*) FROM salon_jobs_flow_member WHERE outcome = 'succeeded'"
    killed = 0

    def more_than(number: int) -> bool:
        return int(seen(succeeded)[0][0]) > number

    with WorkerProcess("--processes", "2", url=URL, ready=True, **QUICK) as worker:
        for kill in range(1, KILLS + 1):
            eventually(partial(more_than, kill * MEMBERS // (KILLS + 2)))
            children = worker.ask("/readyz")[1].get("children", [])  # none while one has yet to be replaced
            with suppress(ProcessLookupError):
                for child in children[:1]:
                    os.kill(child["pid"], signal.SIGKILL)
                    killed += 1
        eventually(lambda: seen(succeeded), [(MEMBERS,)])
    assert killed
    assert seen("SELECT count(*) FROM customer") == [(MEMBERS,)], "each ran once"
    assert seen("SELECT count(*) FROM salon_jobs_flow_edge") == [(0,)]
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
