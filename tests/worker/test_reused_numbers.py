"""Shows that a run never ends another job that got its number, as happens when a promotion loses transactions."""

from __future__ import annotations

from uuid import UUID

from salon_jobs.core.records import ClaimedJob
from tests import tasks
from tests.support import change, claim, finish_many, leases_of, seen


def lose(*jobs: ClaimedJob) -> None:
    """Take back the transactions that added these jobs and all later ones, as a server that never received them."""
    change("DELETE FROM salon_jobs_job WHERE id = ANY (%s)", [job.id for job in jobs])
    change("SELECT setval(pg_get_serial_sequence('salon_jobs_job', 'id'), %s, false)", min(job.id for job in jobs))


def test_a_batch_of_several_claims_ends_only_its_own_runs(process_id: int) -> None:
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
