"""Tasks to disturb. Each writes one row ``done`` for the marker it was enqueued with."""

from __future__ import annotations

import random
import time
from datetime import timedelta
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

from django.db import transaction

from project.salon.models import Customer
from salon_jobs import Backoff, current_job, store_task

DONE = "done"


class FirstAttempt(RuntimeError):
    """Intended error of a flaky job's first attempt."""


def _done(store_id: UUID, marker: str, *, row_id: UUID | None = None) -> Customer:
    return Customer(id=row_id or uuid4(), store_id=store_id, name=DONE, email=marker)


def _work() -> None:
    time.sleep(random.uniform(0.002, 0.04))


@store_task(name="chaos-atomic")
def atomic(store_id: UUID, marker: str) -> None:
    """Add one row, and work a while before and after."""
    _work()
    _done(store_id, marker).save(force_insert=True)
    _work()


@store_task(name="chaos-slow")
def slow(store_id: UUID, marker: str) -> None:
    """Do the same for long enough that disturbances hit it."""
    time.sleep(0.7)
    _done(store_id, marker).save(force_insert=True)
    time.sleep(0.7)


@store_task(name="chaos-outside", atomic=False)
def outside(store_id: UUID, marker: str) -> None:
    """Add one row without a transaction around the job: it may run again, and then finds the row."""
    _work()
    with transaction.atomic():
        row = _done(store_id, marker, row_id=uuid5(NAMESPACE_OID, f"{DONE} {marker}"))
        Customer.objects.bulk_create([row], ignore_conflicts=True)
    _work()


@store_task(name="chaos-finishing", atomic=False)
def finishing(store_id: UUID, marker: str) -> None:
    """Add one row and finish the job in the same transaction, the last one."""
    _work()
    with transaction.atomic():
        _done(store_id, marker).save(force_insert=True)
        current_job().finish()


@store_task(name="chaos-flaky", backoff=Backoff(base=timedelta(seconds=0.2), cap=timedelta(seconds=1)))
def flaky(store_id: UUID, marker: str) -> None:
    """Add one row; fail the first time, so that it is rolled back."""
    _done(store_id, marker).save(force_insert=True)
    if current_job().attempt == 1:
        raise FirstAttempt(marker)


@store_task(name="chaos-keyed", job_key="{key}")
def keyed(store_id: UUID, key: str, marker: str) -> None:
    """Add one row for the last marker that was enqueued under the key before this run began."""
    _work()
    _done(store_id, marker).save(force_insert=True)
