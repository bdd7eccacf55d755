"""Runs random graphs under kills, restarts and retries, at rest and at a random moment, and compares with the model."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from django.db import connections, transaction

from salon_jobs import flow, tenant_context
from salon_jobs.jobs import Member, control
from tests.e2e import tasks
from tests.e2e.worker_process import QUICK, WorkerProcess
from tests.jobs.flow_spec import Spec, random_graph
from tests.support import seen
from tests.waiting import eventually

ENDED = "SELECT count(*) FROM salon_jobs_flow_member WHERE outcome IS NOT NULL"
RAN = "SELECT job_id FROM salon_jobs_flow_member WHERE outcome <> 'skipped'"


@dataclass(frozen=True, slots=True)
class Retry:
    """One retry: which members, which others were due or running by then, and when; both under the flow's lock."""

    retried: frozenset[int]
    released: frozenset[int]
    began: int
    done: int


class Graph:
    """One flow whose members run in workers, what they did, and what they must have done."""

    def __init__(self, chance: random.Random, size: int, store_id: UUID, folder: Path) -> None:
        self.chance, self.folder, self.store_id = chance, folder, store_id
        self.spec = Spec(random_graph(chance, size))
        self.retries: list[Retry] = []
        self.kills = 0
        self.plan(0.4)
        self.members: list[Member] = []
        with tenant_context(store_id), flow("graph") as self.flow:
            for number, planned in enumerate(self.spec.members):
                call = tasks.flow_step.call(store_id=store_id, number=number, folder=str(folder))
                after = [self.members[each] for each in planned.after]
                self.members.append(self.flow.add(call, after=after, when=planned.when))
        self.numbers = {member.id: number for number, member in enumerate(self.members)}

    def plan(self, share: float) -> None:
        """Choose which members fail from now on."""
        self.fails = {number for number in range(len(self.spec.members)) if self.chance.random() < share}
        (self.folder / "fails").write_text(json.dumps(sorted(self.fails)))

    def retry(self, share: float = 1) -> None:
        """Retry some or all of the members that have failed by now."""
        with transaction.atomic(using="owner"), connections["owner"].cursor() as cursor:
            # Whoever starts a follower waits for this lock.
            cursor.execute("SELECT FROM salon_jobs_flow WHERE id = %s FOR UPDATE", [self.flow.id])
            began = time.time_ns()
            cursor.execute(
                "SELECT j.id, j.state FROM salon_jobs_job j JOIN salon_jobs_flow_member m ON m.job_id = j.id"
                " WHERE m.outcome IS NULL AND j.run_at < '9999-12-30' OR m.outcome = 'failed' AND j.state = 'failed'"
            )
            states = dict(cursor.fetchall())
            failed = [job_id for job_id, state in states.items() if state == "failed"]
            chosen = [job_id for job_id in failed if self.chance.random() < share]
            retried = {each.id for each in control.retry_jobs(chosen, using="owner") if each.changed}
        released = frozenset(self.numbers[job_id] for job_id in states if job_id not in failed)
        self.retries.append(
            Retry(frozenset(self.numbers[job_id] for job_id in retried), released, began, time.time_ns())
        )

    def work_off(self, worker: WorkerProcess, disturbances: int) -> None:
        """Kill or restart a child, or retry what has failed, while more and more members end; wait for all."""
        total = len(self.members)

        def ended() -> int:
            return int(seen(ENDED)[0][0])

        for number in range(1, disturbances + 1):
            wanted = ended() + (total - ended()) * number // (disturbances + 2)
            eventually(partial(lambda least: ended() >= least, wanted))
            match self.chance.choice(["retry", "kill", "kill", "restart"]):
                case "retry":
                    self.retry(0.5)
                case verb:
                    with suppress(ProcessLookupError):  # none while one has yet to be replaced
                        for child in worker.children()[:1]:
                            os.kill(child["pid"], signal.SIGKILL if verb == "kill" else signal.SIGTERM)
                            self.kills += verb == "kill"
        eventually(ended, total)

    def settle(self) -> None:
        """Have the model run to its rest, as planned."""
        while started := self.spec.numbers("started"):
            self.spec.end([started[0]], "failed" if started[0] in self.fails else "succeeded")

    def check(self) -> None:
        """Compare how members ended, what they wrote, and in which order they ran."""
        outcomes = dict(seen("SELECT job_id, outcome FROM salon_jobs_flow_member"))
        assert [outcomes[member.id] for member in self.members] == self.spec.states
        written = Counter(int(name) for (name,) in seen("SELECT name FROM customer"))
        assert written == Counter(self.spec.numbers("succeeded")), "each that succeeded did so once"
        assert seen(f"SELECT count(*) FROM salon_jobs_flow_edge JOIN ({RAN}) AS ran USING (job_id)") == [(0,)]
        assert seen("SELECT count(*) FROM salon_jobs_job") == [(len(self.spec.numbers("failed", "skipped")),)]
        lines = [line.split() for line in (self.folder / "log").read_text().splitlines()]
        begins, ends = (
            [(int(at), int(number)) for at, number, word in lines if word == wanted] for wanted in ("begin", "end")
        )
        assert all(
            count <= 1 + len(self.retries) + self.kills for count in Counter(number for _, number in begins).values()
        )
        for begun, number in begins:
            for earlier in self.spec.members[number].after:
                for first, end in self.runs_of(earlier, begins, ends):
                    assert not first <= begun < end or self.was_released(number, first, begun), (
                        f"{number} began at {begun}, while {earlier} was to run or ran from {first} to {end}"
                    )

    def runs_of(self, number: int, begins: list[tuple[int, int]], ends: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return from when to when a member was about to run or ran: from its retry, or else from its first line.

        A run can end before we know that the retry that it is due to is done.
        """
        runs: list[tuple[int, int]] = []
        since = 0
        for end in sorted(at for at, each in ends if each == number):
            retried = [each.done for each in self.retries if number in each.retried and since <= each.began < end]
            begun = [at for at, each in begins if each == number and since <= at < end]
            runs.append((min(retried + begun), end))
            since = end
        return runs

    def was_released(self, number: int, first: int, begun: int) -> bool:
        """Return whether a member was due when the last retry before a run began, and was not retried since."""
        before = [each for each in self.retries if each.began <= first]
        since = [each for each in self.retries if before and before[-1].began <= each.began <= begun]
        return bool(before) and number in before[-1].released and not any(number in each.retried for each in since)


def run(seed: int, size: int, store_id: UUID, folder: Path, disturbances: int) -> None:
    graph = Graph(random.Random(seed), size, store_id, folder)
    with WorkerProcess("--processes", "2", ready=True, **QUICK) as worker:
        graph.work_off(worker, disturbances)
        graph.settle()
        graph.check()
        graph.plan(0.2)
        # At rest.
        graph.retry()
        graph.spec.retry(graph.spec.numbers("failed"))
        graph.work_off(worker, disturbances)
        graph.settle()
        graph.check()


def test_graph_under_kills_and_retries(stores: list[UUID], tmp_path: Path) -> None:
    run(3, 80, stores[0], tmp_path, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 10 + int(os.environ.get("FLOW_GRAPHS", "4"))))
def test_graphs_under_kills_and_retries(stores: list[UUID], tmp_path: Path, seed: int) -> None:
    run(seed, 5 + seed * 5 % 56, stores[0], tmp_path, 6)
