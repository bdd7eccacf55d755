"""Models of the keys of ordered jobs, and of the waiting jobs under each key."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar
from uuid import UUID

from django.db import models
from django.db.models import Q

from salon_jobs.core.records import StoreId
from salon_jobs.core.rights import READ, Access
from salon_jobs.models.fields import InstantField, StoreIdField
from salon_jobs.models.row import Row


class OrderedKey(Row):
    """A key of ordered jobs that have not ended, and the next job. Written by SQL functions only."""

    # Digest of task, store and concurrency key.
    id: models.UUIDField[UUID, UUID] = models.UUIDField(primary_key=True)
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    # The next job; 0 while another transaction has locked it.
    job_id: models.BigIntegerField[int, int] = models.BigIntegerField()

    # A waiting job is written once and deleted once; the key's row changes with each job that gets its turn.
    access: ClassVar = Access(operator=("DELETE",), web=READ, worker=("SELECT",), storage={"fillfactor": 70})

    class Meta:
        db_table = "salon_jobs_ordered_key"
        indexes: ClassVar = [models.Index(fields=["id"], condition=Q(job_id=0), name="salon_jobs_ordered_key_vacant")]

    def __str__(self) -> str:
        return f"the turn of #{self.job_id}"


class OrderedJob(Row):
    """An ordered job that waits; the one with the lowest ID is next. Written by SQL functions only."""

    job_id: models.BigIntegerField[int, int] = models.BigIntegerField(primary_key=True)
    key_id: models.UUIDField[UUID, UUID] = models.UUIDField()
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    # The earliest time for it to run.
    run_at: models.DateTimeField[datetime, datetime] = InstantField()

    access: ClassVar = Access(operator=("DELETE",), web=READ, worker=("SELECT",))

    class Meta:
        db_table = "salon_jobs_ordered_job"
        indexes: ClassVar = [models.Index(fields=["key_id", "job_id"], name="salon_jobs_ordered_job_next")]

    def __str__(self) -> str:
        return f"#{self.job_id}"
