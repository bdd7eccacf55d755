"""Stores: whose job a task becomes, as whom it runs, and who may enqueue and read it under the real roles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connections
from django.test import override_settings

from project.settings import SALON_JOBS
from salon_jobs import tenant_context
from salon_jobs.backend.framework import TaskResultDoesNotExist, TaskResultStatus
from salon_jobs.testing import drain_jobs
from tests.backend import calls
from tests.support import change, seen


@pytest.fixture
def customers(stores: list[UUID]) -> list[UUID]:
    """Give each store a customer with its number as name."""
    for number, store_id in enumerate(stores):
        change(
            "INSERT INTO customer (id, store_id, name, email) VALUES (%s, %s, %s, '')", uuid4(), store_id, str(number)
        )
    return stores


@pytest.fixture
def web(customers: list[UUID]) -> Iterator[list[UUID]]:
    """Enqueue and read as the web role."""
    with override_settings(SALON_JOBS={**SALON_JOBS, "DATABASE": "web"}):
        yield customers
    connections["web"].close()


def stores_of_jobs() -> list[UUID | None]:
    return [row[0] for row in seen("SELECT store_id FROM salon_jobs_job ORDER BY id")]


def test_task_runs_in_store_of_context(customers: list[UUID]) -> None:
    with tenant_context(customers[1]):
        result = calls.store_and_customers.enqueue()
    assert stores_of_jobs() == [customers[1]]
    assert [job.store_id for job in drain_jobs()] == [customers[1]]
    assert calls.store_and_customers.get_result(result.id).return_value == [str(customers[1]), ["1"]]


def test_retries_and_coroutines_keep_the_store(customers: list[UUID]) -> None:
    with tenant_context(customers[0]):
        flaky, later = calls.flaky.enqueue(2), calls.double.enqueue(4)
    drain_jobs(raise_errors=False)
    assert calls.flaky.get_result(flaky.id).return_value == 3
    assert calls.double.get_result(later.id).return_value == 8


def test_web_role_enqueues_for_its_store(web: list[UUID]) -> None:
    """It also enqueues for no store."""
    with tenant_context(web[0]):
        of_store = calls.store_and_customers.enqueue()
        assert calls.store_and_customers.get_result(of_store.id).status == TaskResultStatus.READY
    of_none = calls.store_and_customers.enqueue()
    assert stores_of_jobs() == [web[0], None]
    with override_settings(SALON_JOBS=SALON_JOBS):
        drain_jobs()
    returned: list[Any] = []
    for result in (of_store, of_none):
        result.refresh()
        assert len(result.worker_ids) == 1
        returned.append(result.return_value)
    assert returned == [[str(web[0]), ["0"]], [None, []]]


def test_web_role_reads_failures_by_id(web: list[UUID]) -> None:
    with tenant_context(web[0]):
        result = calls.fail.enqueue("secret")
    with override_settings(SALON_JOBS=SALON_JOBS):
        drain_jobs(raise_errors=False)
    with tenant_context(web[1]):
        assert calls.fail.get_result(result.id).errors[0].exception_class is ValueError
        with connections["web"].cursor() as cursor:
            for table in ("salon_jobs_job", "salon_jobs_job_error", "salon_jobs_job_result"):
                cursor.execute(f"SELECT count(*) FROM {table}")
                assert cursor.fetchone() == (0,), table
    with pytest.raises(TaskResultDoesNotExist):
        calls.fail.get_result(str(uuid4()))
