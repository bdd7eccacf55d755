"""A row answers only to the run that holds its lease, shown with connections of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import connections, transaction

from salon_jobs import fan_out
from salon_jobs.core.records import ClaimedJob
from salon_jobs.db import statements
from salon_jobs.jobs import registry
from salon_jobs.models import Process
from salon_jobs.worker.claim import claim_groups
from salon_jobs.worker.group_scanner import ClaimFilter, ScanRange, list_groups
from salon_jobs.worker.maintenance import RescueCounts, rescue_process
from salon_jobs.worker.quotas import plan
from tests import tasks
from tests.support import (
    another_process,
    be_silent,
    behind_transaction,
    change,
    claim,
    elsewhere,
    finish,
    finish_many,
    job_row,
    leases_of,
    moved_to,
    row_of,
    seen,
    wait_until_waiting,
)
from tests.waiting import LIMIT_S
from tests.worker.ends import ENDS, FENCED, RETURNS
from tests.worker.work import Work, errors, states

SUPERSEDED = ("cancelled", "superseded")


def rescued(process_id: int) -> RescueCounts:
    return rescue_process(process_id, timedelta(seconds=15), using="default")


@pytest.mark.parametrize("keep", [0, 60], ids=["deleted", "kept"])
@pytest.mark.parametrize("wrong", ["lease", "process", "state"])
def test_end_without_lease_changes_nothing(process_id: int, settings: Any, wrong: str, keep: int) -> None:
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
    assert errors() == []


# Claims


def test_concurrent_claimers_share_no_job(stores: list[UUID], process_id: int) -> None:
    tasks.in_store.enqueue_many(tasks.in_store.call(store_id=stores[n % 3], number=n) for n in range(120))
    processes = [another_process() for _ in range(4)]
    start = threading.Barrier(4)

    def work(process: int) -> list[int]:
        start.wait(LIMIT_S)
        mine: list[int] = []
        while jobs := leases_of(process).claim_due(registry.task_names(), 7):
            assert len(jobs) <= 7
            mine += [job.id for job in jobs]
        return mine

    with ThreadPoolExecutor(4) as pool:
        futures = [elsewhere(pool, partial(work, process)) for process in processes]
        claimed = [future.result(LIMIT_S) for future in futures]
    everything = [job_id for mine in claimed for job_id in mine]
    assert len(everything) == len(set(everything)) == 120
    for process, mine in zip(processes, claimed, strict=True):
        assert {row[0] for row in seen("SELECT id FROM salon_jobs_job WHERE leased_by = %s", process)} == set(mine)


def test_claim_skips_locked_row(work: Work) -> None:
    first, second = work.add(), work.add()
    with transaction.atomic(using="owner"):
        change("SELECT 1 FROM salon_jobs_job WHERE id = %s FOR UPDATE", first)
        assert [job.id for job in work.claim()] == [second]


def test_order_of_claims(work: Work) -> None:
    """They follow priority, then run_at, within the queues that are asked for."""
    given: tuple[dict[str, Any], ...] = ({}, {"priority": -5}, {}, {"queue": "mail"})
    late, urgent, early, mail = (work.add(None, tasks.in_store.using(**options)) for options in given)
    change("UPDATE salon_jobs_job SET run_at = now() - interval '1 min' WHERE id = %s", early)
    work.add(None, tasks.in_store.using(run_in=timedelta(hours=1)))
    names = registry.task_names()
    one_by_one = [work.leases.claim_due(names, 1, queues=["default"]) for _ in range(4)]
    assert [[job.id for job in jobs] for jobs in one_by_one] == [[urgent], [early], [late], []]
    assert work.leases.claim_due(["test-system"], 9) == []
    assert [job.id for job in work.leases.claim_due(names, 9)] == [mail]


@pytest.mark.parametrize("room", [1, 100, None])
def test_claim_does_not_wait_for_disk(process_id: int, *, room: int | None) -> None:
    tasks.system.enqueue()
    with connections["default"].cursor() as cursor:
        with transaction.atomic():
            if room is None:
                page = list_groups(ScanRange(None), ClaimFilter(tasks=["test-system"]), using="default")
                shares = plan([group for group in page.groups if group.due], 1, {}, lambda _: ())
                assert claim_groups(leases_of(process_id), shares, 1, {})
            else:
                assert claim(process_id, room)
            cursor.execute("SHOW synchronous_commit")
            assert cursor.fetchone() == ("off",)
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == ("on",)


# Rescues


def test_rescue_waits_for_claim_in_flight(work: Work) -> None:
    """It includes the jobs of that claim."""
    job_id = work.add()
    be_silent(work.process_id)
    with behind_transaction(lambda: rescued(work.process_id)) as rescue:
        work.claim()
    assert rescue.result() == RescueCounts(processes=1, queued=1)
    row = row_of(job_id)
    found = [row[name] for name in ("state", "attempts", "rescues", "leased_by", "lease")]
    assert found == ["queued", 0, 1, None, 0]


def test_claim_behind_rescue_gets_nothing(work: Work) -> None:
    work.add()
    be_silent(work.process_id)
    with behind_transaction(work.claim) as late:
        rescued(work.process_id)
    assert late.result() == []
    assert states() == ["queued"]


def test_beat_wins_against_waiting_rescue(work: Work) -> None:
    work.claim_one()
    be_silent(work.process_id)
    with behind_transaction(lambda: rescued(work.process_id)) as rescue:
        Process.objects.filter(pk=work.process_id).update(heartbeat_at=seen("SELECT clock_timestamp()")[0][0])
    assert rescue.result() == RescueCounts()
    assert states() == ["running"]


def test_two_rescues_count_once(work: Work) -> None:
    work.claim_one()
    be_silent(work.process_id)
    with behind_transaction(lambda: rescued(work.process_id)) as second:
        assert rescued(work.process_id) == RescueCounts(processes=1, queued=1)
    assert second.result() in (RescueCounts(), RescueCounts(processes=1))
    assert seen("SELECT state, rescues FROM salon_jobs_job") == [("queued", 1)]


@pytest.mark.parametrize("verb", ["rescue", "release", "fail"])
def test_twin_committing_meanwhile(work: Work, verb: str) -> None:
    """It supersedes one job, and holds up none."""
    for number in range(3):
        work.add(None, tasks.keyed, number=number)
    jobs = work.claim()
    if verb == "rescue":
        change("DELETE FROM salon_jobs_process")
    with behind_transaction(lambda: [RETURNS[verb](job, work.process_id) for job in jobs]):
        work.add(None, tasks.keyed, number=1)
    assert states() == ["queued", "cancelled", "queued", "queued"]
    assert seen("SELECT reason FROM salon_jobs_job WHERE state = 'cancelled'") == [("superseded",)]


def test_rescue_despite_unchangeable_row(work: Work) -> None:
    ids = [work.add(None, tasks.keyed, number=number) for number in range(4)]
    work.claim()
    work.add(None, tasks.keyed, number=2)
    refused = f"CHECK (id <> {ids[1]} OR state = 'running')"
    change(f"ALTER TABLE salon_jobs_job ADD CONSTRAINT refused {refused}")
    be_silent(work.process_id)
    try:
        assert rescued(work.process_id) == RescueCounts(processes=1, queued=3)
    finally:
        change("ALTER TABLE salon_jobs_job DROP CONSTRAINT refused")
    assert states() == ["queued", "running", "cancelled", "queued", "queued"]
    [fields] = work.fields("job_not_rescued")
    named = {"task_name": "test-keyed", "job_id": ids[1], "store_id": work.stores[0], "attempt": 1}
    assert named.items() <= fields.items()


# Ends


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
def test_end_at_highest_counts(process_id: int, settings: Any, verb: str, state: str) -> None:
    """Counts that can grow no further end a job like any other."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": None}
    tasks.system.using(max_attempts=32767).enqueue()
    change("UPDATE salon_jobs_job SET attempts = 32767, rescues = 32767")
    [job] = claim(process_id)
    ENDS[verb](job, process_id)
    assert seen("SELECT state, attempts, rescues FROM salon_jobs_job") == [(state, 32767, 32767)]


