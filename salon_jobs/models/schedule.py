"""Models of the schedulers: their entries and the ticks that fired."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

from salon_jobs.models.fields import InstantField


class CronEntryState(models.Model):
    """One cron entry that a scheduler has registered; backfill never reaches before ``registered_at``."""

    name: models.CharField[str, str] = models.CharField(max_length=255, primary_key=True)
    registered_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    last_tick_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)

    class Meta:
        db_table = "salon_jobs_cron_entry"
        verbose_name = "cron entry"
        verbose_name_plural = "cron entries"
        permissions: ClassVar = [("run_cronentrystate", "Can run cron entries now")]

    def __str__(self) -> str:
        return self.name


class CronTick(models.Model):
    """One fired tick. Unique by entry and instant: whoever inserts it enqueues the job, in the same transaction."""

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    entry: models.CharField[str, str] = models.CharField(max_length=255)
    tick_at: models.DateTimeField[datetime, datetime] = InstantField()
    fired_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    job_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)

    class Meta:
        db_table = "salon_jobs_cron_tick"
        constraints: ClassVar = [models.UniqueConstraint(fields=["entry", "tick_at"], name="salon_jobs_cron_tick_once")]

    def __str__(self) -> str:
        return f"{self.entry} at {self.tick_at:%Y-%m-%d %H:%M}"
