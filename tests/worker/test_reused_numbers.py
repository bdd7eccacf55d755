"""Shows that a run never ends another job that got its number, as happens when a promotion loses transactions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from salon_jobs.core.error_report import report
from salon_jobs.core.errors import Expired, LeaseLost
from salon_jobs.core.outcomes import Lost, Succeeded
from salon_jobs.core.records import ClaimedJob, KeptResult
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.ends import settle
from tests import tasks
from tests.support import change, chunk_of, claim, job_row, leases_of, run, running_job, seen
from tests.tasks import Hooks

ZERO = timedelta(0)
RESULT = KeptResult('"done"', timedelta(hours=1), ran_s=0)


def lose(*jobs: ClaimedJob) -> None:
    """Take back the transactions that added these jobs and all later ones, as a server that never received them."""
    change("DELETE FROM salon_jobs_job WHERE id = ANY (%s)", [job.id for job in jobs])
    change("SELECT setval(pg_get_serial_sequence('salon_jobs_job', 'id'), %s, false)", min(job.id for job in jobs))


def reused(process_id: int, add: Callable[[], object]) -> tuple[ClaimedJob, ClaimedJob]:
    """Return a job whose row was lost while it runs, and one that got its number and is claimed by the same process."""
    add()
    [old] = claim(process_id)
    lose(old)
    add()
    [new] = claim(process_id)
    assert old.id == new.id
    return old, new


ENDS: dict[str, Callable[[ClaimedJob, int], object]] = {
    "finish": lambda job, process_id: leases_of(process_id).finish(job),
    "finish with a result": lambda job, process_id: leases_of(process_id).finish(job, RESULT),
    "finish many": lambda job, process_id: leases_of(process_id).finish_many([job]),
    "results": lambda job, process_id: leases_of(process_id).finish_many([job], results=[RESULT]),
    "owned": lambda job, process_id: leases_of(process_id).owned([job]),
    "fail": lambda job, process_id: leases_of(process_id).fail(
        job, report(ValueError()), delay=ZERO, final=True, reason="spent"
    ),
    "failed by": lambda job, process_id: leases_of(process_id).failed_by(job),
    "release": lambda job, process_id: leases_of(process_id).requeue([(job.id, job.lease)]),
    "snooze": lambda job, process_id: leases_of(process_id).requeue([(job.id, job.lease)], delay=ZERO),
    "cancel": lambda job, process_id: leases_of(process_id).cancel_run(job, "cancelled"),
    "expire": lambda job, process_id: leases_of(process_id).expire_run(job, report(Expired()), "expired"),
    "killed": lambda job, process_id: leases_of(process_id).leased_job(job.id, job.lease),
}


@pytest.mark.parametrize("keep", [None, 60])
@pytest.mark.parametrize("end", ENDS)
def test_an_end_of_the_lost_job_leaves_the_new_one(process_id: int, settings: Any, end: str, keep: int | None) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": keep or 0}
    old, new = reused(process_id, tasks.system.enqueue)
    before = job_row(new.id)
    assert not ENDS[end](old, process_id)
    assert job_row(new.id) == before
    assert seen("SELECT count(*) FROM salon_jobs_job_error") == [(0,)]
    assert leases_of(process_id).finish(new)


def test_a_batch_of_several_claims_ends_only_its_own_runs(process_id: int) -> None:
    """The lost run and others of the claim that holds the new row end at once: no lease of theirs fits its number."""
    tasks.system.enqueue()
    [old] = claim(process_id)
    lose(old)
    for _ in range(3):
        tasks.system.enqueue()
    new, *others = claim(process_id)
    assert (old.id, others[0].lease) == (new.id, new.lease)
    assert leases_of(process_id).finish_many([old, *others]) == {job.fence for job in others}
    assert seen("SELECT id, state FROM salon_jobs_job") == [(new.id, "running")]
    assert leases_of(process_id).finish_many([old, new]) == {new.fence}


def test_a_claim_whose_answer_was_lost_is_found_beside_the_old_run(process_id: int) -> None:
    old, new = reused(process_id, tasks.system.enqueue)
    assert leases_of(process_id).other_leases([(old.id, old.lease)]) == [(new.id, new.lease)]
    assert leases_of(process_id).other_leases([(new.id, new.lease)]) == []


def test_the_buffer_keeps_both_apart(process_id: int) -> None:
    old, new = reused(process_id, tasks.system.enqueue)
    buffer = JobBuffer(2)
    buffer.put([old])
    buffer.put([new])
    buffer.forget([new])
    assert buffer.leases() == [(old.id, old.lease)]
    assert not buffer.wait_idle(0)


def test_the_handler_of_the_lost_job_is_rolled_back(stores: list[UUID], process_id: int, hooks: Hooks) -> None:
    old, new = reused(process_id, lambda: tasks.in_store.enqueue(store_id=stores[0]))
    assert run(old, process_id) == Lost()
    assert job_row(new.id)["state"] == "running"  # type: ignore[index]
    assert run(new, process_id) == Succeeded(finished=True)


def test_the_chunk_of_lost_jobs_is_rolled_back(stores: list[UUID], process_id: int, hooks: Hooks) -> None:
    def add() -> list[ClaimedJob]:
        for number in range(2):
            tasks.in_chunks.enqueue(stores[0], tasks.Sale(number))
        return claim(process_id)

    old = add()
    lose(*old)
    new = add()
    assert [job.id for job in new] == [job.id for job in old]
    chunk = chunk_of(old, process_id)
    settle(chunk, chunk.execute())
    assert seen("SELECT id, state, lease FROM salon_jobs_job ORDER BY id") == [
        (job.id, "running", job.lease) for job in new
    ]


def test_a_finish_within_the_handler_raises(stores: list[UUID], process_id: int) -> None:
    old, new = reused(process_id, tasks.system.enqueue)
    with pytest.raises(LeaseLost):
        running_job(old, process_id).finish()
    assert leases_of(process_id).finish(new)


def test_the_mark_of_a_superseded_run_is_not_the_new_jobs(stores: list[UUID], process_id: int) -> None:
    tasks.keyed.enqueue(store_id=stores[0], number=1)
    [old] = claim(process_id)
    tasks.keyed.enqueue(store_id=stores[0], number=1)
    assert seen("SELECT job_id, lease FROM salon_jobs_superseded") == [(old.id, old.lease)]
    change("DELETE FROM salon_jobs_job")
    lose(old)
    tasks.keyed.enqueue(store_id=stores[0], number=1)
    [new] = claim(process_id)
    assert new.id == old.id
    assert leases_of(process_id).requeue([(new.id, new.lease)])[new.id].state == "queued"