@pytest.mark.parametrize("keep", [0, None], ids=["deleted", "kept"])
def test_row_decides_unclear_end(work: Work, settings: Any, keep: int | None) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": keep}
    job = work.claim_one()
    assert not work.leases.committed(job)
    assert finish(job, work.process_id)
    assert work.leases.committed(job)
    if keep is None:
        assert not work.leases.committed(job._replace(lease=job.lease - 1))


def test_dead_process_claims_no_success(work: Work) -> None:
    """Another run had it."""
    job = work.claim_one()
    be_silent(work.process_id)
    assert rescued(work.process_id) == RescueCounts(processes=1, queued=1)
    other = another_process()
    [again] = claim(other)
    assert finish(again, other)
    assert leases_of(other).committed(again)
    assert not work.leases.committed(job)


# A run whose key a newer job took is not retried, whatever has become of the newer one


def ends() -> list[Any]:
    return seen("SELECT state, reason FROM salon_jobs_job ORDER BY id")


@pytest.mark.parametrize("way", ["store", "batch", "fan-out", "system"])
def test_superseded_run_is_not_retried(work: Work, way: str) -> None:
    """Its twin has finished. The twin came by any way into the table."""
    store_id = work.stores[0]
    change("DELETE FROM store WHERE id <> %s", store_id)
    ways: dict[str, Callable[[], object]] = {
        "store": lambda: work.add(None, tasks.keyed, number=7),
        "batch": lambda: tasks.keyed.enqueue_many(tasks.keyed.call(store_id=store_id, number=n) for n in (7, 8)),
        "fan-out": lambda: fan_out(tasks.keyed, number=7),
        "system": lambda: tasks.keyed_system.enqueue(note="7"),
    }
    ways[way]()
    older = work.claim()
    ways[way]()
    for newer in work.claim():
        assert finish(newer, work.process_id)
    for job in older:
        RETURNS["fail"](job, work.process_id)
    assert ends() == [SUPERSEDED] * len(older)


