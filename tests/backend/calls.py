"""Tasks of Django's framework that the tests enqueue. No worker imports this module at its start."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction

from project.salon.models import Customer
from salon_jobs import Backoff, Discard, current_job, current_store_id
from tests.backend.django_tasks_api import task

# What the tasks observed, for tests that run them in their own process.
seen: list[Any] = []
SOON = Backoff(base=timedelta(microseconds=1), cap=timedelta(microseconds=1), jitter=0)


@task
def add(left: int, right: int = 1) -> int:
    return left + right


@task()
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@task
def send_reset(user: int, token: str, *secrets: str, note: str = "") -> list[Any]:
    return [user, token, *secrets, note]


@task
def label(user: int, /, **labels: Any) -> list[Any]:
    return [user, labels]


@task(priority=7, queue_name="mail")
def mail(address: str) -> str:
    return address


@task(takes_context=True)
def describe(context: Any, note: str = "") -> dict[str, Any]:
    """Return what the context says, after keeping its result."""
    seen.append(context.task_result)
    return {"attempt": context.attempt, "id": context.task_result.id, "note": note}


@task
async def double(number: int) -> int:
    """Return twice the number, after a query on the database's thread."""
    await sync_to_async(lambda: seen.append(current_job().task))()
    return 2 * number


@task(takes_context=True)
async def describe_later(context: Any) -> int:
    return int(context.attempt)


@task
def fail(message: str = "no") -> None:
    raise ValueError(message)


@task
def leave(status: int = 3) -> None:
    sys.exit(status)


@task
def give_up() -> None:
    raise Discard("not worth it")


@task(takes_context=True)
def give_up_at_last(context: Any) -> None:
    if context.attempt == 1:
        raise ValueError("not yet")
    raise Discard("not worth it")


give_up_at_last = give_up_at_last.using(max_attempts=3, backoff=SOON)


@task
def fail_slowly() -> None:
    raise ValueError("not yet")


fail_slowly = fail_slowly.using(max_attempts=3, backoff=Backoff(base=timedelta(hours=1)))


@task
def finish_early() -> str:
    current_job().finish({"sent": 3})
    return "too late"


@task
def finish_again() -> None:
    """Finish in a transaction that is rolled back, and again without a result."""
    with transaction.atomic():
        current_job().finish("rolled back")
        transaction.set_rollback(True)
    current_job().finish()


@task
def finish_in_vain() -> str:
    """Finish in a transaction that is rolled back, and return something else."""
    with transaction.atomic():
        current_job().finish("rolled back")
        transaction.set_rollback(True)
    return "returned"


@task
def give(kind: str) -> Any:
    """Return something that is not JSON, or not quite."""
    values: dict[str, Any] = {
        "object": object(),
        "set": {1},
        "nan": float("nan"),
        "nul": "a\0b",
        "surrogate": "\ud800",
        "bytes": b"text",
        "tuple": (1, [2, {"a": (3,)}]),
        "none": None,
    }
    return values[kind]


@task
def store_and_customers() -> list[Any]:
    """Return the store in whose context this runs, and the names of the customers that it sees."""
    with transaction.atomic():
        names = sorted(Customer.objects.values_list("name", flat=True))
    store = current_store_id()
    return [None if store is None else str(store), names]


@task(takes_context=True)
def flaky(context: Any, failures: int) -> int:
    seen.append(context.task_result)
    if context.attempt <= failures:
        raise ValueError(f"attempt {context.attempt}")
    return int(context.attempt)


flaky = flaky.using(max_attempts=3, backoff=SOON, timeout=timedelta(seconds=20))


@task
def keyed(day: str, note: str = "") -> str:
    return note


keyed = keyed.using(job_key="report-{day}")


@task
def forgotten() -> int:
    return 1


forgotten = forgotten.using(keep_result=timedelta(0))


@task(backend="open")
def elsewhere() -> str:
    """Run by the backend without a list of queues."""
    return "open"


def plain() -> int:
    """Return a number; the function's own name is not a task."""
    return 4


renamed = task(plain)


class Shelf:
    """Namespace for a task that is not an attribute of its module."""

    @staticmethod  # pyright: ignore[reportArgumentType] - a task is called like the function it declares
    @task
    def nested(number: int) -> int:
        return number
