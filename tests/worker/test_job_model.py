"""Drives jobs through random histories on the real database, and compares every row with a model after each step.

Many more of them: ``pytest --hypothesis-profile=hard tests/worker/test_job_model.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

import pytest
from django.conf import settings as django_settings
from django.db import connections, transaction
from django.test import override_settings
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from salon_jobs import fan_out
from salon_jobs.core.error_report import report
from salon_jobs.core.errors import Expired
from salon_jobs.core.records import ClaimedJob, JobKeyMode
from salon_jobs.db import statements
from salon_jobs.jobs import JobHandle, control, enqueue
from salon_jobs.jobs.enqueue import add_many
from salon_jobs.jobs.options import NewJob
from salon_jobs.models import Process
from salon_jobs.worker.maintenance import RescueCounts, rescue_process
from tests import tasks
from tests.support import change, finish, finish_many, leases_of, seen
from tests.worker.job_model import CANCELLED, FAILED, QUEUED, RUNNING, Model, ModelJob, Run, Soon

HARD = settings.get_current_profile_name() == "hard"
SETTINGS = settings(
    settings.get_profile("hard" if HARD else "default"),
    deadline=None,
    stateful_step_count=50 if HARD else 30,
    derandomize=not HARD,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SILENCE = timedelta(seconds=15)
SLACK = timedelta(milliseconds=5)
MINUTE = timedelta(minutes=1)
TASKS = ("test-keyed", "test-store", "test-system")
ROWS = """
SELECT id, task, store_id, queue, priority, max_attempts, run_at AT TIME ZONE 'UTC', expires_at AT TIME ZONE 'UTC',
       payload::text, job_key, concurrency_key, state, attempts, lease, leased_by, rescues, reason,
       (finished_at IS NULL) = (state IN ('queued', 'running'))
  FROM salon_jobs_job