@pytest.mark.parametrize("verb", RETURNS)
def test_twin_gone_when_failure_wakes(work: Work, verb: str) -> None:
    """The twin was claimed and finished while the failure waited."""
    older = work.claim_one(None, tasks.keyed, number=1)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(), connections["default"].cursor() as cursor:
            twin = work.add(None, tasks.keyed, number=1)
            ended = elsewhere(pool, lambda: RETURNS[verb](older, work.process_id))
            wait_until_waiting()
            # What the failure will find when it wakes: no waiting twin any more.
            cursor.execute("DELETE FROM salon_jobs_job WHERE id = %s", [twin])
        ended.result(LIMIT_S)
    assert ends() == [SUPERSEDED]


def test_claim_during_enqueue_of_twin(work: Work) -> None:
    job_id = work.add(None, tasks.keyed, number=1)
    with behind_transaction(lambda: work.add(None, tasks.keyed, number=1)) as newer:
        [older] = work.claim()
    assert newer.result() != older.id == job_id
    change("DELETE FROM salon_jobs_job WHERE id = %s", newer.result())
    RETURNS["fail"](older, work.process_id)
    assert ends() == [SUPERSEDED]


def test_marks_end_with_their_runs(work: Work) -> None:
    for number in (1, 2):
        work.add(None, tasks.keyed, number=number)
    one, two = work.claim()
    for number in (1, 2):
        work.add(None, tasks.keyed, number=number)
    assert finish(one, work.process_id)
    statements.execute("forget_superseded", using="default")
    assert seen("SELECT job_id, lease FROM salon_jobs_superseded") == [(two.id, two.lease)]
    RETURNS["fail"](two, work.process_id)
    statements.execute("forget_superseded", using="default")
    assert seen("SELECT count(*) FROM salon_jobs_superseded") == [(0,)]


# A run never ends another job that got its number, as happens when a promotion loses transactions


def lose(*jobs: ClaimedJob) -> None:
    """Take back the transactions that added these jobs and all later ones, as a server that never received them."""
    change("DELETE FROM salon_jobs_job WHERE id = ANY (%s)", [job.id for job in jobs])
    change("SELECT setval(pg_get_serial_sequence('salon_jobs_job', 'id'), %s, false)", min(job.id for job in jobs))


def test_batch_ends_its_own_runs(process_id: int) -> None:
    """The lost run and others of the claim that holds the new row end at once: no lease of theirs fits its number."""
    tasks.system.enqueue()
    [old] = claim(process_id)
    lose(old)
    for _ in range(3):
        tasks.system.enqueue()
    new, *others = claim(process_id)
    assert (old.id, others[0].lease) == (new.id, new.lease)
    assert finish_many([old, *others], process_id) == {job.fence for job in others}
    assert seen("SELECT id, state FROM salon_jobs_job") == [(new.id, "running")]
    assert finish_many([old, new], process_id) == {new.fence}


def test_mark_is_not_of_new_job(work: Work) -> None:
    old = work.claim_one(None, tasks.keyed, number=1)
    work.add(None, tasks.keyed, number=1)
    assert seen("SELECT job_id, lease FROM salon_jobs_superseded") == [(old.id, old.lease)]
    change("DELETE FROM salon_jobs_job")
    lose(old)
    new = work.claim_one(None, tasks.keyed, number=1)
    assert new.id == old.id
    assert work.leases.requeue([(new.id, new.lease)])[new.id].state == "queued"
