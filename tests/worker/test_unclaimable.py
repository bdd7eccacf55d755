"""A row for which a claim fails stops no other: real triggers and constraints refuse it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from uuid import UUID

import pytest
from django.db import Error

from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs import control, leases, registry
from salon_jobs.jobs.leases import ClaimFailed, Leases
from salon_jobs.jobs.limits import limit, load_limits
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.chunk_claim import ChunkClaimer
from salon_jobs.worker.claim import Claimer
from tests import tasks
from tests.inside import left_out
from tests.support import change, seen
from tests.worker.work import Work

pytestmark = pytest.mark.usefixtures("limits_and_groups_at_once")
_FUNCTION = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state = 'running' AND NEW.payload ->> 'number' = '-1' THEN RAISE EXCEPTION 'not this one'; END IF;
    RETURN NEW;
END $$
"""
REFUSALS = {
    "trigger": "CREATE TRIGGER refusing BEFORE UPDATE ON salon_jobs_job FOR EACH ROW EXECUTE FUNCTION refuse()",
    "deferred": "CREATE CONSTRAINT TRIGGER refusing AFTER UPDATE ON salon_jobs_job DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION refuse()",
    "constraint": "ALTER TABLE salon_jobs_job ADD CONSTRAINT refusing"
    " CHECK (state <> 'running' OR payload ->> 'number' <> '-1')",
}


@pytest.fixture
def refusing(request: pytest.FixtureRequest, database: None) -> Iterator[Callable[[], None]]:
    """Have the database refuse to claim jobs with the number -1; yield what mends that."""

    def mend() -> None:
        change("DROP FUNCTION IF EXISTS refuse() CASCADE")
        change("ALTER TABLE salon_jobs_job DROP CONSTRAINT IF EXISTS refusing")

    change(_FUNCTION)
    change(REFUSALS[getattr(request, "param", "trigger")])
    yield mend
    mend()


@pytest.fixture
def own(work: Work) -> Leases:
    return work.leases


def few(own: Leases, room: int = 10) -> list[ClaimedJob]:
    return own.claim_due(registry.task_names(), room)


def prepared(own: Leases) -> list[ClaimedJob]:
    own.is_direct = lambda: True
    return few(own)


def by_group(own: Leases) -> list[ClaimedJob]:
    claimer = Claimer(own, None)
    claimer.refresh_limits()
    return claimer.claim_fairly(10).jobs


def within_limits(own: Leases) -> list[ClaimedJob]:
    limit(task="test-chunk", max_concurrency=10, rate="1/h", burst=100)
    jobs = by_group(own)
    spent = seen("SELECT extract(epoch FROM full_at - clock_timestamp()) FROM salon_jobs_rate")
    assert [0 < spent_s <= 3600 * len(jobs) for (spent_s,) in spent] == [True] * bool(jobs)
    return jobs


def of_a_worker(own: Leases) -> list[ClaimedJob]:
    return Claimer(own, None).claim(100).jobs


def for_a_chunk(own: Leases) -> list[ClaimedJob]:
    [first] = few(own, 1)
    return [first, *ChunkClaimer(own, JobBuffer(1), partial(load_limits, using="default")).claim(first, 10)]


CLAIMS = (few, prepared, by_group, within_limits, of_a_worker, for_a_chunk)
CASES = [("trigger", claim_some) for claim_some in CLAIMS] + [("deferred", few), ("constraint", few)]


def add(store: UUID, *numbers: int) -> list[int]:
    return [tasks.in_chunks.enqueue(store, tasks.Sale(number)).id for number in numbers]


@pytest.mark.parametrize(("refusing", "claim_some"), CASES, indirect=["refusing"])
def test_refused_row_is_left_out(
    work: Work, own: Leases, refusing: Callable[[], None], claim_some: Callable[[Leases], list[ClaimedJob]]
) -> None:
    """The others are claimed, and the row is named once."""
    first, refused, *others = add(work.stores[0], 0, -1, 1, 2)
    assert sorted(job.id for job in claim_some(own)) == [first, *others]
    [fields] = work.fields("job_not_claimed")
    assert fields.pop("error") in ("not this one", _VIOLATED)
    assert fields == {"task_name": "test-chunk", "job_id": refused, "store_id": work.stores[0], "attempt": 1}
    assert seen("SELECT id FROM salon_jobs_job WHERE state = 'queued'") == [(refused,)]
    assert few(own) == []

    left_out(own)[refused] = 0.0  # a minute later
    assert few(own) == []
    assert len(work.fields("job_not_claimed")) == 1
    refusing()
    left_out(own)[refused] = 0.0
    assert [job.id for job in few(own)] == [refused]


_VIOLATED = 'new row for relation "salon_jobs_job" violates check constraint "refusing"'


@pytest.mark.usefixtures("refusing")
def test_operator_cancels_refused_row(work: Work, own: Leases) -> None:
    [refused] = add(work.stores[0], -1)
    assert few(own) == []
    assert control.cancel_jobs(refused, using="operator")[0].changed


@pytest.mark.usefixtures("refusing")
def test_many_refused_rows(work: Work, own: Leases) -> None:
    *_, good = add(work.stores[0], -1, -1, -1, -1, -1, 0)
    claimed: list[ClaimedJob] = []
    for _ in range(3):
        with suppress(ClaimFailed):
            claimed += few(own, 2)
    assert [job.id for job in claimed] == [good]
    assert len(work.fields("job_not_claimed")) == 5


@pytest.mark.usefixtures("refusing")
def test_left_out_rows_are_bounded(work: Work, own: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_MOST_LEFT_OUT", 2)
    ids = add(work.stores[0], -1, -1, -1)
    with suppress(ClaimFailed):
        few(own)
    assert len(left_out(own)) == 2
    assert set(left_out(own)) < set(ids)


def test_error_of_no_row_is_raised(own: Leases) -> None:
    tasks.system.enqueue()
    with pytest.raises(Error, match="invalid input syntax for type timestamp"):
        own.claim_due(registry.task_names(), 1, now="yesteryear")  # type: ignore[arg-type]
    assert len(few(own)) == 1
