"""Tests of fair claims and limits, as the worker role, also among several processes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest
from django.db import OperationalError, ProgrammingError, connection, connections, transaction

from salon_jobs.core.records import ClaimedJob
from salon_jobs.db import statements
from salon_jobs.jobs.limits import limit, pause, resume
from salon_jobs.worker import fair_claim, group_scanner
from salon_jobs.worker.claim import Claimer
from salon_jobs.worker.fair_claim import Claim
from salon_jobs.worker.group_scanner import STORES_PER_SCAN, ScanPage
from salon_jobs.worker.worker import Worker, WorkerOptions
from tests.support import another_process, change, finish, leases_of, new_store_id, seen

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


def by_store(jobs: list[ClaimedJob]) -> Counter[UUID | None]:
    return Counter(job.store_id for job in jobs)


def test_a_prepared_claim_is_prepared_again_after_its_session_lost_it(process_id: int, stores: list[UUID]) -> None:
    add(3, stores[0])

    def claimed() -> int:
        return len(leases_of(process_id).claim_due(["test-store"], 1, prepare=True))

    assert claimed() == 1
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    with pytest.raises(ProgrammingError, match="does not exist"):
        claimed()
    assert claimed() == 1
    connection.close()
    assert claimed() == 1


def test_a_store_with_a_backlog_leaves_the_others_their_share(process_id: int, stores: list[UUID]) -> None:
    big, small, _ = stores
    add(500, big)
    add(10, small)
    claimer = Claimer(leases_of(process_id), None)
    first = claimer.claim(20)
    assert by_store(first.jobs) == {big: 20}, "what came first is due first, until a backlog shows"
    second = claimer.claim(40)
    assert by_store(second.jobs) == {big: 20, small: 10}
    assert first.again_in_s == second.again_in_s == 0, "the big store gave all it was asked for"


def test_more_stores_than_one_scan_lists_are_all_served(process_id: int, database: None) -> None:
    everyone = [new_store_id() for _ in range(STORES_PER_SCAN * 2 + 5)]
    for store_id in everyone:
        add(2, store_id)
    claimer = Claimer(leases_of(process_id), None)
    claimer.claim(1)
    claimed: list[ClaimedJob] = []
    for _ in range(20):
        claim = claimer.claim(100)
        claimed += claim.jobs
        if claim.again_in_s != 0:
            break
    assert set(by_store(claimed)) == set(everyone)
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE state = 'queued'") == [(0,)]


def test_priority_decides_within_a_store(process_id: int, stores: list[UUID]) -> None:
    add(30, stores[0], priority=5)
    add(30, stores[0], priority=-5)
    add(1, stores[1])
    claimer = Claimer(leases_of(process_id), None)
    claimer.claim(1)
    claimed = claimer.claim(10).jobs
    assert by_store(claimed) == {stores[0]: 5, stores[1]: 1}
    assert {job.priority for job in claimed if job.store_id == stores[0]} == {-5}


def test_jobs_due_later_and_unknown_or_unserved_ones_are_left_alone(process_id: int, stores: list[UUID]) -> None:
    add(5, stores[0], run_at="2999-01-01T00:00:00Z")
    add(5, stores[0], queue="mail")
    add(5, stores[0], task="nobody-knows-it")
    pause(task="something-else")
    assert Claimer(leases_of(process_id), ["default"]).claim(10) == Claim([], None)


@pytest.mark.parametrize("kind", ["queue", "task", "store_id"])
def test_a_queue_a_task_and_a_store_can_be_paused_and_resumed(kind: str, process_id: int, stores: list[UUID]) -> None:
    add(3, stores[0])
    add(3, stores[1], task="test-keyed", queue="mail")
    named = {"queue": "mail", "task": "test-keyed", "store_id": stores[1]}[kind]
    pause(**{kind: named})  # type: ignore[arg-type]
    claimer = Claimer(leases_of(process_id), None)
    assert by_store(claimer.claim(10).jobs) == {stores[0]: 3}
    assert claimer.claim(10) == Claim([], None), "nothing that is due may run"
    resume(**{kind: named})  # type: ignore[arg-type]
    assert by_store(claimer.claim(10).jobs) == {stores[1]: 3}


def test_max_concurrency_counts_the_running_jobs_of_all_processes(process_id: int, stores: list[UUID]) -> None:
    add(10, stores[0])
    add(10, stores[1])
    limit(task="test-store", max_concurrency=4)
    here, there = Claimer(leases_of(process_id), None), Claimer(leases_of(another_process()), None)
    first = here.claim(3).jobs
    second = there.claim(10)
    assert (len(first), len(second.jobs)) == (3, 1)
    assert second.again_in_s is not None
    assert 0 < second.again_in_s < 0.1, "it claims again soon: a job may end any time"
    assert finish(first[0], process_id)
    assert len(there.claim(10).jobs) == 1
    limit(task="test-store", max_concurrency=None)
    assert len(there.claim(20).jobs) == 15


def test_a_rate_limit_is_a_bucket_that_all_processes_share(process_id: int, stores: list[UUID]) -> None:
    add(100, stores[0], queue="mail")
    limit(queue="mail", rate=5)
    here, there = Claimer(leases_of(process_id), None), Claimer(leases_of(another_process()), None)
    assert len(here.claim(10).jobs) == 5, "one second's worth, however long it was quiet"
    change("DELETE FROM salon_jobs_rate")
    limit(queue="mail", rate="1/m", burst=5)  # the rest takes less than a minute
    assert len(here.claim(3).jobs) == 3
    assert len(there.claim(10).jobs) == 2, "the burst in all"
    change("UPDATE salon_jobs_rate SET full_at = clock_timestamp() + interval '179 s'")
    assert len(there.claim(10).jobs) == 2
    change("UPDATE salon_jobs_rate SET full_at = clock_timestamp() - interval '10 s'")
    assert len(there.claim(10).jobs) == 5
    limit(queue="mail", burst=12)
    change("DELETE FROM salon_jobs_rate")
    assert len(Claimer(leases_of(another_process()), None).claim(20).jobs) == 12


def test_a_scope_that_another_process_claims_in_is_left_to_it(process_id: int, stores: list[UUID]) -> None:
    add(3, stores[0])
    add(3, None)
    limit(task="test-store", max_concurrency=2)
    claimer = Claimer(leases_of(process_id), None)

    def claim_elsewhere() -> Claim:
        try:
            return claimer.claim(10)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        assert fair_claim.lock_scopes(["task:test-store"], using="default")
        claimed = pool.submit(claim_elsewhere).result()
    assert by_store(claimed.jobs) == {None: 3}
    assert claimed.again_in_s == pytest.approx(0.025)
    assert len(claimer.claim(10).jobs) == 2


def test_jobs_before_the_low_water_are_found_by_the_next_scan(
    process_id: int, stores: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(30, stores[0], run_at="2020-01-02T00:00:00Z")
    claimer = Claimer(leases_of(process_id), None)
    claimer.claim(5)
    assert len(claimer.claim(10).jobs) == 10
    add(1, stores[0], run_at="0001-01-02T00:00:00.000001Z")
    monkeypatch.setattr(claimer._fair_claim, "_scan_at", float("inf"))
    assert all(job.run_at.day == 2 for job in claimer.claim(5).jobs), "its transaction began earlier and ended later"
    monkeypatch.setattr(claimer._fair_claim, "_scan_at", float("-inf"))
    assert claimer.claim(5).jobs[0].run_at.year == 1


def test_groups_that_are_slow_to_scan_are_scanned_in_the_background(
    process_id: int, stores: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(30, stores[0])
    claimer = Claimer(leases_of(process_id), None)
    assert len(claimer.claim(5).jobs) == len(claimer.claim(5).jobs) == 5, "fairly, the second time"
    may_list, list_groups = threading.Event(), group_scanner.list_groups

    def slowly(*arguments: Any, **options: Any) -> ScanPage:
        assert may_list.wait(10)
        return list_groups(*arguments, **options)

    monkeypatch.setattr(group_scanner, "list_groups", slowly)
    monkeypatch.setattr(fair_claim, "_BACKGROUND_S", -1.0)
    monkeypatch.setattr(claimer._fair_claim, "_scan_at", float("-inf"))
    add(5, stores[1])
    assert by_store(claimer.claim(5).jobs) == {stores[0]: 5}, "nobody waits for the scan"
    assert claimer._fair_claim._background_scan is not None
    may_list.set()
    claimer._fair_claim._background_scan.result(10)
    assert by_store(claimer.claim(4).jobs) == {stores[0]: 2, stores[1]: 2}


def test_a_failed_scan_in_the_background_is_raised_once(
    process_id: int, stores: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(30, stores[0])
    claimer = Claimer(leases_of(process_id), None)
    assert len(claimer.claim(5).jobs) == len(claimer.claim(5).jobs) == 5
    with monkeypatch.context() as patched:
        patched.setattr(group_scanner, "list_groups", Mock(side_effect=OperationalError("gone")))
        patched.setattr(fair_claim, "_BACKGROUND_S", -1.0)
        patched.setattr(claimer._fair_claim, "_scan_at", float("-inf"))
        assert len(claimer.claim(5).jobs) == 5
        assert claimer._fair_claim._background_scan is not None
        assert isinstance(claimer._fair_claim._background_scan.exception(10), OperationalError)
        with pytest.raises(OperationalError, match="gone"):
            claimer.claim(5)
    assert len(claimer.claim(5).jobs) == 5


def test_paused_jobs_of_thousands_of_keys_hide_none_of_the_same_store(process_id: int, stores: list[UUID]) -> None:
    change(
        "INSERT INTO salon_jobs_job (task, store_id, payload, concurrency_key)"
        " SELECT 'test-store', %s, '{}', 'k' || n FROM generate_series(1, 5000) n",
        stores[0],
    )
    add(10, stores[0], task="test-keyed")
    add(10, stores[1], task="test-keyed")
    pause(task="test-store")
    claimer = Claimer(leases_of(process_id), None)
    claimed = claimer.claim(10).jobs + claimer.claim(10).jobs
    assert by_store(claimed) == {stores[0]: 10, stores[1]: 10}
    assert claimer.claim(10) == Claim([], None), "a burst ends, and no process claims again and again"


def test_a_round_of_paused_stores_comes_to_its_end(
    process_id: int, database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_scanner, "_SCAN_S", 0.0)
    for _ in range(STORES_PER_SCAN * 2 + 5):
        add(1, new_store_id())
    pause(task="test-store")
    claimer = Claimer(leases_of(process_id), None)
    claims = [claimer.claim(10) for _ in range(10)]
    assert not any(claim.jobs for claim in claims)
    assert None in {claim.again_in_s for claim in claims}, "it claims again at once, for ever"


def test_a_job_given_back_below_the_low_water_is_claimed_at_once(process_id: int, stores: list[UUID]) -> None:
    add(3, stores[0])
    limit(store_id=stores[0], max_concurrency=100)
    claimer = Claimer(leases_of(process_id), None)
    first = claimer.claim(10).jobs
    assert len(first) == 3
    assert leases_of(process_id).requeue([(first[0].id, first[0].lease)])
    again = claimer.claim(10)
    assert again.jobs or again.again_in_s == 0, "a burst would end here"
    assert [job.id for job in again.jobs or claimer.claim(10).jobs] == [first[0].id]


@pytest.mark.parametrize("clock_s", [100.0, 1_000_000.0])
def test_the_plain_claim_comes_back_whatever_the_clock_shows(
    clock_s: float, process_id: int, stores: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_claim, "_SCAN_EVERY_S", (0.05, 2.0))
    for module in ("claim", "fair_claim", "group_scanner"):
        monkeypatch.setattr(f"salon_jobs.worker.{module}.time", SimpleNamespace(monotonic=lambda: clock_s))
    add(3, stores[0])
    claimer = Claimer(leases_of(process_id), None)
    assert len(claimer.claim(2).jobs) == 2
    jobs, again_in_s, _ = claimer.claim(2)
    assert (len(jobs), again_in_s) == (1, None), "fairly"
    add(1, stores[1], task="nobody-has-it")
    add(3, stores[1])
    assert len(claimer.claim(5).jobs) == 3, "in the order due: no scan hides a new one"


def test_one_slow_claim_or_scan_hides_no_new_job(
    process_id: int, stores: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have waited for the processor; a worker that read claim groups from then on would not see new ones."""
    monkeypatch.setattr(fair_claim, "_SCAN_EVERY_S", (60.0, 60.0))
    claimer = Claimer(leases_of(process_id), None)
    with monkeypatch.context() as patch:
        patch.setattr("salon_jobs.worker.claim._SLOW_S", -1.0)
        claimer.claim(5)
    claimer.claim(5)
    add(3, stores[0])
    assert len(claimer.claim(2).jobs) == 2, "in the order due"
    clock, scan = SimpleNamespace(now=time.monotonic()), group_scanner.list_groups

    def slowly(*arguments: Any, **options: Any) -> ScanPage:
        clock.now += 30.0
        return scan(*arguments, **options)

    with monkeypatch.context() as patch:
        for module in ("claim", "fair_claim", "group_scanner"):
            patch.setattr(f"salon_jobs.worker.{module}.time", SimpleNamespace(monotonic=lambda: clock.now))
        patch.setattr(group_scanner, "list_groups", slowly)
        assert len(claimer.claim(2).jobs) == 1, "fairly, by a slow scan"
        add(3, stores[1])
        assert len(claimer.claim(5).jobs) == 3, "in the order due again"


