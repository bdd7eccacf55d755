"""Moves random graphs by ends, deaths of processes, cancellations and retries, and compares them with the model."""

from __future__ import annotations

import random

import pytest
from django.db import transaction

from salon_jobs import Discard, flow
from salon_jobs.jobs import control
from salon_jobs.jobs.flows import Member
from salon_jobs.models import FlowMember
from tests import tasks
from tests.jobs.flow_spec import Spec, random_graph
from tests.support import change, claim, leases_of, run, seen
from tests.tasks import Hooks

STATES = """
SELECT m.job_id, coalesce(m.outcome, CASE WHEN j.run_at < '9999-12-30' THEN 'started' ELSE 'held' END)
  FROM salon_jobs_flow_member m LEFT JOIN salon_jobs_job j ON j.id = m.job_id
"""


class Driver:
    """One flow on the real database, and what it must be."""

    def __init__(self, chance: random.Random, size: int, process_id: int, hooks: Hooks) -> None:
        self.chance, self.process_id, self.hooks = chance, process_id, hooks
        self.spec = Spec(random_graph(chance, size))
        self.running: dict[int, object] = {}
        self.members: list[Member] = []
        with flow("graph") as self.flow:
            for planned in self.spec.members:
                # Of two tasks, whose jobs are enqueued one task after the other: ids are not in the order of members.
                call = tasks.in_flow.call() if chance.random() < 0.5 else tasks.system.call()
                after = [self.members[number] for number in planned.after]
                self.members.append(self.flow.add(call, after=after, when=planned.when, max_attempts=1))
        self.numbers = {member.id: number for number, member in enumerate(self.members)}
        self.compare("begin")

    def compare(self, verb: str) -> None:
        found = dict(seen(STATES))
        assert [found[member.id] for member in self.members] == self.spec.states, verb
        assert not FlowMember.objects.filter(move__isnull=False).exists()

    def claim(self) -> None:
        for job in claim(self.process_id, self.chance.randrange(1, 5)):
            assert job.id not in self.running, "one run at a time"
            self.running[job.id] = job

    def run(self) -> None:
        if not self.running:
            return
        job_id = self.chance.choice(list(self.running))
        job, outcome = self.running.pop(job_id), self.chance.choice(["succeeded", "succeeded", "failed", "cancelled"])
        error = {"failed": OSError(), "cancelled": Discard("no")}.get(outcome)

        def body(**_: object) -> None:
            if error is not None:
                raise error

        self.hooks.system = body
        run(job, self.process_id)  # type: ignore[arg-type]
        self.spec.end([self.numbers[job_id]], outcome)

    def die(self) -> None:
        """Kill the process, and rescue what it ran: it runs again, or has failed by its third death."""
        leases_of(self.process_id).rescue("gone")
        failed = [job_id for (job_id,) in seen("SELECT id FROM salon_jobs_job WHERE state = 'failed'")]
        self.spec.end([self.numbers[job_id] for job_id in self.running if job_id in failed], "failed")
        self.running.clear()

    def cancel(self) -> None:
        waiting = [number for number in self.spec.numbers("held", "started") if self.id(number) not in self.running]
        if waiting:
            number = self.chance.choice(waiting)
            control.cancel_jobs(self.members[number])
            self.spec.end([number], "cancelled")

    def retry_one(self) -> None:
        self.retry(1)

    def retry_some(self) -> None:
        self.retry(self.chance.randrange(2, 6))

    def retry(self, count: int) -> None:
        ended = self.spec.numbers("failed", "cancelled", "skipped")
        numbers = self.chance.sample(ended, min(count, len(ended)))
        with transaction.atomic():
            # One by one or in one statement, in any order: it is the transaction that counts.
            if self.chance.random() < 0.5:
                control.retry_jobs([self.members[number].id for number in numbers])
            else:
                for number in numbers:
                    control.retry_jobs(self.members[number].id)
        self.spec.retry(numbers)

    def retry_flow(self) -> None:
        numbers = self.spec.numbers("failed")
        self.flow.retry()
        self.spec.retry(numbers)

    def id(self, number: int) -> int:
        return self.members[number].id

    def rest(self) -> None:
        while self.running or self.spec.numbers("started"):
            self.claim()
            self.run()
            self.compare("rest")


VERBS = ["claim"] * 4 + ["run"] * 6 + ["die", "cancel", "retry_one", "retry_some", "retry_flow"]


def drive(seed: int, size: int, steps: int, process_id: int, hooks: Hooks) -> Driver:
    """Take random steps, and come to rest, from where a retry begins it all again."""
    change("DELETE FROM salon_jobs_job; DELETE FROM salon_jobs_flow_member; DELETE FROM salon_jobs_flow_edge")
    driver = Driver(random.Random(seed), size, process_id, hooks)
    for _ in range(2):
        for _ in range(steps):
            verb = driver.chance.choice(VERBS)
            getattr(driver, verb)()
            driver.compare(verb)
        driver.rest()
        driver.retry_some()
        driver.compare("retried at rest")
        driver.retry_flow()
        driver.compare("flow retried")
    driver.rest()
    return driver


@pytest.mark.parametrize("seed", range(8))
def test_small_graphs_are_as_model_says(process_id: int, hooks: Hooks, seed: int) -> None:
    drive(seed, 5 + seed, 25, process_id, hooks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_large_graphs_are_as_model_says(process_id: int, hooks: Hooks, seed: int) -> None:
    drive(seed, 5 + seed % 56, 120, process_id, hooks)
