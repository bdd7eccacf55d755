"""Misuses the public API; both checkers, strict, must flag exactly the lines marked E. Never imported."""

from __future__ import annotations

from datetime import date, timedelta
from uuid import UUID, uuid4

from salon_jobs import (
    FanOut,
    Snooze,
    carry_store,
    cron,
    current_job,
    enqueue_job,
    fan_out,
    fan_out_progress,
    store_task,
    task,
    tenant_context,
)


@task(name="typing-system")
def system(reason: str = "cron") -> int:
    """Return a number."""
    return len(reason)


@store_task(name="typing-store")
def of_store(store_id: UUID, day: date) -> None:
    """Do nothing."""


@store_task(name="typing-async", atomic=False)
async def in_coroutine(store_id: UUID) -> int:
    """Return a number, once awaited."""
    return 1


STORE = uuid4()
TODAY = date(2026, 5, 5)
of_store.enqueue(day=TODAY)  # E
of_store.enqueue(store_id=STORE)  # E
of_store.enqueue(store_id="not a uuid", day=TODAY)  # E
of_store.enqueue(store_id=STORE, day="2026-05-05")  # E
of_store.enqueue(store_id=STORE, day=TODAY, extra=1)  # E
of_store.using(priority=1).enqueue(day=TODAY)  # E
of_store.using(prioritty=1)  # E
of_store.using(priority="high")  # E
of_store.using(job_key_mode="replase")  # E
of_store.using(run_at=TODAY)  # E
of_store.using(concurrency_key=1)  # E
of_store.call(store_id=STORE)  # E
of_store.call(day=TODAY)  # E
of_store.enqueue_many(of_store.call(STORE, TODAY))  # E
of_store.using(priority=1).enqueue_many([system.call()])  # E
of_store.enqueue_many([system.call()])  # E
of_store.enqueue_many([{"store_id": STORE, "day": TODAY}])  # E
of_store()  # E
system.enqueue(reason=1)  # E
in_coroutine.enqueue(store_id=1)  # E
in_coroutine(STORE) + 1  # E
enqueue_job(system, {})  # E
enqueue_job("typing-system", [])  # E
enqueue_job("typing-system", {}, prioritty=1)  # E
enqueue_job("typing-system", {}, run_at="soon")  # E
cron("0 18 * * *", print)  # E
cron("0 18 * * *", system, backfill=60)  # E
fan_out("typing-store", day=TODAY)  # E
fan_out(of_store, {"jitter": 5}, day=TODAY)  # E
FanOut(timedelta(minutes=5))  # E
FanOut(jitter=5)  # E
FanOut(exclude=["not a uuid"])  # E
fan_out_progress("1")  # E
tenant_context(5)  # E
tenant_context(uuid4(), scope="request")  # E
carry_store(current_job)(7)  # E
Snooze(5)  # E
current_job().id.hex()  # E
system.enqueue() + 1  # E


@task  # E
def without_a_name() -> None:
    """Do nothing."""


@store_task(name="typing-mode", job_key_mode="always")  # E
def with_wrong_mode(store_id: UUID) -> None:
    """Do nothing."""


@task(name="typing-limit", max_concurrency="4")  # E
def with_wrong_limit() -> None:
    """Do nothing."""


@task(name="typing-key", key_concurency=4)  # E
def with_misspelt_limit() -> None:
    """Do nothing."""
