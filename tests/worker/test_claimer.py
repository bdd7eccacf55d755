"""Fair claims, limits of rows and declared limits, as the worker role, also among several processes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.test import override_settings

from salon_jobs.conf.store_key import store_key
from salon_jobs.core.records import ClaimedJob
from salon_jobs.db import statements
from salon_jobs.jobs.limits import limit, load_limits, pause, resume
from salon_jobs.jobs.pruning import Pruner
from salon_jobs.jobs.task import Task
from salon_jobs.worker import claim as claim_module
from salon_jobs.worker import group_scanner, quotas
from salon_jobs.worker.claim import Claim, Claimer
from salon_jobs.worker.group_scanner import (
    STORES_PER_SCAN,
    ClaimFilter,
    ScanPage,
    ScanRange,
    list_due_groups,
    list_groups,
)
from salon_jobs.worker.worker import Worker, WorkerOptions
from tests import tasks
from tests.inside import background_scan, list_groups_at, wait_for_limits
from tests.settings import SALON_JOBS
from tests.support import another_process, change, elsewhere, finish, leases_of, new_store_id, seen
from tests.waiting import LIMIT_S, eventually
from tests.worker.conftest import Declare

pytestmark = pytest.mark.usefixtures("limits_and_groups_at_once")


def add(count: int, store_id: UUID | None, *, task: str = "test-store", **columns: object) -> None:
    names = ["task", "store_id", "payload", *columns]
    values = [task if store_id or task != "test-store" else "test-system", store_id, "{}", *columns.values()]
    change(
        f"INSERT INTO salon_jobs_job ({', '.join(names)}) SELECT {', '.join(['%s'] * len(values))}"
        " FROM generate_series(1, %s)",
        *values,
        count,
    )


def add_keys(store_id: UUID, count: int, **columns: str) -> None:
    """Add one job of each of so many concurrency keys."""
    add(count, store_id, **columns)
    change("UPDATE salon_jobs_job SET concurrency_key = 'k' || id WHERE store_id = %s", store_id)


@pytest.fixture
def claimer(process_id: int) -> Claimer:
    return claimer_of(process_id)


def claimer_of(process_id: int) -> Claimer:
    return Claimer(leases_of(process_id), None)


def by_store(jobs: list[ClaimedJob]) -> Counter[UUID | None]:
    return Counter(job.store_id for job in jobs)


def test_lost_statement_is_prepared_again(process_id: int, stores: list[UUID]) -> None:
    add(3, stores[0])

    def claimed() -> int:
        return len(leases_of(process_id, is_direct=True).claim_due(["test-store"], 1))

    assert claimed() == 1
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    assert claimed() == 1
    connection.close()
    assert claimed() == 1


def test_backlog_leaves_other_stores_their_share(claimer: Claimer, stores: list[UUID]) -> None:
    big, small, _ = stores
    add(500, big)
    add(10, small)
    first = claimer.claim(20)
    assert by_store(first.jobs) == {big: 20}, "what came first is due first, until a backlog shows"
    second = claimer.claim(40)
    assert by_store(second.jobs) == {big: 20, small: 10}
    assert first.again_in_s == second.again_in_s == 0, "the big store gave all it was asked for"


def test_more_stores_than_one_scan_lists(claimer: Claimer, database: None) -> None:
    everyone = [new_store_id() for _ in range(STORES_PER_SCAN * 2 + 5)]
    for store_id in everyone:
        add(2, store_id)
    claimer.claim(1)
    claimed: list[ClaimedJob] = []
    for _ in range(20):
        claim = claimer.claim(100)
        claimed += claim.jobs
        if claim.again_in_s != 0:
            break
    assert set(by_store(claimed)) == set(everyone)
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE state = 'queued'") == [(0,)]


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("of_one_store", [False, True])
def test_few_places_go_round(claimer: Claimer, database: None, *, of_one_store: bool, limited: bool) -> None:
    """Other stores, and other claim groups of a store, come first each time a claim or a limit has few places."""
    stores = [new_store_id() for _ in range(1 if of_one_store else 6)]
    queues = [f"q{number}" for number in range(6 if of_one_store else 1)]
    for store_id in stores:
        for queue in queues:
            add(80, store_id, queue=queue)
    claimed: list[ClaimedJob] = []
    for n in range(40):
        limit(task="test-store", max_concurrency=2 * n + 2 if limited else 1000)
        claimed += claimer.claim(6 if limited else 2).jobs
    assert len(claimed) == 80
    assert {(job.store_id, job.queue) for job in claimed} == {(store, queue) for store in stores for queue in queues}


def test_priority_within_store(claimer: Claimer, stores: list[UUID]) -> None:
    add(30, stores[0], priority=5)
    add(30, stores[0], priority=-5)
    add(1, stores[1])
    claimer.claim(1)
    claimed = claimer.claim(10).jobs
    assert by_store(claimed) == {stores[0]: 5, stores[1]: 1}
    assert {job.priority for job in claimed if job.store_id == stores[0]} == {-5}


def test_later_unknown_and_unserved_jobs(process_id: int, stores: list[UUID]) -> None:
    add(5, stores[0], run_at="2999-01-01T00:00:00Z")
    add(5, stores[0], queue="mail")
    add(5, stores[0], task="nobody-knows-it")
    pause(task="something-else")
    assert Claimer(leases_of(process_id), ["default"]).claim(10) == Claim([], None)


@pytest.mark.parametrize("kind", ["queue", "task", "store_id"])
def test_pause_and_resume(kind: str, claimer: Claimer, stores: list[UUID]) -> None:
    add(3, stores[0])
    add(3, stores[1], task="test-keyed", queue="mail")
    named = {"queue": "mail", "task": "test-keyed", "store_id": stores[1]}[kind]
    pause(**{kind: named})  # type: ignore[arg-type]
    assert by_store(claimer.claim(10).jobs) == {stores[0]: 3}
    assert claimer.claim(10) == Claim([], None), "nothing that is due may run"
    resume(**{kind: named})  # type: ignore[arg-type]
    assert by_store(claimer.claim(10).jobs) == {stores[1]: 3}


def test_max_concurrency_over_all_processes(process_id: int, stores: list[UUID]) -> None:
    add(10, stores[0])
    add(10, stores[1])
    limit(task="test-store", max_concurrency=4)
    here, there = claimer_of(process_id), claimer_of(another_process())
    first = here.claim(3).jobs
    second = there.claim(10)
    assert (len(first), len(second.jobs)) == (3, 1)
    assert second.again_in_s is not None
    assert 0 < second.again_in_s < 0.1, "it claims again soon: a job may end any time"
    assert finish(first[0], process_id)
    assert len(there.claim(10).jobs) == 1
    limit(task="test-store", max_concurrency=None)
    assert len(there.claim(20).jobs) == 15


def test_rate_over_all_processes(process_id: int, stores: list[UUID]) -> None:
    add(100, stores[0], queue="mail")
    limit(queue="mail", rate=5)
    here, there = claimer_of(process_id), claimer_of(another_process())
    assert len(here.claim(10).jobs) == 5, "one second's worth, however long it was quiet"
    change("DELETE FROM salon_jobs_rate")
    limit(queue="mail", rate="1/h", burst=5)  # the rest takes less than an hour
    assert len(here.claim(3).jobs) == 3
    assert len(there.claim(10).jobs) == 2, "the burst in all"
    change("UPDATE salon_jobs_rate SET full_at = clock_timestamp() + interval '179 min'")
    assert len(there.claim(10).jobs) == 2
    change("UPDATE salon_jobs_rate SET full_at = clock_timestamp() - interval '10 s'")
    assert len(there.claim(10).jobs) == 5
    limit(queue="mail", burst=12)
    change("DELETE FROM salon_jobs_rate")
    assert len(claimer_of(another_process()).claim(20).jobs) == 12


def test_rate_counts_every_start(claimer: Claimer, stores: list[UUID]) -> None:
    add(100, stores[0], queue="mail")
    limit(queue="mail", rate="1/h", burst=5)
    assert [len(claimer.claim(room).jobs) for room in (3, 1, 10)] == [3, 1, 1]


def test_scope_locked_by_another_process(claimer: Claimer, stores: list[UUID]) -> None:
    add(3, stores[0])
    add(3, None)
    limit(task="test-store", max_concurrency=2)
    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        assert claim_module.lock_scopes(["task:test-store"], using="default")
        claimed = elsewhere(pool, lambda: claimer.claim(10)).result(LIMIT_S)
    assert by_store(claimed.jobs) == {None: 3}
    assert claimed.again_in_s == pytest.approx(0.025)
    assert len(claimer.claim(10).jobs) == 2


def test_job_before_low_water(claimer: Claimer, stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    add(30, stores[0], run_at="2020-01-02T00:00:00Z")
    claimer.claim(5)
    assert len(claimer.claim(10).jobs) == 10
    add(1, stores[0], run_at="0001-01-02T00:00:00.000001Z")
    list_groups_at(monkeypatch, claimer, float("inf"))
    assert all(job.run_at.day == 2 for job in claimer.claim(5).jobs), "its transaction began earlier and ended later"
    list_groups_at(monkeypatch, claimer, float("-inf"))
    assert claimer.claim(5).jobs[0].run_at.year == 1


def test_slow_scan_in_background(claimer: Claimer, stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    add(30, stores[0])
    assert len(claimer.claim(5).jobs) == len(claimer.claim(5).jobs) == 5, "fairly, the second time"
    may_list = threading.Event()

    def slowly(*arguments: Any, **options: Any) -> ScanPage:
        assert may_list.wait(LIMIT_S)
        return list_groups(*arguments, **options)

    monkeypatch.setattr(group_scanner, "list_groups", slowly)
    monkeypatch.setattr(group_scanner, "_BACKGROUND_S", -1.0)
    list_groups_at(monkeypatch, claimer, float("-inf"))
    add(5, stores[1])
    assert by_store(claimer.claim(5).jobs) == {stores[0]: 5}, "nobody waits for the scan"
    may_list.set()
    background_scan(claimer).result(LIMIT_S)
    assert by_store(claimer.claim(4).jobs) == {stores[0]: 2, stores[1]: 2}


def test_failed_background_scan_is_raised_once(
    claimer: Claimer, stores: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(30, stores[0])
    assert len(claimer.claim(5).jobs) == len(claimer.claim(5).jobs) == 5
    with monkeypatch.context() as patched:
        patched.setattr(group_scanner, "list_groups", Mock(side_effect=OperationalError("gone")))
        patched.setattr(group_scanner, "_BACKGROUND_S", -1.0)
        list_groups_at(patched, claimer, float("-inf"))
        assert len(claimer.claim(5).jobs) == 5
        assert isinstance(background_scan(claimer).exception(LIMIT_S), OperationalError)
        with pytest.raises(OperationalError, match="gone"):
            claimer.claim(5)
    assert len(claimer.claim(5).jobs) == 5


def test_paused_keys_hide_no_job(claimer: Claimer, stores: list[UUID]) -> None:
    change(
        "INSERT INTO salon_jobs_job (task, store_id, payload, concurrency_key)"
        " SELECT 'test-store', %s, '{}', 'k' || n FROM generate_series(1, 5000) n",
        stores[0],
    )
    add(10, stores[0], task="test-keyed")
    add(10, stores[1], task="test-keyed")
    pause(task="test-store")
    claimed = claimer.claim(10).jobs + claimer.claim(10).jobs
    assert by_store(claimed) == {stores[0]: 10, stores[1]: 10}
    assert claimer.claim(10) == Claim([], None), "a burst ends, and no process claims again and again"


def test_round_of_paused_stores_ends(claimer: Claimer, database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_scanner, "_SCAN_S", 0.0)
    for _ in range(STORES_PER_SCAN * 2 + 5):
        add(1, new_store_id())
    pause(task="test-store")
    claims = [claimer.claim(10) for _ in range(10)]
    assert not any(claim.jobs for claim in claims)
    assert None in {claim.again_in_s for claim in claims}, "it claims again at once, for ever"


def test_round_of_crowded_stores_ends(claimer: Claimer, database: None) -> None:
    """While all limits are full, the claimer waits, also if one of many stores has more keys than a scan lists."""
    everyone = sorted(new_store_id() for _ in range(STORES_PER_SCAN + 30))
    for store_id in everyone:
        add(1, store_id)
    add_keys(everyone[0], 40)
    limit(task="test-store", max_concurrency=1)
    waits_s = [claimer.claim(10).again_in_s for _ in range(30)]
    assert waits_s.count(0.25) > 5


def test_key_beyond_those_listed(claimer: Claimer, database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found behind keys whose jobs are due later, while other stores have a backlog."""
    monkeypatch.setattr(group_scanner, "STORES_PER_SCAN", 4)
    first, *others = sorted(new_store_id() for _ in range(8))
    add_keys(first, 150, run_at="2999-01-01T00:00:00Z")
    [(hidden,)] = seen("SELECT id FROM salon_jobs_job ORDER BY claim_group DESC LIMIT 1")
    change("UPDATE salon_jobs_job SET run_at = '2020-01-01T00:00:00Z' WHERE id = %s", hidden)
    add(1000, first, task="test-keyed")
    for store_id in others:
        add(1000, store_id)
    limit(task="test-keyed", max_concurrency=1000)
    assert any(hidden in {job.id for job in claimer.claim(8).jobs} for _ in range(200))


