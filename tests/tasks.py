"""Tasks that the tests run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from salon_jobs import store_task, task

Hook = Callable[..., Any]
AsyncHook = Callable[..., Awaitable[Any]]


def raises(error: BaseException | type[BaseException]) -> Hook:
    """Return what a task does that fails so."""

    def hook(**_: object) -> None:
        raise error

    return hook


async def _nothing(**_: object) -> None: ...


class Hooks:
    """Hooks with which a test decides what a task does when it runs in this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Make every task harmless again."""
        self.system: Hook = lambda **_: None
        self.store: Hook = lambda **_: None
        self.coroutine: AsyncHook = _nothing


hooks = Hooks()


@task(name="test-system", max_attempts=3)
def system(note: str = "") -> None:
    """Run the test's hook."""
    hooks.system(note=note)


@task(name="test-once", at_most_once=True)
def once(note: str = "") -> None:
    """Run the test's hook, at most once."""
    hooks.system(note=note)


@store_task(name="test-once-in-store", at_most_once=True)
def once_in_store(store_id: UUID, number: int = 0) -> None:
    """Run the test's hook inside the store's transaction, at most once."""
    hooks.store(store_id=store_id, number=number)


@store_task(name="test-once-outside", at_most_once=True, atomic=False)
def once_outside(store_id: UUID, number: int = 0) -> None:
    """Run the test's hook without a transaction around it, at most once."""
    hooks.store(store_id=store_id, number=number)


@task(name="test-once-async", at_most_once=True, job_key="once")
async def once_async() -> None:
    """Run the test's hook, at most once."""
    await hooks.coroutine()


@task(name="test-keyed-system", job_key="k:{note}")
def keyed_system(note: str) -> None:
    """Run the test's hook."""
    hooks.system(note=note)


@store_task(name="test-store", max_attempts=3)
def in_store(store_id: UUID, number: int = 0) -> None:
    """Run the test's hook inside the store's transaction."""
    hooks.store(store_id=store_id, number=number)


@store_task(name="test-store-outside", max_attempts=3, atomic=False)
def outside(store_id: UUID, number: int = 0) -> None:
    """Run the test's hook without a transaction around it."""
    hooks.store(store_id=store_id, number=number)


@store_task(name="test-error-rules", max_attempts=3, retry_on=(OSError,), discard_on=(LookupError,))
def with_error_rules(store_id: UUID) -> None:
    """Run the test's hook."""
    hooks.store(store_id=store_id)


@store_task(name="test-final-errors", max_attempts=3, fail_on=(LookupError,))
def with_final_errors(store_id: UUID) -> None:
    """Run the test's hook."""
    hooks.store(store_id=store_id)


@task(name="test-error-rules-async", max_attempts=3, retry_on=(), discard_on=(LookupError,))
async def with_async_error_rules() -> None:
    """Run the test's hook."""
    await hooks.coroutine()


@store_task(name="test-keyed", job_key="k:{number}", job_key_mode="preserve_run_at")
def keyed(store_id: UUID, number: int, note: str = "") -> None:
    """Run the test's hook inside the store's transaction."""
    hooks.store(store_id=store_id, number=number)


@dataclass(frozen=True)
class Sale:
    """Payload of one job of a chunk."""

    number: int
    note: str = ""


@store_task(name="test-chunk", chunk=5, max_attempts=3)
def in_chunks(store_id: UUID, sales: list[Sale]) -> None:
    """Run the test's hook for several jobs at once, inside the store's transaction."""
    hooks.store(store_id=store_id, sales=sales)


@store_task(name="test-chunk-results", chunk=5, max_attempts=3, keep_result=timedelta(hours=1))
def in_chunks_with_results(store_id: UUID, sales: list[Sale]) -> list[int]:
    """Run the test's hook for several jobs at once, and keep what it returns for each."""
    return list(hooks.store(store_id=store_id, sales=sales))


@task(name="test-anything", keep_result=timedelta(hours=1))
def anything(data: Any) -> Any:
    """Return what the test's hook makes of the argument."""
    return hooks.system(data)


@task(name="test-priced")
def priced(price: Decimal, share: float, parts: list[Decimal]) -> None:
    """Do nothing."""


@task(name="test-typed")
def typed(day: date, at: datetime, amount: Decimal, tags: list[str], ref: UUID | None = None) -> None:
    """Run the test's hook with converted arguments."""
    hooks.system(day=day, at=at, amount=amount, tags=tags, ref=ref)


@task(name="test-async-system", max_attempts=3)
async def async_system(note: str = "") -> None:
    """Await the test's hook."""
    await hooks.coroutine(note=note)


@store_task(name="test-async-store", max_attempts=3, atomic=False)
async def async_store(store_id: UUID, number: int = 0) -> int:
    """Await the test's hook, as the store."""
    await hooks.coroutine(store_id=store_id, number=number)
    return number


@task(name="test-kept-result", max_attempts=3, keep_result=timedelta(hours=1))
def kept_result(note: str = "") -> Any:
    """Return the result of the test's hook."""
    return hooks.system(note=note)


@task(name="test-kept-result-async", keep_result=timedelta(hours=1))
async def kept_result_async(note: str = "") -> Any:
    """Return the result of the test's hook."""
    return await hooks.coroutine(note=note)


@store_task(name="test-kept-result-store", max_attempts=3, keep_result=timedelta(hours=1))
def kept_result_in_store(store_id: UUID, number: int = 0) -> Any:
    """Return the result of the test's hook, inside the store's transaction."""
    return hooks.store(store_id=store_id, number=number)


@store_task(name="test-kept-result-outside", atomic=False, keep_result=timedelta(hours=1))
def kept_result_outside(store_id: UUID, number: int = 0) -> Any:
    """Return the result of the test's hook, without a transaction around it."""
    return hooks.store(store_id=store_id, number=number)


@task(name="test-flow", max_attempts=1, keep_result=timedelta(hours=1))
def in_flow(number: int = 0) -> int:
    """Run the test's hook, and keep what it returns, or the number."""
    returned = hooks.system(number=number)
    return number if returned is None else int(returned)


@task(name="test-ordered", max_attempts=1, concurrency_key="{customer}", ordered=True)
def ordered(customer: str = "a", number: int = 0) -> None:
    """Run the test's hook, one job of a customer after the other."""
    hooks.system(customer=customer, number=number)


@task(name="test-ordered-skip", max_attempts=1, concurrency_key="{customer}", ordered="skip_failed")
def ordered_skip(customer: str = "a", number: int = 0) -> None:
    """Run the test's hook, one job of a customer after the other, whatever becomes of them."""
    hooks.system(customer=customer, number=number)


@task(name="test-ordered-key", max_attempts=1, job_key="{number}", concurrency_key="{customer}", ordered=True)
def ordered_key(customer: str = "a", number: int = 0) -> None:
    """Run the test's hook, one job of a customer after the other; at most one with a number waits."""
    hooks.system(customer=customer, number=number)


@store_task(name="test-ordered-store", concurrency_key="{customer}", ordered=True)
def ordered_in_store(store_id: UUID, customer: str = "a", number: int = 0) -> None:
    """Run the test's hook in the store's transaction, one job of a customer after the other."""
    hooks.store(store_id=store_id, number=number)
