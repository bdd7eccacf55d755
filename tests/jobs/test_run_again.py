"""Runs a job again with other arguments: what the new job takes over, and what is refused."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from salon_jobs import tenant_context
from salon_jobs.control import run_again
from salon_jobs.core.errors import EnqueueRefused, JobDoesNotExist, PayloadInvalid, UnknownTask
from tests.management.operator import add
from tests.support import change, seen

_KEPT = "task, store_id, queue, priority, max_attempts, keep_result, concurrency_key"


def row(job_id: int, columns: str) -> tuple[Any, ...]:
    [found] = seen(f"SELECT {columns} FROM salon_jobs_job WHERE id = %s", job_id)
    return tuple(found)


def test_new_job_is_like_earlier_one(stores: list[UUID]) -> None:
    """The earlier one stays."""
    like: dict[str, Any] = {"queue": "night", "priority": -3, "max_attempts": 9, "concurrency_key": "mine"}
    old = add(task="test-store", state="failed", store_id=stores[0], job_key="k", payload='{"number": 1}', **like)
    change("UPDATE salon_jobs_job SET keep_result = interval '2 hours' WHERE id = %s", old)
    before = row(old, "*")
    with tenant_context(stores[0], using="web"):
        handle = run_again(old, {"number": 7}, using="web")
    assert row(old, "*") == before
    assert row(handle.id, _KEPT) == row(old, _KEPT)
    new = row(handle.id, "state, attempts, job_key, payload ->> 'number', run_at <= now()")
    assert new == ("queued", 0, "k", "7", True)


def test_key_is_made_of_new_arguments(database: None) -> None:
    old = add(task="test-keyed-system", state="failed", job_key="k:old", payload='{"note": "old"}')
    handle = run_again(old, {"note": "new"})
    assert row(handle.id, "job_key, payload ->> 'note'") == ("k:new", "new")
    with pytest.raises(EnqueueRefused, match=rf"^job {handle.id} is queued or running under its key$"):
        run_again(old, {"note": "new"})
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(2,)]


def test_misfit_arguments_add_nothing(stores: list[UUID]) -> None:
    old = add(task="test-store", state="failed", store_id=stores[0])
    for arguments, said in (
        ({"number": "x"}, r"Expected `int`, got `str` - at `\$.number`"),
        ({"numbre": 1}, "no argument 'numbre'; did you mean 'number'"),
        ({"store_id": str(stores[1])}, "leave out 'store_id', since the store stays"),
    ):
        with tenant_context(stores[0], using="web"), pytest.raises(PayloadInvalid, match=said):
            run_again(old, arguments, using="web")
    with pytest.raises(UnknownTask, match="'undeclared'"):
        run_again(add(task="undeclared"), {})
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(2,)]


def test_store_reaches_no_job_of_another(stores: list[UUID]) -> None:
    old = add(task="test-store", state="failed", store_id=stores[0])
    with tenant_context(stores[1], using="web"), pytest.raises(JobDoesNotExist, match=f"no job {old}, or you may not"):
        run_again(old, {}, using="web")
