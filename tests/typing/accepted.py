"""Uses the public API as it is meant; both checkers, strict, must accept every line. Never imported."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import assert_type
from uuid import UUID, uuid4

from salon_jobs import (
    Discard,
    EnqueueResult,
    FanOut,
    FanOutProgress,
    FanOutResult,
    JobHandle,
    Snooze,
    carry_store,
    cron,
    current_job,
    current_store_id,
    enqueue_job,
    fan_out,
    fan_out_progress,
    store_task,
    task,
    tenant_context,
)
from salon_jobs.testing import perform_job


@task(name="typing-system", max_attempts=3)
def system(reason: str = "cron") -> int:
    """Return a number."""
    return len(reason)


@store_task(name="typing-store", job_key="k:{store_id}:{day}", job_key_mode="preserve_run_at")
def of_store(store_id: UUID, day: date, note: str | None = None) -> None:
    """Use what a handler may use."""
    job = current_job()
    assert_type(job.store_id, UUID | None)
    assert_type(job.attempt, int)
    if note == "later":
        raise Snooze(timedelta(minutes=5))
    raise Discard(f"{store_id} {day}")


@store_task(name="typing-limits", max_concurrency=8, concurrency_key="{store_id}", key_concurrency=2)
def limited(store_id: UUID) -> None:
    """Do nothing."""


@store_task(name="typing-async", atomic=False)
async def in_coroutine(store_id: UUID, day: date) -> int:
    """Return a number, once awaited."""
    return day.year


async def await_it() -> None:
    """Await the task as the function it is."""
    assert_type(await in_coroutine(STORE, TODAY), int)


STORE = uuid4()
TODAY = date(2026, 5, 5)
handle = of_store.enqueue(store_id=STORE, day=TODAY)
assert_type(handle, JobHandle)
assert_type(handle.result, EnqueueResult)
assert_type(handle.id, int)
of_store.enqueue(STORE, TODAY, note="x")
of_store.using(run_at=datetime.now(UTC), priority=-5, queue="mail", job_key="mine").enqueue(store_id=STORE, day=TODAY)
assert_type(
    of_store.enqueue_many(of_store.call(store_id=STORE, day=TODAY) for _ in range(3)),
    list[JobHandle],
)
of_store.using(job_key_mode="unsafe_dedupe").enqueue_many([of_store.call(STORE, TODAY)])
limited.using(concurrency_key="mine").enqueue(store_id=STORE)
system.enqueue()
in_coroutine.enqueue(store_id=STORE, day=TODAY)
assert_type(fan_out(in_coroutine, day=TODAY), FanOutResult)
assert_type(perform_job(in_coroutine, store_id=STORE, day=TODAY), int)
assert_type(perform_job(system, reason="test"), int)
assert_type(system("called as the function it is"), int)
assert_type(enqueue_job("typing-system", {"reason": "cron"}, priority=1), JobHandle)
assert_type(fan_out(of_store, day=TODAY), FanOutResult)
fanned = fan_out(of_store.using(priority=5), FanOut(jitter=timedelta(minutes=5), exclude=[STORE], label="a"), day=TODAY)
assert_type(fan_out_progress(fanned.id), FanOutProgress)
cron("0 18 * * *", system, payload=lambda tick: {"reason": tick.isoformat()}, timezone="Asia/Tokyo")
cron("5 * * * *", system, payload={"reason": "cron"}, backfill=timedelta(hours=6), name="hourly")
with tenant_context(STORE):
    assert_type(current_store_id(), UUID | None)
with tenant_context(str(STORE), atomic=False):
    pass


def divided(number: int, *, by: int) -> int:
    """Return a number."""
    return number // by


async def later(number: int) -> int:
    """Return a number, once awaited."""
    return number


async def in_a_coroutine() -> int:
    """Open a context, and carry a coroutine function."""
    async with tenant_context(STORE):
        return await carry_store(later, atomic=False)(1)


with tenant_context(STORE, scope="session", atomic=False), tenant_context(STORE, switch=True, using="default"):
    assert_type(carry_store(divided)(7, by=2), int)
