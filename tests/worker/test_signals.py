"""Shows when the signals of a job's life are sent, and that a receiver can harm nobody."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from salon_jobs import Discard, Snooze
from salon_jobs.core.outcomes import Succeeded
from salon_jobs.core.records import JobState
from salon_jobs.jobs.current import running
from salon_jobs.signals import job_enqueued, job_finished, job_started
from tests import tasks
from tests.support import change, job_row, run_due, run_on_threads, seen
from tests.tasks import Hooks

Heard = list[tuple[Any, ...]]


@pytest.fixture
def heard() -> Iterator[Heard]:
    """Record what is sent."""
    sent: Heard = []

    def enqueued(sender: Any, handles: Any, **_: Any) -> None:
        sent.append(("enqueued", sender, [handle.id for handle in handles]))

    def started(sender: Any, job: Any, **_: Any) -> None:
        sent.append(("started", sender, job.id, running.get() is job, connection.in_atomic_block))

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


def test_a_success_is_told_after_its_commit(process_id: int, stores: list[UUID], heard: Heard) -> None:
    system = tasks.system.enqueue()
    store = tasks.in_store.enqueue(store_id=stores[0])
    assert heard == [("enqueued", tasks.system, [system.id]), ("enqueued", tasks.in_store, [store.id])]
    heard.clear()
    run_on_threads(process_id)
    assert sorted(heard, key=str) == sorted(
        [
            ("started", tasks.system, system.id, True, False),
            ("started", tasks.in_store, store.id, True, False),
            ("finished", tasks.system, system.id, JobState.SUCCEEDED, None, None),
            ("finished", tasks.in_store, store.id, JobState.SUCCEEDED, None, None),
        ],
        key=str,
    )
    for job in (system, store):
        assert [entry[0] for entry in heard if entry[2] == job.id] == ["started", "finished"]


@pytest.mark.parametrize(
    ("raised", "state"),
    [
        (ZeroDivisionError(), JobState.QUEUED),
        (Snooze(timedelta(hours=1)), JobState.QUEUED),
        (Discard("gone"), JobState.CANCELLED),
    ],
    ids=["retry", "snooze", "discard"],
)
def test_every_other_end_is_told_with_the_state_and_the_error(
    process_id: int, hooks: Hooks, heard: Heard, raised: Exception, state: JobState
) -> None:
    def body(**_: object) -> None:
        raise raised

    hooks.system = body
    job = tasks.system.enqueue()
    run_due(process_id)
    error = raised if isinstance(raised, ZeroDivisionError) else None
    assert heard[-1] == ("finished", tasks.system, job.id, state, state.value, error)


def test_a_final_failure_and_a_job_that_never_began(process_id: int, hooks: Hooks, heard: Heard) -> None:
    def body(**_: object) -> None:
        raise SystemExit(3)

    hooks.system = body
    last = tasks.system.using(max_attempts=1).enqueue()
    expired = tasks.keyed_system.enqueue(note="x")
    change("UPDATE salon_jobs_job SET expires_at = now() - interval '1 s' WHERE id = %s", expired.id)
    heard.clear()
    run_due(process_id)
    kinds = [(entry[0], entry[2], entry[3]) for entry in heard]
    assert kinds == [
        ("started", last.id, True),
        ("finished", last.id, JobState.FAILED),
        ("finished", expired.id, JobState.CANCELLED),
    ]
    assert isinstance(heard[1][5], SystemExit)


def test_each_job_of_a_chunk_has_its_signals(process_id: int, stores: list[UUID], hooks: Hooks, heard: Heard) -> None:
    calls = [tasks.in_chunks.call(stores[0], tasks.Sale(number)) for number in range(2)]
    a, b = (handle.id for handle in tasks.in_chunks.enqueue_many(calls))

    def split(**_: object) -> None:
        hooks.reset()
        raise ValueError

    hooks.store = split
    for state in (JobState.QUEUED, JobState.SUCCEEDED):
        heard.clear()
        change("UPDATE salon_jobs_job SET alone = false")
        run_on_threads(process_id)
        started = [(entry[0], entry[2]) for entry in heard[:2]]
        finished = [(entry[0], entry[2], entry[3]) for entry in heard[2:]]
        assert started == [("started", a), ("started", b)]
        assert finished == [("finished", a, state), ("finished", b, state)]


def test_many_jobs_are_one_signal_sent_in_the_callers_transaction(stores: list[UUID], heard: Heard) -> None:
    with transaction.atomic():
        handles = tasks.in_store.enqueue_many(tasks.in_store.call(store_id=store) for store in stores)
        assert heard == [("enqueued", tasks.in_store, [handle.id for handle in handles])]
        assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
    assert tasks.in_store.enqueue_many([]) == []
    assert len(heard) == 1


def test_a_receiver_that_raises_changes_nothing(process_id: int, caplog: pytest.LogCaptureFixture) -> None:
    def explode(**_: object) -> None:
        raise ValueError("a receiver")

    signals = (job_enqueued, job_started, job_finished)
    for signal in signals:
        signal.connect(explode)
    try:
        job = tasks.system.enqueue()
        [outcome] = run_due(process_id)
    finally:
        for signal in signals:
            signal.disconnect(explode)
    assert isinstance(outcome, Succeeded)
    assert job_row(job.id) is None
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("a receiver",)] * 3  # type: ignore[union-attr]
