"""When the signals of a job's life are sent; a receiver can harm nobody."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from salon_jobs import Discard, Snooze
from salon_jobs.core.outcomes import Succeeded
from salon_jobs.core.records import JobState
from salon_jobs.jobs.run import current_run
from salon_jobs.signals import job_enqueued, job_finished, job_started
from tests import tasks
from tests.support import change, connected, job_row, run_due, seen
from tests.tasks import raises
from tests.worker.work import Work

Heard = list[tuple[Any, ...]]


@pytest.fixture
def heard() -> Iterator[Heard]:
    """Record what is sent."""
    sent: Heard = []

    def enqueued(sender: Any, handles: Any, **_: Any) -> None:
        sent.append(("enqueued", sender, [handle.id for handle in handles]))

    def started(sender: Any, job: Any, **_: Any) -> None:
        sent.append(("started", sender, job.id, current_run.get() is job.run, connection.in_atomic_block))

    def finished(sender: Any, job: Any, state: JobState, error: BaseException | None, **_: Any) -> None:
        row = job_row(job.id)  # as others see it
        sent.append(("finished", sender, job.id, state, None if row is None else row["state"], error))

    signals = ((job_enqueued, enqueued), (job_started, started), (job_finished, finished))
    for signal, receiver in signals:
        signal.connect(receiver)
    yield sent
    for signal, receiver in signals:
        assert signal.disconnect(receiver)
        assert not signal.receivers, "nothing is done where nobody listens"


@pytest.mark.parametrize("declared", [tasks.system, tasks.in_store, tasks.outside, tasks.async_store])
def test_receiver_sets_context_of_handler(work: Work, declared: Any) -> None:
    """As for the field of each log line, such as structlog's."""
    bound: ContextVar[int] = ContextVar("bound", default=0)
    seen_by_handler: list[int] = []

    def bind(job: Any, **_: Any) -> None:
        bound.set(job.id)

    def look(**_: Any) -> None:
        seen_by_handler.append(bound.get())

    async def look_soon(**_: Any) -> None:
        look()

    with connected(job_started, bind):
        job_id = work.run_on_thread(look_soon if declared.is_async else look, declared)
    assert seen_by_handler == [job_id]
    assert bound.get() == 0


@pytest.mark.parametrize("declared", [tasks.system, tasks.in_store])
def test_success_is_told_after_commit(work: Work, heard: Heard, declared: Any) -> None:
    job_id = work.add(None, declared)
    work.run_on_thread()
    assert heard == [
        ("enqueued", declared, [job_id]),
        ("started", declared, job_id, True, False),
        ("finished", declared, job_id, JobState.SUCCEEDED, None, None),
    ]


@pytest.mark.parametrize(
    ("raised", "state"),
    [
        (ZeroDivisionError(), JobState.QUEUED),
        (Snooze(timedelta(hours=1)), JobState.QUEUED),
        (Discard("gone"), JobState.CANCELLED),
    ],
    ids=["retry", "snooze", "discard"],
)
def test_other_ends_are_told(work: Work, heard: Heard, raised: Exception, state: JobState) -> None:
    job_id = work.add(raises(raised), tasks.system)
    work.run_due()
    error = raised if isinstance(raised, ZeroDivisionError) else None
    assert heard[-1] == ("finished", tasks.system, job_id, state, state.value, error)


def test_final_failure_and_expired_job(work: Work, heard: Heard) -> None:
    """The latter has no start."""
    last = work.add(raises(SystemExit(3)), tasks.system.using(max_attempts=1))
    expired = work.add(None, tasks.keyed_system, note="x")
    change("UPDATE salon_jobs_job SET expires_at = now() - interval '1 s' WHERE id = %s", expired)
    heard.clear()
    work.run_due()
    kinds = [(entry[0], entry[2], entry[3]) for entry in heard]
    assert kinds == [
        ("started", last, True),
        ("finished", last, JobState.FAILED),
        ("finished", expired, JobState.CANCELLED),
    ]
    assert isinstance(heard[1][5], SystemExit)


def test_signals_of_chunk(work: Work, heard: Heard) -> None:
    calls = [tasks.in_chunks.call(work.stores[0], tasks.Sale(number)) for number in range(2)]
    a, b = (handle.id for handle in tasks.in_chunks.enqueue_many(calls))

    def split(**_: object) -> None:
        work.hooks.reset()
        raise ValueError

    work.hooks.store = split
    for state in (JobState.QUEUED, JobState.SUCCEEDED):
        heard.clear()
        change("UPDATE salon_jobs_job SET alone = false")
        work.run_on_thread()
        started = [(entry[0], entry[2]) for entry in heard[:2]]
        finished = [(entry[0], entry[2], entry[3]) for entry in heard[2:]]
        assert started == [("started", a), ("started", b)]
        assert finished == [("finished", a, state), ("finished", b, state)]


def test_many_jobs_are_one_signal(stores: list[UUID], heard: Heard) -> None:
    with transaction.atomic():
        handles = tasks.in_store.enqueue_many(tasks.in_store.call(store_id=store) for store in stores)
        assert heard == [("enqueued", tasks.in_store, [handle.id for handle in handles])]
        assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
    assert tasks.in_store.enqueue_many([]) == []
    assert len(heard) == 1


def test_failing_receiver_changes_nothing(process_id: int, caplog: pytest.LogCaptureFixture) -> None:
    explode = raises(ValueError("a receiver"))
    with connected(job_enqueued, explode), connected(job_started, explode), connected(job_finished, explode):
        job = tasks.system.enqueue()
        [outcome] = run_due(process_id)
    assert isinstance(outcome, Succeeded)
    assert job_row(job.id) is None
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("a receiver",)] * 3  # type: ignore[union-attr]