def test_key_behind_blocked_keys(claimer: Claimer, stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found soon also where no key follows it up to the end."""
    monkeypatch.setattr(group_scanner, "GROUPS_PER_CLAIM", 32)
    add_keys(stores[0], 5000)
    found = seen("SELECT id, concurrency_key FROM salon_jobs_job ORDER BY claim_group LIMIT 41")
    change("DELETE FROM salon_jobs_job WHERE id <> ALL (%s)", [job_id for job_id, _ in found])
    for _, key in found[:40]:
        limit(task="test-store", key=key, max_concurrency=0)
    assert [job.id for job in claimed_by(claimer, times=30)] == [found[-1][0]]


def test_job_given_back_below_low_water(claimer: Claimer, process_id: int, stores: list[UUID]) -> None:
    add(3, stores[0])
    limit(store_id=stores[0], max_concurrency=100)
    first = claimer.claim(10).jobs
    assert len(first) == 3
    assert leases_of(process_id).requeue([(first[0].id, first[0].lease)])
    again = claimer.claim(10)
    assert again.jobs or again.again_in_s == 0, "a burst would end here"
    assert [job.id for job in again.jobs or claimer.claim(10).jobs] == [first[0].id]


@pytest.mark.parametrize("clock_s", [100.0, 1_000_000.0])
def test_plain_claim_comes_back(
    clock_s: float, process_id: int, stores: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_scanner, "_SCAN_EVERY_S", (0.05, 2.0))
    for module in ("claim", "group_scanner"):
        monkeypatch.setattr(f"salon_jobs.worker.{module}.time", SimpleNamespace(monotonic=lambda: clock_s))
    add(3, stores[0])
    claimer = claimer_of(process_id)
    assert len(claimer.claim(2).jobs) == 2
    jobs, again_in_s, _ = claimer.claim(2)
    assert (len(jobs), again_in_s) == (1, None), "fairly"
    add(1, stores[1], task="nobody-has-it")
    add(3, stores[1])
    assert len(claimer.claim(5).jobs) == 3, "in the order due: no scan hides a new one"


def test_slow_claim_hides_no_job(claimer: Claimer, stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have waited for the processor; a worker that read claim groups from then on would not see new ones."""
    monkeypatch.setattr(group_scanner, "_SCAN_EVERY_S", (60.0, 60.0))
    monkeypatch.setattr(claim_module, "_SLOW_S", LIMIT_S)  # only the first is slow, whatever the machine is
    with monkeypatch.context() as patch:
        patch.setattr(claim_module, "_SLOW_S", -1.0)
        claimer.claim(5)
    claimer.claim(5)
    add(3, stores[0])
    assert len(claimer.claim(2).jobs) == 2, "in the order due"
    clock, scan = SimpleNamespace(now=time.monotonic()), group_scanner.list_groups

    def slowly(*arguments: Any, **options: Any) -> ScanPage:
        clock.now += 30.0
        return scan(*arguments, **options)

    with monkeypatch.context() as patch:
        for module in ("claim", "group_scanner"):
            patch.setattr(f"salon_jobs.worker.{module}.time", SimpleNamespace(monotonic=lambda: clock.now))
        patch.setattr(group_scanner, "list_groups", slowly)
        assert len(claimer.claim(2).jobs) == 1, "fairly, by a slow scan"
        add(3, stores[1])
        assert len(claimer.claim(5).jobs) == 3, "in the order due again"


def test_prepared_claim_returns_the_same(process_id: int, stores: list[UUID]) -> None:
    instants = {"run_at": "2020-01-01T00:00Z", "created_at": "2019-01-01T00:00Z", "tick": "2030-01-01T00:00Z"}
    add(2, stores[0], trace='{"a": "b"}', expires_at="2021-01-01T00:00Z", **instants)
    add(2, None, **{**instants, "run_at": "2020-01-02T00:00Z"})
    names = ["test-store", "test-system"]
    for queues in (["default"], None):
        ways = (False, True)
        [plain], [prepared] = (leases_of(process_id, is_direct=way).claim_due(names, 1, queues=queues) for way in ways)
        assert plain.id != prepared.id
        assert plain == prepared._replace(id=plain.id, lease=plain.lease, due_at=plain.due_at)
        assert plain.due_at == pytest.approx(prepared.due_at, abs=10)
    with connection.cursor() as cursor:
        cursor.execute("SELECT rtrim(name, '_0123456789') FROM pg_prepared_statements")
        assert cursor.fetchall() == [("claim",)]


def test_burst_of_later_keys_ends(process_id: int, stores: list[UUID]) -> None:
    """It runs the due job that is hidden behind more keys than a scan lists."""
    add_keys(stores[0], 2000, run_at="2999-01-01T00:00:00Z")
    [(hidden,)] = seen("SELECT id FROM salon_jobs_job ORDER BY claim_group DESC LIMIT 1")
    change("UPDATE salon_jobs_job SET run_at = '2020-01-01T00:00:00Z' WHERE id = %s", hidden)
    limit(task="test-store", max_concurrency=5)
    assert Worker(process_id, WorkerOptions(concurrency=2, burst=True), using="default").run()
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE id = %s", hidden) == [(0,)]


def test_only_runnable_due_groups_are_listed(process_id: int, stores: list[UUID]) -> None:
    """With the first job of each, in the order in which all groups are listed."""
    first, second, third = sorted(stores)
    for priority, store_id in enumerate((second, first, third)):
        add(3, store_id, priority=priority)
    add(2, None)
    add(2, first, queue="mail")
    add(2, first, task="nobody-knows-it")
    add(2, second, run_at="2999-01-01T00:00:00Z", concurrency_key="later")
    for queues, paused in ((None, ["mail"]), (["default"], [])):
        runnable = ClaimFilter(["test-store", "test-system"], queues, paused, [str(third)])
        everything = list_groups(ScanRange(None), runnable, using="default").groups
        due = list_due_groups(runnable, using="default")
        assert due == [group for group in everything if group.due]
        assert {group.store for group in due} == {first, second, store_key().none}


def test_burst_of_many_scans_ends(process_id: int, database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes more than one scan to see that no store has a job that is due."""
    monkeypatch.setattr(group_scanner, "_SCAN_S", 0.0)
    for _ in range(STORES_PER_SCAN * 2 + 5):
        add(1, new_store_id(), run_at="2999-01-01T00:00:00Z")
    limit(task="test-store", max_concurrency=5)
    assert Worker(process_id, WorkerOptions(concurrency=2, burst=True), using="default").run()


def test_burst_with_slow_scans_ends(process_id: int, stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_scanner, "_SCAN_EVERY_S", (0.0, 60.0))
    add(5, stores[0])
    assert Worker(process_id, WorkerOptions(concurrency=2, burst=True), using="default").run()
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_wait_for_full_limit_doubles(
    claimer: Claimer, process_id: int, stores: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(3, stores[0])
    limit(task="test-store", max_concurrency=1)
    claims = [claimer.claim(10) for _ in range(7)]
    [first] = claims[0].jobs
    waits_s = [0.025, 0.05, 0.1, 0.2, 0.25, 0.25, 0.25]
    assert claims == [Claim([first] * (wait_s == 0.025), wait_s, throttled=True) for wait_s in waits_s]
    names: list[str] = []

    def run_raw(name: str, parameters: Any, **options: Any) -> list[Any]:
        names.append(name)
        return statements.run_raw(name, parameters, **options)

    monkeypatch.setattr(claim_module, "run_raw", run_raw)
    monkeypatch.setattr(group_scanner, "run_raw", run_raw)
    assert claimer.claim(10).jobs == []
    assert names == ["list_groups", "lock_scopes", "running_counts"], "it runs no statement about nothing"
    assert finish(first, process_id)
    jobs, again_in_s, _ = claimer.claim(10)
    assert (len(jobs), again_in_s) == (1, 0.025)


def test_no_claim_is_compiled(process_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server has JIT, which is on by default, compiling takes a hundred times as long as claiming."""
    monkeypatch.setattr(statements, "load", lambda _: "SELECT current_setting('jit')")
    assert statements.run_raw("any", {}, using="default", jit=False) == [("off",)]
    assert seen("SELECT current_setting('jit')") == [("on",)], "only this one is not"


def test_rate_is_retried_in_time(claimer: Claimer, stores: list[UUID]) -> None:
    add(30, stores[0])
    limit(task="test-store", rate=1)
    assert len(claimer.claim(10).jobs) == 1
    waits_s: list[float | None] = []
    for _ in range(6):
        change("UPDATE salon_jobs_rate SET full_at = clock_timestamp() + interval '30 s'")
        jobs, again_in_s, _ = claimer.claim(10)
        assert jobs == []
        waits_s.append(again_in_s)
    assert waits_s[-1] == 0.25
    while True:  # On a busy machine a claim may take longer than that.
        change("UPDATE salon_jobs_rate SET full_at = clock_timestamp() + interval '100 ms'")
        jobs, again_in_s, _ = claimer.claim(10)
        if not jobs:
            break
    assert again_in_s is not None
    assert again_in_s <= 0.1


# Declared limits hold among several processes, and a row stands in their place


def claimed_by(claimer: Claimer, *, times: int = 4, room: int = 40) -> list[ClaimedJob]:
    """Claim several times; return all jobs."""
    return [job for _ in range(times) for job in claimer.claim(room).jobs]


def add_calls(task: Task[..., Any], stores: Iterable[UUID], lines: Iterable[str] = ("a",), count: int = 1) -> None:
    task.enqueue_many(
        [task.call(store_id=id_, line=line, number=n) for id_ in stores for line in lines for n in range(count)]
    )


def add_in_stores(stores: list[UUID], count: int) -> None:
    tasks.in_store.enqueue_many([tasks.in_store.call(store_id=store_id) for store_id in stores] * count)


def by_key(jobs: list[ClaimedJob]) -> Counter[str | None]:
    keys = dict(seen("SELECT id, concurrency_key FROM salon_jobs_job"))
    return Counter(keys[job.id] for job in jobs)


def most_at_once(scope: str) -> int:
    """Let four processes claim and finish, often, and return how many jobs of one scope ran at once at most."""

    def claim_often(process_id: int) -> int:
        claimer, most = claimer_of(process_id), 0
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
def test_concurrent_claims_keep_declared_limit(
    declare: Declare, stores: list[UUID], options: dict[str, Any], scope: str, most: int
) -> None:
    add_calls(declare(**options), stores, "abcd", 3)
    with override_settings(SALON_JOBS={**SALON_JOBS, "STORE_CONCURRENCY": None if options else 2}):
        assert most_at_once(scope) == most
    assert seen("SELECT count(*) FROM salon_jobs_job")[0][0] < 36


def test_workers_keep_declared_limits(declare: Declare, stores: list[UUID], hooks: tasks.Hooks) -> None:
    """They come to an end, too."""
    add_calls(declare(max_concurrency=4, concurrency_key="{line}"), stores, "abcdef", 3)
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
            assert run.result(LIMIT_S)
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
    assert seen_at_once.pop("all") <= 4
    assert set(seen_at_once.values()) == {1}


def test_own_free_place_is_taken_at_once(
    declare: Declare, stores: list[UUID], hooks: tasks.Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that a job of this process leaves is taken before the next look."""
    monkeypatch.setattr(claim_module, "LIMIT_WAIT_S", (0.025, 2 * LIMIT_S))
    add_calls(declare(max_concurrency=1), stores[:1], count=2)
    worker = Worker(another_process(), WorkerOptions(concurrency=4, burst=True), using="default")
    gate, started = threading.Event(), threading.Semaphore(0)

    def wait(**_: object) -> None:
        started.release()
        assert gate.wait(LIMIT_S)

    def waits_long() -> bool:
        return wait_for_limits(worker, 2 * LIMIT_S)

    hooks.store = wait
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert started.acquire(timeout=LIMIT_S)
        eventually(waits_long)
        gate.set()
        assert started.acquire(timeout=LIMIT_S), "it waits for the look that is due"
    finally:
        gate.set()
        worker.stop()
        thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_row_replaces_declared_limit(declare: Declare, claimer: Claimer, stores: list[UUID]) -> None:
    add_calls(declare(max_concurrency=2), stores, count=10)

    def claimed() -> int:
        return len(claimed_by(claimer, times=2, room=30))

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


def test_limit_of_one_key(declare: Declare, claimer: Claimer, stores: list[UUID]) -> None:
    task = declare(concurrency_key="{line}")
    add_calls(task, stores, ("visa", "amex", "cash"), 2)
    task.using(concurrency_key="mine").enqueue_many([task.call(store_id=stores[0], line="visa")] * 2)
    limit(task="test-declared", key="visa", max_concurrency=3)
    limit(task="test-declared", key="cash", lift=True)
    assert by_key(claimed_by(claimer)) == {"visa": 3, "amex": 1, "cash": 6, "mine": 1}


@override_settings(SALON_JOBS={**SALON_JOBS, "STORE_CONCURRENCY": 2})
def test_row_replaces_store_setting(claimer: Claimer, stores: list[UUID]) -> None:
    """Jobs of no store have no limit."""
    add_in_stores(stores, 4)
    tasks.system.enqueue_many([tasks.system.call()] * 4)
    limit(store_id=stores[0], max_concurrency=3)
    limit(store_id=stores[1], lift=True)
    found = Counter(job.store_id for job in claimed_by(claimer))
    assert found == {stores[0]: 3, stores[1]: 4, stores[2]: 2, None: 4}


def test_claim_locks_few_keys(
    declare: Declare, claimer: Claimer, stores: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It locks no more keys than it reads groups, and full ones take no slot."""
    monkeypatch.setattr(quotas, "GROUPS_PER_CLAIM", 6)
    locked: list[int] = []
    lock_scopes = claim_module.lock_scopes

    def counted(scopes: Iterable[str], *, using: str) -> set[str]:
        found = lock_scopes(scopes, using=using)
        locked.append(len(found))
        return found

    monkeypatch.setattr(claim_module, "lock_scopes", counted)
    add_calls(declare(concurrency_key="{line}", priority=-1), stores[:1], map(str, range(20)), 2)
    tasks.in_store.enqueue(store_id=stores[0])
    claimed = claimed_by(claimer, times=5)
    assert max(locked) == 6
    assert Counter(job.task for job in claimed) == {"test-declared": 20, "test-store": 1}


def test_more_keys_than_a_scan_lists(declare: Declare, claimer: Claimer, stores: list[UUID]) -> None:
    """The claimer waits for no next scan while there are jobs of keys that the last one left out."""
    add_calls(declare(concurrency_key="{line}"), stores[:1], map(str, range(300)), 1)
    claim = claimer.claim(300)
    claimed = len(claim.jobs)
    assert 0 < claimed < 300
    while claim.again_in_s == 0:
        claim = claimer.claim(300)
        claimed += len(claim.jobs)
    assert claimed == 300


def test_many_stores_list_few_keys(
    declare: Declare, claimer: Claimer, stores: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many keys a scan lists follows from all stores, and not from the few that the last page had left."""
    listed: list[int] = []

    def counted(scan_range: ScanRange, *arguments: Any, **options: Any) -> ScanPage:
        listed.append(scan_range.groups)
        return list_groups(scan_range, *arguments, **options)

    monkeypatch.setattr(group_scanner, "list_groups", counted)
    task = declare(concurrency_key="{line}")
    with monkeypatch.context() as patched:
        patched.setattr(group_scanner, "STORES_PER_SCAN", 2)
        add_calls(task, stores, [*map(str, range(20))])
        claimed_by(claimer, times=6, room=6)
    assert set(listed) == {32}
    listed.clear()
    add_calls(task, stores[:1], map(str, range(300)), 1)
    claimed_by(claimer, times=5)
    assert max(listed) == 256 // 3, "together as many as a claim reads"


def test_rate_of_each_key(declare: Declare, claimer: Claimer, stores: list[UUID]) -> None:
    """Each has its own bucket, which all processes share."""
    task = declare(concurrency_key="{line}", key_rate="1/h", burst=2)  # all of it takes less than an hour
    add_calls(task, stores[:1], ("visa", "amex"), 9)
    add_calls(task, stores[:1], ("cash",), 1)
    there = claimer_of(another_process())
    found = [job for each in (claimer, there, claimer) for job in each.claim(30).jobs]
    assert by_key(found) == {"visa": 2, "amex": 2, "cash": 1}, "any number of a key run at once, as the rate allows"
    buckets = "SELECT scope FROM salon_jobs_rate ORDER BY scope"
    assert seen(buckets) == [(f"key:test-declared:{key}",) for key in ("amex", "cash", "visa")]
    change("UPDATE salon_jobs_rate SET full_at = clock_timestamp() + interval '59 min' WHERE scope ~ 'visa'")
    assert by_key(claimer.claim(30).jobs) == {"visa": 1}
    change("UPDATE salon_jobs_rate SET full_at = clock_timestamp() - interval '1 s'")
    assert Pruner(using="default").run_once().deleted["rates"] == 3
    assert by_key(there.claim(30).jobs) == {"visa": 2, "amex": 2}, "no bucket is a full one"


def test_declared_rate_and_burst(declare: Declare, process_id: int, stores: list[UUID]) -> None:
    """They are those of the task until a row replaces them."""
    add_calls(declare(rate="4/h", burst=4), stores, count=10)
    first = claimer_of(process_id).claim(30)
    assert len(first.jobs) == 4
    assert first.again_in_s is not None
    limit(task="test-declared", rate=100)
    change("DELETE FROM salon_jobs_rate")
    assert len(claimer_of(process_id).claim(30).jobs) == 26, "of a hundred that a second saves up"


def test_expired_jobs_cost_no_rate(claimer: Claimer, stores: list[UUID]) -> None:
    add_in_stores(stores[:1], 8)
    change(
        "UPDATE salon_jobs_job SET expires_at = now() - interval '1 s'"
        " WHERE id <= (SELECT min(id) + 3 FROM salon_jobs_job)"
    )
    limit(task="test-store", rate=5)
    assert [job.expired for job in claimer.claim(5).jobs] == [True] * 4 + [False]
    assert [job.expired for job in claimer.claim(5).jobs] == [False] * 3


def test_jobs_past_wait_timeout_cost_no_rate(declare: Declare, claimer: Claimer, stores: list[UUID]) -> None:
    add_calls(declare(rate="5/h", burst=5, wait_timeout=timedelta(minutes=1)), stores[:1], count=8)
    change(
        "UPDATE salon_jobs_job SET run_at = now() - interval '1 h' WHERE id <= (SELECT min(id) + 3 FROM salon_jobs_job)"
    )
    assert [len(claimer.claim(5).jobs) for _ in range(2)] == [5, 3]


@pytest.mark.parametrize("payload", ['{"colour": "red"}', '{"number": "many"}'], ids=["unknown", "invalid"])
def test_unreadable_payloads_cost_no_rate(declare: Declare, claimer: Claimer, stores: list[UUID], payload: str) -> None:
    """The worker leaves or fails their jobs without a run."""
    add_calls(declare(rate="5/h", burst=5), stores[:1], count=8)
    change("UPDATE salon_jobs_job SET payload = %s WHERE id <= (SELECT min(id) + 3 FROM salon_jobs_job)", payload)
    assert [len(claimer.claim(5).jobs) for _ in range(2)] == [5, 3]


def test_large_payload_costs_rate(declare: Declare, claimer: Claimer, stores: list[UUID]) -> None:
    """Its claim leaves it out, so it counts as one that fits."""
    add_calls(declare(rate="5/h", burst=5), stores[:1], ["x" * 100_000], count=8)
    assert [len(claimer.claim(5).jobs) for _ in range(2)] == [5, 0]


def test_no_limits(declare: Declare) -> None:
    """Without declarations and meaningful rows there are none."""
    declare()
    assert not load_limits(using="default")
    pause(queue="default")
    resume(queue="default")
    limit(store_id=new_store_id(), lift=True)
    assert not load_limits(using="default"), "the plain claim serves"


def test_keys_with_equal_group_number(declare: Declare, claimer: Claimer, stores: list[UUID]) -> None:
    """Each has a limit of its own."""
    task = declare(concurrency_key="{line}", key_concurrency=2)
    hashed = "hashtextextended(n::text, 0) & 4294967295"
    [(one, other)] = seen(
        f"SELECT min(n)::text, max(n)::text FROM generate_series(1, 400000) n GROUP BY {hashed} HAVING count(*) > 1"
        " LIMIT 1"
    )
    add_calls(task, stores[:1], [other], 2)
    assert len(claimer.claim(10).jobs) == 2
    add_calls(task, stores[:1], [one], 1)
    add_calls(task, stores[:1], [other], 2)
    assert len(set(seen("SELECT claim_group FROM salon_jobs_job"))) == 1
    assert by_key(claimed_by(claimer, times=3, room=10)) == {one: 1}, "the other's two are taken"