"""
ERRORS_AND_MARKS = """
SELECT job_id, attempt, code FROM salon_jobs_job_error UNION ALL SELECT job_id, lease, NULL FROM salon_jobs_superseded
"""

Held = tuple[int, ClaimedJob]
End = tuple[str, int, timedelta, bool]

# Every instant that is chosen lies half a minute and more from those that the database's clock gives.
minutes = st.sampled_from([-120, -2, -1, 1, 2, 120])
waits = st.sampled_from([timedelta(0), timedelta(0), MINUTE, 2 * MINUTE])
slots = st.integers(0, 2)
rooms = st.sampled_from([1, 2, 100])
modes = st.sampled_from(list(JobKeyMode))
picks = st.integers(0, 255)
ends = st.tuples(
    st.sampled_from(["fail", "fail", "finish", "snooze", "discard"]),
    picks,
    waits,
    st.sampled_from([False, False, False, False, True]),
)
new_jobs = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(
            [("test-keyed", 0), ("test-keyed", 0), ("test-keyed", 1), ("test-store", 0), ("test-system", None)]
        ),
        "key": st.sampled_from(["k:0", "k:0", "k:1", None]),
        "queue": st.sampled_from(["default", "default", "mail"]),
        "priority": st.sampled_from([0, 0, -1, 7]),
        "limit_key": st.sampled_from([None, "a", "b"]),
        "max_attempts": st.integers(1, 5),
        "run_at": st.one_of(st.none(), minutes),
        "expires_at": st.one_of(st.none(), st.none(), minutes),
    }
)


def contents(new: Sequence[NewJob]) -> list[enqueue.JobContent]:
    return [enqueue.JobContent(each.store_id, each.payload, each.job_key, each.concurrency_key) for each in new]


_process_ids = itertools.count(1)


class Jobs(RuleBasedStateMachine):
    """Does what enqueuers, workers, rescuers and operators do, in any order; every answer is the model's too."""

    stores: ClassVar[Sequence[UUID]] = ()

    @initialize(keep=st.booleans())
    def begin(self, keep: bool) -> None:
        self.overridden = override_settings(
            SALON_JOBS={**django_settings.SALON_JOBS, "RETAIN_SUCCEEDED": 86_400 * keep}
        )
        self.overridden.enable()
        self.model = Model(keep_succeeded=keep)
        self.began = self.before = datetime.now(UTC)
        self.clock = self.began + MINUTE / 2
        self.counter = 0
        self.claims: list[Held] = []
        self.slots = [self.new_process() for _ in range(3)]

    def teardown(self) -> None:
        change("; ".join(f"DELETE FROM salon_jobs_{table}" for table in ("job", "job_error", "superseded", "process")))
        self.overridden.disable()

    # Enqueueing

    @rule(chosen=st.lists(new_jobs, min_size=1, max_size=4), mode=modes)
    def enqueue_some(self, chosen: list[dict[str, Any]], mode: JobKeyMode) -> None:
        """Enqueue one job, or several at once, with the same key more than once."""
        new = self.alike([self.new_job(each, mode) for each in chosen])
        many = len(new) > 1
        handles = add_many(new[0], contents(new), using="default") if many else [enqueue.add(new[0], using="default")]
        for one, handle in zip(new, handles, strict=True):
            self.enqueued(one, handle)

    @rule(number=st.integers(0, 1), run_at=st.one_of(st.none(), minutes))
    def enqueue_for_every_store(self, number: int, run_at: int | None) -> None:
        due = self.instant(run_at)
        result = fan_out(tasks.keyed if due is None else tasks.keyed.using(run_at=due), number=number)
        rows = seen("SELECT id, store_id FROM salon_jobs_job")
        found = {store_id: id_ for id_, store_id in rows if id_ not in self.model.jobs}
        added = 0
        shared: dict[str, Any] = {"queue": "default", "priority": 0, "max_attempts": 25, "run_at": due}
        text, key = f'{{"note": "", "number": {number}}}', f"k:{number}"
        for store_id in self.stores:
            new = NewJob(task="test-keyed", store_id=store_id, payload=text, job_key=key, **shared)
            job = self.model_job(new)
            answer, met = self.model.expect(job, "preserve_run_at")
            added += answer != "kept"
            job.id = found[store_id] if met is None else met
            self.model.enqueue(job, "preserve_run_at")
        assert (result.inserted, result.kept) == (added, len(self.stores) - added)

    @rule(chosen=st.lists(new_jobs, max_size=3), mode=modes, pick=picks)
    def roll_back(self, chosen: list[dict[str, Any]], mode: JobKeyMode, pick: int) -> None:
        process_id, job = self.held(pick)
        with transaction.atomic():
            new = self.alike([self.new_job(each, mode) for each in chosen])
            if new:
                add_many(new[0], contents(new), using="default")
            finish(job, process_id)
            transaction.set_rollback(True)

    # Workers

    @rule(
        slot=slots,
        room=rooms,
        queues=st.sampled_from([None, None, ["mail"]]),
        some=st.sampled_from([TASKS, TASKS, ("test-keyed",)]),
        by_database=st.booleans(),
    )
    def claim(self, slot: int, room: int, queues: list[str] | None, some: tuple[str, ...], by_database: bool) -> None:
        """Claim by one of the processes, by the clock of this history or by the database's."""
        self.claimed(self.slots[slot], room, queues, some, None if by_database else self.clock)

    @rule(to=st.sampled_from([0, 1, 2, 150, -1, -150]))
    def set_the_clock(self, to: int) -> None:
        self.clock = self.began + to * MINUTE + MINUTE / 2

    @rule(ends=st.lists(ends, min_size=1, max_size=6))
    def end_runs(self, ends: list[End]) -> None:
        for how, pick, wait, final in ends:
            self.end(how, pick, wait, final=final)

    @rule(slot=slots, room=rooms, ends=st.lists(ends, min_size=1, max_size=6))
    def claim_and_end_runs(self, slot: int, room: int, ends: list[End]) -> None:
        self.claimed(self.slots[slot], room, None, TASKS, self.clock)
        self.end_runs(ends)

    @rule(some=st.lists(picks, min_size=1, max_size=6))
    def finish_several(self, some: list[int]) -> None:
        process_id, jobs = self.held_by_one(some)
        expected = {job.fence for job in jobs if self.model.finish(Run(job.id, process_id, job.lease))}
        assert finish_many(jobs, process_id) == expected

    @rule(some=st.lists(picks, min_size=1, max_size=4), wait=st.one_of(st.none(), waits))
    def snooze_or_release(self, some: list[int], wait: timedelta | None) -> None:
        process_id, jobs = self.held_by_one(some)
        done = leases_of(process_id).requeue([(job.id, job.lease) for job in jobs], delay=wait)
        assert len(done) == self.model.requeue([Run(job.id, process_id, job.lease) for job in jobs], wait)

    @rule(slot=slots, known=st.lists(picks, max_size=3))
    def find_what_a_lost_answer_left(self, slot: int, known: list[int]) -> None:
        """Compare what the database says a process holds with what the process knows."""
        leases = {(job.id, job.lease) for _, job in map(self.held, known)}
        found = leases_of(self.slots[slot]).other_leases(leases)
        assert set(found) == self.model.held_by(self.slots[slot]) - leases

    # Rescue

    @rule(slot=slots)
    def fall_silent_and_be_rescued(self, slot: int) -> None:
        """Let a process fall silent: nobody knows what it had started."""
        process_id = self.slots[slot]
        assert rescue_process(process_id, SILENCE, using="default") == RescueCounts(), "it beats"
        change("UPDATE salon_jobs_process SET heartbeat_at = now() - interval '1 h' WHERE id = %s", process_id)
        counts = rescue_process(process_id, SILENCE, using="default")
        assert counts == RescueCounts(1, *self.model.rescue_process(process_id, None))
        self.replace_process(slot)

    @rule(slot=slots, started=st.lists(picks, max_size=3))
    def die_and_be_rescued(self, slot: int, started: list[int]) -> None:
        """Let a process die before its parent's eyes, who knows what it had started."""
        process_id = self.slots[slot]
        ids = {self.held(pick)[1].id for pick in started}
        counts = rescue_process(process_id, None, charged=ids, using="default")
        assert counts == RescueCounts(1, *self.model.rescue_process(process_id, ids))
        self.replace_process(slot)

    @rule()
    def tidy(self) -> None:
        """Forget the marks of runs that have ended, as maintenance does."""
        statements.execute("forget_superseded", using="default")

    # Operators

    @rule(some=st.lists(picks, min_size=1, max_size=4))
    def operator_retries(self, some: list[int]) -> None:
        ids = self.jobs_in({FAILED, CANCELLED}, some)
        assert [done.changed for done in control.retry_jobs(ids, using="operator")] == self.model.operator_retry(ids)

    @rule(some=st.lists(picks, min_size=1, max_size=4))
    def operator_cancels(self, some: list[int]) -> None:
        ids = self.jobs_in({QUEUED, FAILED}, some)
        assert [done.changed for done in control.cancel_jobs(ids, using="operator")] == self.model.operator_cancel(ids)

    # What always holds

    @invariant()
    def every_row_is_as_the_model_says(self) -> None:
        """Compare all rows, and learn the instants that the database's clock chose, if they are right."""
        after = datetime.now(UTC)
        found = seen(ROWS)
        rows = {row[0]: ModelJob(*map(aware, row[:-1])) for row in found}
        for id_, job in self.model.jobs.items():
            if isinstance(job.run_at, Soon) and id_ in rows:
                run_at = rows[id_].run_at
                assert isinstance(run_at, datetime)
                assert self.before - SLACK <= run_at - job.run_at.wait <= after + SLACK, (job, run_at)
                job.run_at = run_at
        assert rows == self.model.jobs
        assert all(row[-1] for row in found), "finished_at and state disagree"
        self.before = datetime.now(UTC)

    @invariant()
    def errors_and_marks_are_as_the_model_says(self) -> None:
        """Compare the error rows, and the marks of the runs that go on."""
        rows = seen(ERRORS_AND_MARKS)
        assert sorted(row[:3] for row in rows if row[2] is not None) == sorted(self.model.errors)
        running = {(job.id, job.lease) for job in self.model.jobs.values() if job.state == RUNNING}
        marks = {row[:2] for row in rows if row[2] is None}
        assert marks & running == self.model.superseded & running

    @invariant()
    def a_key_waits_once(self) -> None:
        """Count the waiting jobs of each key; the rows were compared."""
        waiting = [job.identity for job in self.model.jobs.values() if job.state == QUEUED and job.identity]
        assert len(waiting) == len(set(waiting))

    # Steps

    def new_process(self) -> int:
        # Ids that are drawn within a millisecond conflict now and then.
        process_id = int(Process.objects.create(pk=next(_process_ids), kind="worker", hostname="model", pid=1).pk)
        self.model.processes.add(process_id)
        return process_id

    def replace_process(self, slot: int) -> None:
        """Start another process in the place of one that was declared dead, which claims nothing any more."""
        self.claimed(self.slots[slot], 100, None, TASKS, self.clock)
        self.slots[slot] = self.new_process()

    def instant(self, in_minutes: int | None) -> datetime | None:
        return None if in_minutes is None else self.began + in_minutes * MINUTE

    def new_job(self, chosen: dict[str, Any], mode: JobKeyMode) -> NewJob:
        task, store_number = chosen["kind"]
        self.counter += 1
        same: dict[str, Any] = {name: chosen[name] for name in ("queue", "priority", "max_attempts")}
        return NewJob(
            task=task,
            store_id=None if store_number is None else self.stores[store_number],
            payload=f'{{"number": {self.counter}}}',
            run_at=self.instant(chosen["run_at"]),
            expires_at=self.instant(chosen["expires_at"]),
            job_key=chosen["key"],
            job_key_mode=mode.value,
            concurrency_key=chosen["limit_key"],
            **same,
        )

    def alike(self, new: list[NewJob]) -> list[NewJob]:
        """Make the later ones like the first in all that an ``enqueue_many`` shares."""
        first = new[0] if new else None
        return [
            replace(
                first,
                payload=each.payload,
                store_id=first.store_id and (each.store_id or first.store_id),
                job_key=first.job_key and (each.job_key or first.job_key),
            )
            for each in new
            if first is not None
        ]

    def model_job(self, new: NewJob) -> ModelJob:
        """Turn it into the model's; the id comes later."""
        same = ("task", "store_id", "queue", "priority", "expires_at", "payload", "job_key", "concurrency_key")
        values: dict[str, Any] = {name: getattr(new, name) for name in same}
        return ModelJob(id=0, max_attempts=new.max_attempts or 1, run_at=new.run_at or Soon(), **values)

    def enqueued(self, new: NewJob, handle: JobHandle) -> int:
        """Compare one answer with the model's, and add the job to it."""
        job = self.model_job(new)
        result, met = self.model.expect(job, new.job_key_mode)
        assert handle.action.value == result
        assert met is None or handle.id == met
        assert met is not None or handle.id not in self.model.jobs
        job.id = handle.id
        self.model.enqueue(job, new.job_key_mode)
        return handle.id

    def claimed(
        self, process_id: int, room: int, queues: list[str] | None, some: Sequence[str], now: datetime | None
    ) -> None:
        """Claim, and compare what was claimed, in its order, and what of it is expired."""
        if any(isinstance(job.run_at, Soon) for job in self.model.jobs.values()):
            self.every_row_is_as_the_model_says()
        found = leases_of(process_id).claim_due(some, room, queues=queues, now=now)
        at = now or datetime.now(UTC)
        lease = found[0].lease if found else 0
        assert lease not in {job.lease for _, job in self.claims}
        expected = self.model.claim(process_id, some, room, queues, at, lease)
        assert [Run(job.id, process_id, job.lease) for job in found] == expected
        for job in found:
            ours = self.model.jobs[job.id]
            assert (job.attempts, job.payload) == (ours.attempts, ours.payload)
            assert job.expired == (ours.expires_at is not None and ours.expires_at <= at)
        self.claims += [(process_id, job) for job in found]

    def end(self, how: str, pick: int, wait: timedelta, *, final: bool) -> None:
        process_id, job = self.held(pick)
        run, leases = Run(job.id, process_id, job.lease), leases_of(process_id)
        match how:
            case "finish":
                done = job.fence in finish_many([job], process_id) if final else finish(job, process_id)
                assert done == self.model.finish(run)
            case "fail":
                ended = leases.fail(job, report(ValueError("no")), delay=wait, final=final, reason="spent")
                expected = self.model.fail(run, wait, final=final, reason="spent", code="")
                assert (None if ended is None else (ended.state.value, ended.reason)) == expected
            case "snooze":
                pairs = [(job.id, job.lease)]
                assert len(leases.requeue(pairs, delay=wait)) == self.model.requeue([run], wait)
            case _:
                expired = report(Expired("late"))
                cancelled = leases.cancel_run(job, "gone") if final else leases.expire_run(job, expired, "gone")
                assert cancelled == self.model.cancel_run(run, "gone", code="" if final else expired.code)

    def held(self, pick: int) -> Held:
        """Choose a run: mostly one that goes on, or one that lost its job to a later run; after a claim if need be."""
        running = {job.id: job.lease for job in self.model.jobs.values() if job.state == RUNNING}
        if not running:
            self.enqueued(*self.one_more())
            self.claimed(self.slots[0], 100, None, TASKS, self.began + 200 * MINUTE)
        going_on = [held for held in self.claims if running.get(held[1].id) == held[1].lease]
        overtaken = [held for held in self.claims if running.get(held[1].id, held[1].lease) != held[1].lease]
        among = (overtaken, self.claims, going_on, going_on)[pick % 4] or self.claims
        return among[pick // 4 % len(among)]

    def one_more(self) -> tuple[NewJob, JobHandle]:
        chosen = {"kind": ("test-keyed", 0), "key": "k:0", "queue": "default", "priority": 0, "max_attempts": 2}
        due = {"run_at": -1, "expires_at": None, "limit_key": "a"}
        new = self.new_job({**chosen, **due}, JobKeyMode.PRESERVE_RUN_AT)
        return new, enqueue.add(new, using="default")

    def held_by_one(self, some: Sequence[int]) -> tuple[int, list[ClaimedJob]]:
        chosen = [self.held(pick) for pick in some]
        process_id = chosen[0][0]
        theirs = {(job.id, job.lease): job for owner, job in chosen if owner == process_id}
        return process_id, list(theirs.values())

    def jobs_in(self, states: set[str], some: Sequence[int]) -> list[int]:
        """Choose jobs, each once: mostly those in one of these states."""
        fitting = [job.id for job in self.model.jobs.values() if job.state in states]
        chosen: dict[int, None] = {}
        for pick in some:
            among = fitting if fitting and pick % 4 else list(self.model.jobs)
            if among:
                chosen[among[pick // 4 % len(among)]] = None
        return list(chosen)


def aware(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


@pytest.mark.parametrize(
    ("histories", "use_tz"), [(20, True), (5, False), pytest.param(50, True, marks=pytest.mark.slow)]
)
def test_histories_match_model(stores: list[UUID], histories: int, use_tz: bool) -> None:
    Jobs.stores = stores
    with override_settings(USE_TZ=use_tz, TIME_ZONE="Europe/Paris"):
        run_state_machine_as_test(Jobs, settings=SETTINGS if HARD else settings(SETTINGS, max_examples=histories))
        connections.close_all()
