"""Tests of declared limits, as the worker role: they hold among several processes, and a row stands in their place."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.test import override_settings

from salon_jobs import fan_out, store_task
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs import limits, registry
from salon_jobs.jobs.limits import limit, pause, resume
from salon_jobs.jobs.pruning import Pruner
from salon_jobs.jobs.task import Task
from salon_jobs.worker import fair_claim
from salon_jobs.worker.claim import Claimer
from salon_jobs.worker.worker import Worker, WorkerOptions
from tests import tasks
from tests.settings import SALON_JOBS
from tests.support import another_process, change, elsewhere, finish, leases_of, new_store_id, seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("limits_and_groups_at_once")
Declare = Callable[..., Task[..., Any]]


@pytest.fixture
def declare(database: None) -> Iterator[Declare]:
    """Declare the task ``test-declared`` with the limits given."""

    def declared(**options: Any) -> Task[..., Any]:
        def handler(store_id: UUID, line: str = "a", number: int = 0) -> None:
            tasks.hooks.store(store_id=store_id, line=line)

        decorate: Any = store_task(name="test-declared", **options)
        task: Task[..., Any] = decorate(handler)
        return task

    yield declared
    registry.unregister("test-declared")


def add(task: Task[..., Any], stores: Iterable[UUID], lines: Iterable[str] = ("a",), count: int = 1) -> None:
    task.enqueue_many(
        [task.call(store_id=id_, line=line, number=n) for id_ in stores for line in lines for n in range(count)]
    )


def by_key(jobs: list[ClaimedJob]) -> Counter[str | None]:
    keys = dict(seen("SELECT id, concurrency_key FROM salon_jobs_job"))
    return Counter(keys[job.id] for job in jobs)


def most_at_once(scope: str) -> int:
    """Let four processes claim and finish, often, and return how many jobs of one scope ran at once at most."""

    def claim_often(process_id: int) -> int:
        claimer, most = Claimer(leases_of(process_id), None), 0
        try:
            for _ in range(8):
                for job in claimer.claim(10).jobs:
                    counts = f"SELECT count(*) FROM salon_jobs_job WHERE state = 'running' GROUP BY {scope}"
                    most = max(most, *(running for (running,) in seen(counts)), 0)
                    assert finish(job, process_id)
            return most
        finally:
            connections.close_all()

    processes = [another_process() for _ in range(4)]
    with ThreadPoolExecutor(len(processes)) as pool:
        return max(pool.map(claim_often, processes))


@pytest.mark.parametrize(
    ("options", "scope", "most"),
    [
        ({"max_concurrency": 3}, "task", 3),
        ({"concurrency_key": "{line}"}, "concurrency_key", 1),
        ({"concurrency_key": "{line}", "key_concurrency": 2, "max_concurrency": 9}, "concurrency_key", 2),
        ({"concurrency_key": "{store_id}:{line}", "max_concurrency": 4}, "task", 4),
        ({}, "store_id", 2),
    ],
    ids=["task", "key", "several of a key", "task with keys", "store, by the setting"],
)
def test_what_a_task_declares_holds_while_many_claim_at_once(
    declare: Declare, stores: list[UUID], options: dict[str, Any], scope: str, most: int
) -> None:
    add(declare(**options), stores, "abcd", 3)
    with override_settings(SALON_JOBS={**SALON_JOBS, "STORE_CONCURRENCY": None if options else 2}):
        assert most_at_once(scope) == most
    assert seen("SELECT count(*) FROM salon_jobs_job")[0][0] < 36


def test_limits_of_rows_hold_while_many_claim_at_once(stores: list[UUID]) -> None:
    limit(task="test-store", max_concurrency=4)
    limit(store_id=stores[0], max_concurrency=1)
    for scope, most in (("task", 4), (f"store_id HAVING store_id = '{stores[0]}'", 1)):
        for store_id in stores:
            tasks.in_store.enqueue_many([tasks.in_store.call(store_id=store_id)] * 12)
        assert most_at_once(scope) == most


def test_workers_run_no_more_than_declared_and_come_to_an_end(
    declare: Declare, stores: list[UUID], hooks: tasks.Hooks
) -> None:
    add(declare(max_concurrency=4, concurrency_key="{line}"), stores, "abcdef", 3)
    running, guard, seen_at_once = Counter[str](), threading.Lock(), Counter[str]()

    def count(line: str, **_: object) -> None:
        with guard:
            running.update([line, "all"])
            for name in (line, "all"):
                seen_at_once[name] = max(seen_at_once[name], running[name])
        connections["owner"].close()
        with guard:
            running.subtract([line, "all"])

    hooks.store = count
    workers = [Worker(another_process(), WorkerOptions(concurrency=4, burst=True), using="default") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for run in [elsewhere(pool, worker.run) for worker in workers]:
            assert run.result(60)
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
    assert seen_at_once.pop("all") <= 4
    assert set(seen_at_once.values()) == {1}


def test_a_place_that_a_job_of_this_process_leaves_is_taken_before_the_next_look(
    declare: Declare, stores: list[UUID], hooks: tasks.Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_claim, "LIMIT_WAIT_S", (0.025, 60.0))
    add(declare(max_concurrency=1), stores[:1], count=2)
    worker = Worker(another_process(), WorkerOptions(concurrency=4, burst=True), using="default")
    gate, started = threading.Event(), threading.Semaphore(0)

    def wait(**_: object) -> None:
        started.release()
        assert gate.wait(20)

    def waits_long() -> bool:
        worker._threads_lane.claimer._fair_claim._limit_wait_s = 30.0
        return worker._last_claim.again_in_s == 30.0

    hooks.store = wait
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert started.acquire(timeout=10)
        eventually(waits_long)
        gate.set()
        assert started.acquire(timeout=10), "it waits for the look that is due"
    finally:
        gate.set()
        worker.stop()
        thread.join(20)
    assert not thread.is_alive()


def test_a_row_stands_in_the_place_of_what_a_task_declares_until_it_is_taken_back(
    declare: Declare, process_id: int, stores: list[UUID]
) -> None:
    add(declare(max_concurrency=2), stores, count=10)
    claimer = Claimer(leases_of(process_id), None)

    def claimed() -> int:
        return len(claimer.claim(30).jobs + claimer.claim(30).jobs)

    assert claimed() == 2
    limit(task="test-declared", max_concurrency=5)
    assert claimed() == 3
    limit(task="test-declared", max_concurrency=None)
    assert claimed() == 0, "as declared: two, and five run"
    pause(task="test-declared")
    resume(task="test-declared")
    assert claimed() == 0, "a pause leaves a row, and what is declared as it is"
    limit(task="test-declared", lift=True)
    assert claimed() == 25


def test_one_key_can_have_another_limit_than_the_others(declare: Declare, process_id: int, stores: list[UUID]) -> None:
    task = declare(concurrency_key="{line}")
    add(task, stores, ("visa", "amex", "cash"), 2)
    task.using(concurrency_key="mine").enqueue_many([task.call(store_id=stores[0], line="visa")] * 2)
    limit(task="test-declared", key="visa", max_concurrency=3)
    limit(task="test-declared", key="cash", lift=True)
    claimer = Claimer(leases_of(process_id), None)
    found = by_key([job for _ in range(4) for job in claimer.claim(30).jobs])
    assert found == {"visa": 3, "amex": 1, "cash": 6, "mine": 1}


@override_settings(SALON_JOBS={**SALON_JOBS, "STORE_CONCURRENCY": 2})
def test_a_row_for_a_store_stands_in_the_place_of_the_setting_and_system_jobs_have_no_limit(
    process_id: int, stores: list[UUID]
) -> None:
    for store_id in stores:
        tasks.in_store.enqueue_many([tasks.in_store.call(store_id=store_id)] * 4)
    tasks.system.enqueue_many([tasks.system.call()] * 4)
    limit(store_id=stores[0], max_concurrency=3)
    limit(store_id=stores[1], lift=True)
    claimer = Claimer(leases_of(process_id), None)
    found = Counter(job.store_id for _ in range(4) for job in claimer.claim(40).jobs)
    assert found == {stores[0]: 3, stores[1]: 4, stores[2]: 2, None: 4}


def test_keys_of_a_fan_out_are_limited_store_by_store(declare: Declare, process_id: int, stores: list[UUID]) -> None:
    task = declare(concurrency_key="{store_id}")
    for number in range(3):
        fan_out(task, number=number)
    claimer = Claimer(leases_of(process_id), None)
    assert by_key([job for _ in range(3) for job in claimer.claim(40).jobs]) == {str(id_): 1 for id_ in stores}


def test_a_claim_locks_no_more_keys_than_it_reads_groups_and_full_ones_take_no_slot(
    declare: Declare, process_id: int, stores: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_claim, "GROUPS_PER_CLAIM", 6)
    locked: list[int] = []
    lock_scopes = fair_claim.lock_scopes

    def counted(scopes: Iterable[str], *, using: str) -> set[str]:
        found = lock_scopes(scopes, using=using)
        locked.append(len(found))
        return found

    monkeypatch.setattr(fair_claim, "lock_scopes", counted)
    add(declare(concurrency_key="{line}", priority=-1), stores[:1], map(str, range(20)), 2)
    tasks.in_store.enqueue(store_id=stores[0])
    claimer = Claimer(leases_of(process_id), None)
    claimed = [job for _ in range(5) for job in claimer.claim(30).jobs]
    assert max(locked) == 6
    assert Counter(job.task for job in claimed) == {"test-declared": 20, "test-store": 1}


def test_each_key_of_a_task_has_its_own_bucket_shared_by_all_processes(
    declare: Declare, process_id: int, stores: list[UUID]
) -> None:
    task = declare(concurrency_key="{line}", key_rate="1/m", burst=2)  # all of it takes less than a minute
    add(task, stores[:1], ("visa", "amex"), 9)
    add(task, stores[:1], ("cash",), 1)
    here, there = Claimer(leases_of(process_id), None), Claimer(leases_of(another_process()), None)
    found = [job for claimer in (here, there, here) for job in claimer.claim(30).jobs]
    assert by_key(found) == {"visa": 2, "amex": 2, "cash": 1}, "any number of a key run at once, as the rate allows"
    buckets = "SELECT scope FROM salon_jobs_rate ORDER BY scope"
    assert seen(buckets) == [(f"key:test-declared:{key}",) for key in ("amex", "cash", "visa")]
    change("UPDATE salon_jobs_rate SET full_at = clock_timestamp() + interval '59 s' WHERE scope ~ 'visa'")
    assert by_key(here.claim(30).jobs) == {"visa": 1}
    change("UPDATE salon_jobs_rate SET full_at = clock_timestamp() - interval '1 s'")
    assert Pruner(using="default").run_once().deleted["rates"] == 3
    assert by_key(there.claim(30).jobs) == {"visa": 2, "amex": 2}, "no bucket is a full one"


def test_a_declared_rate_and_its_burst_are_those_of_the_task_until_a_row_replaces_them(
    declare: Declare, process_id: int, stores: list[UUID]
) -> None:
    add(declare(rate="60/m", burst=4), stores, count=10)
    claimer = Claimer(leases_of(process_id), None)
    first = claimer.claim(30)
    assert len(first.jobs) == 4
    assert first.again_in_s is not None
    limit(task="test-declared", rate=100)
    change("DELETE FROM salon_jobs_rate")
    assert len(Claimer(leases_of(process_id), None).claim(30).jobs) == 26, "of a hundred that a second saves up"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": "fast"}, 'rate must be a number of jobs per second above 0, or text such as "100/m"'),
        ({"key_rate": 5}, "key_rate limits the jobs with the same concurrency_key: pass that too"),
        ({"key_rate": 0, "concurrency_key": "{line}"}, "key_rate must be a number of jobs per second above 0"),
        ({"burst": 5}, "burst is how many starts a rate saves up: pass rate or key_rate too"),
        ({"rate": 5, "burst": 0}, "burst must be"),
    ],
)
def test_a_rate_that_cannot_be_kept_is_refused(declare: Declare, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionInvalid, match=message):
        declare(**options)


def test_expired_jobs_cost_no_place_in_a_rate(process_id: int, stores: list[UUID]) -> None:
    tasks.in_store.enqueue_many([tasks.in_store.call(store_id=stores[0])] * 8)
    change(
        "UPDATE salon_jobs_job SET expires_at = now() - interval '1 s'"
        " WHERE id <= (SELECT min(id) + 3 FROM salon_jobs_job)"
    )
    limit(task="test-store", rate=5)
    claimer = Claimer(leases_of(process_id), None)
    assert [job.expired for job in claimer.claim(5).jobs] == [True] * 4 + [False]
    assert [job.expired for job in claimer.claim(5).jobs] == [False] * 3


def test_without_declarations_and_meaningful_rows_there_are_no_limits(declare: Declare) -> None:
    declare()
    assert not limits.load_limits(using="default")
    pause(queue="default")
    resume(queue="default")
    limit(store_id=new_store_id(), lift=True)
    assert not limits.load_limits(using="default"), "the plain claim serves"


def test_two_keys_whose_groups_have_the_same_number_have_a_limit_each(
    declare: Declare, process_id: int, stores: list[UUID]
) -> None:
    task = declare(concurrency_key="{line}", key_concurrency=2)
    hashed = "hashtextextended(n::text, 0) & 4294967295"
    [(one, other)] = seen(
        f"SELECT min(n)::text, max(n)::text FROM generate_series(1, 400000) n GROUP BY {hashed} HAVING count(*) > 1"
        " LIMIT 1"
    )
    add(task, stores[:1], [other], 2)
    claimer = Claimer(leases_of(process_id), None)
    assert len(claimer.claim(10).jobs) == 2
    add(task, stores[:1], [one], 1)
    add(task, stores[:1], [other], 2)
    assert len(set(seen("SELECT claim_group FROM salon_jobs_job"))) == 1
    assert by_key([job for _ in range(3) for job in claimer.claim(10).jobs]) == {one: 1}, "the other's two are taken"