def test_a_prepared_claim_returns_what_another_does(process_id: int, stores: list[UUID]) -> None:
    instants = {"run_at": "2020-01-01T00:00Z", "created_at": "2019-01-01T00:00Z", "tick": "2030-01-01T00:00Z"}
    add(2, stores[0], trace='{"a": "b"}', expires_at="2021-01-01T00:00Z", **instants)
    add(2, None, **{**instants, "run_at": "2020-01-02T00:00Z"})
    tasks = ["test-store", "test-system"]
    for queues in (["default"], None):
        ways = (False, True)
        [plain], [prepared] = (leases_of(process_id).claim_due(tasks, 1, queues=queues, prepare=way) for way in ways)
        assert plain.id != prepared.id
        assert plain == prepared._replace(id=plain.id, lease=plain.lease, due_at=plain.due_at)
        assert plain.due_at == pytest.approx(prepared.due_at, abs=10)
    with connection.cursor() as cursor:
        cursor.execute("SELECT rtrim(name, '_0123456789') FROM pg_prepared_statements")
        assert cursor.fetchall() == [("claim_few",)]


def test_a_burst_ends_though_groups_are_slow_to_scan(
    process_id: int, stores: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_claim, "_SCAN_EVERY_S", (0.0, 60.0))
    add(5, stores[0])
    worker = Worker(process_id, WorkerOptions(concurrency=2, burst=True), using="default")
    giving_up = threading.Timer(20, worker.stop)
    giving_up.start()
    worker.run()
    assert giving_up.is_alive()
    giving_up.cancel()
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_the_wait_for_a_full_limit_doubles_until_something_is_claimed(
    process_id: int, stores: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(3, stores[0])
    limit(task="test-store", max_concurrency=1)
    claimer = Claimer(leases_of(process_id), None)
    claims = [claimer.claim(10) for _ in range(7)]
    [first] = claims[0].jobs
    waits_s = [0.025, 0.05, 0.1, 0.2, 0.25, 0.25, 0.25]
    assert claims == [Claim([first] * (wait_s == 0.025), wait_s, throttled=True) for wait_s in waits_s]
    names: list[str] = []

    def hot(name: str, parameters: Any, **options: Any) -> list[Any]:
        names.append(name)
        return statements.hot(name, parameters, **options)

    monkeypatch.setattr(fair_claim, "hot", hot)
    monkeypatch.setattr(group_scanner, "hot", hot)
    assert claimer.claim(10).jobs == []
    assert names == ["list_groups", "lock_scopes", "running_counts"], "it runs no statement about nothing"
    assert finish(first, process_id)
    jobs, again_in_s, _ = claimer.claim(10)
    assert (len(jobs), again_in_s) == (1, 0.025)


def test_no_claim_is_compiled(process_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server has JIT, which is on by default, compiling takes a hundred times as long as claiming."""
    monkeypatch.setattr(statements, "load", lambda _: "SELECT current_setting('jit')")
    assert statements.hot("any", {}, using="default", jit=False) == [("off",)]
    assert seen("SELECT current_setting('jit')") == [("on",)], "only this one is not"
    claims = seen(
        "SELECT proname FROM pg_proc WHERE proname IN ('salon_jobs_claim', 'salon_jobs_claim_groups',"
        " 'salon_jobs_finish') AND 'jit=off' = ANY (proconfig)"
    )
    assert len(claims) == 3


def test_a_rate_is_retried_when_its_next_job_may_start(process_id: int, stores: list[UUID]) -> None:
    add(30, stores[0])
    limit(task="test-store", rate=1)
    claimer = Claimer(leases_of(process_id), None)
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
