"""Shows, with connections of their own, that a row answers only to the run that holds its lease."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import connections, transaction

from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs import registry
from salon_jobs.models import Process
from salon_jobs.worker.fair_claim import claim_groups, share_out
from salon_jobs.worker.group_scanner import ClaimFilter, list_groups
from salon_jobs.worker.maintenance import RescueCounts, rescue_process
from tests import tasks
from tests.support import (
    another_process,
    be_silent,
    change,
    claim,
    elsewhere,
    event_fields,
    finish,
    job_row,
    leases_of,
    moved_to,
    row_of,
    seen,
    wait_until_waiting,
)
from tests.worker.effects import states
from tests.worker.ends import ENDS, FENCED, RETURNS

SILENCE = timedelta(seconds=15)


@pytest.mark.parametrize("keep", [0, 60], ids=["deleted", "kept"])
@pytest.mark.parametrize("wrong", ["lease", "process", "state"])
def test_without_the_lease_no_end_changes_anything(process_id: int, settings: Any, wrong: str, keep: int) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": keep}
    handle = tasks.system.enqueue()
    [job] = claim(process_id)
    owner = process_id
    if wrong == "lease":
        job = job._replace(lease=job.lease - 1)
    elif wrong == "process":
        owner += 1
    else:
        change(f"UPDATE salon_jobs_job SET {moved_to('queued', lease='lease')}")
    before = job_row(handle.id)
    assert [name for name, end in FENCED.items() if end(job, owner)] == []
    assert job_row(handle.id) == before
    assert seen("SELECT count(*) FROM salon_jobs_job_error") == [(0,)]


def test_four_claimers_never_share_a_job(stores: list[UUID], process_id: int) -> None:
    tasks.in_store.enqueue_many(tasks.in_store.call(store_id=stores[n % 3], number=n) for n in range(120))
    processes = [another_process() for _ in range(4)]
    start = threading.Barrier(4)

    def work(process: int) -> list[int]:
        start.wait(10)
        mine: list[int] = []
        while jobs := leases_of(process).claim_due(registry.task_names(), 7):
            assert len(jobs) <= 7
            mine += [job.id for job in jobs]
        return mine

    with ThreadPoolExecutor(4) as pool:
        futures = [elsewhere(pool, partial(work, process)) for process in processes]
        claimed = [future.result(30) for future in futures]
    everything = [job_id for mine in claimed for job_id in mine]
    assert len(everything) == len(set(everything)) == 120
    for process, mine in zip(processes, claimed, strict=True):
        assert {row[0] for row in seen("SELECT id FROM salon_jobs_job WHERE leased_by = %s", process)} == set(mine)


def test_a_claim_passes_by_what_another_holds(stores: list[UUID], process_id: int) -> None:
    first, second = (tasks.in_store.enqueue(store_id=stores[0]).id for _ in range(2))
    with transaction.atomic(using="owner"):
        change("SELECT 1 FROM salon_jobs_job WHERE id = %s FOR UPDATE", first)
        assert [job.id for job in claim(process_id)] == [second]


def test_claims_follow_priority_then_run_at_within_the_asked_queues(stores: list[UUID], process_id: int) -> None:
    def add(**options: Any) -> int:
        return tasks.in_store.using(**options).enqueue(store_id=stores[0]).id

    late, urgent, early, mail = add(), add(priority=-5), add(), add(queue="mail")
    change("UPDATE salon_jobs_job SET run_at = now() - interval '1 min' WHERE id = %s", early)
    add(run_in=timedelta(hours=1))
    leases, names = leases_of(process_id), registry.task_names()
    one_by_one = [leases.claim_due(names, 1, queues=["default"]) for _ in range(4)]
    assert [[job.id for job in jobs] for jobs in one_by_one] == [[urgent], [early], [late], []]
    assert leases.claim_due(["test-system"], 9) == []
    assert [job.id for job in leases.claim_due(names, 9)] == [mail]


def test_a_rescue_waits_for_a_claim_in_flight_and_includes_its_jobs(stores: list[UUID], process_id: int) -> None:
    handle = tasks.in_store.enqueue(store_id=stores[0])
    be_silent(process_id)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            claim(process_id)
            rescue = elsewhere(pool, lambda: rescue_process(process_id, SILENCE, using="default"))
            wait_until_waiting()
            assert not rescue.done()
        assert rescue.result(10) == RescueCounts(processes=1, queued=1)
    row = row_of(handle.id)
    assert (row["state"], row["attempts"], row["rescues"], row["leased_by"]) == ("queued", 0, 1, None)
    assert row["lease"] == 0


def test_a_claim_behind_a_rescue_gets_nothing(stores: list[UUID], process_id: int) -> None:
    tasks.in_store.enqueue(store_id=stores[0])
    be_silent(process_id)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            rescue_process(process_id, SILENCE, using="default")
            late: Future[list[ClaimedJob]] = elsewhere(pool, lambda: claim(process_id))
            wait_until_waiting()
        assert late.result(10) == []
    assert states() == ["queued"]


def test_a_beat_that_comes_first_wins_against_a_rescue_that_waits(stores: list[UUID], process_id: int) -> None:
    tasks.in_store.enqueue(store_id=stores[0])
    claim(process_id)
    be_silent(process_id)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Process.objects.filter(pk=process_id).update(heartbeat_at=seen("SELECT clock_timestamp()")[0][0])
            rescue = elsewhere(pool, lambda: rescue_process(process_id, SILENCE, using="default"))
            wait_until_waiting()
        assert rescue.result(10) == RescueCounts()
    assert states() == ["running"]


def test_two_rescues_at_once_count_one(stores: list[UUID], process_id: int) -> None:
    tasks.in_store.enqueue(store_id=stores[0])
    claim(process_id)
    be_silent(process_id)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert rescue_process(process_id, SILENCE, using="default") == RescueCounts(processes=1, queued=1)
            second = elsewhere(pool, lambda: rescue_process(process_id, SILENCE, using="default"))
            wait_until_waiting()
        assert second.result(10) in (RescueCounts(), RescueCounts(processes=1))
    assert seen("SELECT state, rescues FROM salon_jobs_job") == [("queued", 1)]


@pytest.mark.parametrize("verb", ["rescue", "release", "fail"])
def test_a_twin_that_commits_at_this_very_moment_supersedes_one_and_holds_up_none(
    stores: list[UUID], process_id: int, verb: str
) -> None:
    for number in range(3):
        tasks.keyed.enqueue(store_id=stores[0], number=number)
    jobs = claim(process_id)
    if verb == "rescue":
        change("DELETE FROM salon_jobs_process")
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            tasks.keyed.enqueue(store_id=stores[0], number=1)
            given_back = elsewhere(pool, lambda: [RETURNS[verb](job, process_id) for job in jobs])
            wait_until_waiting()
        given_back.result(10)
    assert states() == ["queued", "cancelled", "queued", "queued"]
    assert seen("SELECT reason FROM salon_jobs_job WHERE state = 'cancelled'") == [("superseded",)]


def test_one_row_that_can_not_be_changed_holds_up_no_rescue(
    stores: list[UUID], process_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    handles = [tasks.keyed.enqueue(store_id=stores[0], number=number) for number in range(4)]
    claim(process_id)
    tasks.keyed.enqueue(store_id=stores[0], number=2)
    refused = f"CHECK (id <> {handles[1].id} OR state = 'running')"
    change(f"ALTER TABLE salon_jobs_job ADD CONSTRAINT refused {refused}")
    be_silent(process_id)
    try:
        assert rescue_process(process_id, SILENCE, using="default") == RescueCounts(processes=1, queued=3)
    finally:
        change("ALTER TABLE salon_jobs_job DROP CONSTRAINT refused")
    assert states() == ["queued", "running", "cancelled", "queued", "queued"]
    [fields] = event_fields(caplog, "job_not_rescued")
    named = {"task_name": "test-keyed", "job_id": handles[1].id, "store_id": stores[0], "attempt": 1}
    assert named.items() <= fields.items()


@pytest.mark.parametrize(
    ("verb", "state"),
    [
        ("fail", "failed"),
        ("cancel", "cancelled"),
        ("expire", "cancelled"),
        ("rescue", "failed"),
        ("finish", "succeeded"),
    ],
)
def test_counts_that_can_grow_no_further_end_a_job_like_any_other(
    process_id: int, settings: Any, verb: str, state: str
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": None}
    tasks.system.using(max_attempts=32767).enqueue()
    change("UPDATE salon_jobs_job SET attempts = 32767, rescues = 32767")
    [job] = claim(process_id)
    ENDS[verb](job, process_id)
    assert seen("SELECT state, attempts, rescues FROM salon_jobs_job") == [(state, 32767, 32767)]


def test_the_row_decides_an_unclear_end(stores: list[UUID], process_id: int, settings: Any) -> None:
    tasks.in_store.enqueue(store_id=stores[0])
    [job] = claim(process_id)
    assert not leases_of(process_id).committed(job)
    assert finish(job, process_id)
    assert leases_of(process_id).committed(job)
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": None}
    tasks.in_store.enqueue(store_id=stores[0])
    [job] = claim(process_id)
    assert finish(job, process_id)
    assert leases_of(process_id).committed(job)
    assert not leases_of(process_id).committed(job._replace(lease=job.lease - 1))


def test_a_process_declared_dead_claims_no_success_that_another_run_had(stores: list[UUID], process_id: int) -> None:
    tasks.in_store.enqueue(store_id=stores[0])
    [job] = claim(process_id)
    be_silent(process_id)
    assert rescue_process(process_id, SILENCE, using="default") == RescueCounts(processes=1, queued=1)
    other = another_process()
    [again] = claim(other)
    assert finish(again, other)
    assert leases_of(other).committed(again)
    assert not leases_of(process_id).committed(job)


@pytest.mark.parametrize("room", [1, 100, None])
def test_a_claim_alone_does_not_wait_for_the_disk(process_id: int, *, room: int | None) -> None:
    tasks.system.enqueue()
    with connections["default"].cursor() as cursor:
        with transaction.atomic():
            if room is None:
                page = list_groups(None, ClaimFilter(tasks=["test-system"]), using="default")
                shares = share_out([group for group in page.groups if group.due], 1, {}, lambda _: ())
                assert claim_groups(leases_of(process_id), shares, 1, {})
            else:
                assert claim(process_id, room)
            cursor.execute("SHOW synchronous_commit")
            assert cursor.fetchone() == ("off",)
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == ("on",)
