"""Models of schedules that are rows, and of their ticks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from salon_jobs.core.records import StoreId
from salon_jobs.core.rights import READ, Access
from salon_jobs.models.fields import REQUIRED_FEATURES, InstantField, ReadableJSONField, StoreIdField, finite
from salon_jobs.models.row import Row


class Schedule(Row):
    """Repeated calls of a task: at the instants of a cron line, or at equal intervals.

    Schedulers select due rows, and advance ``next_at`` in the transaction that enqueues their jobs.
    """

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    key: models.CharField[str, str] = models.CharField(max_length=255)
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    task: models.CharField[str, str] = models.CharField(_("task"), max_length=255)
    payload = ReadableJSONField()
    # The cron line; empty: at equal intervals.
    line: models.CharField[str, str] = models.CharField(max_length=255)
    timezone: models.CharField[str, str] = models.CharField(max_length=64, db_default="UTC")
    every: models.DurationField[timedelta | None, timedelta | None] = models.DurationField(null=True)
    # Ticks at equal intervals are this instant and whole multiples later.
    anchor_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    # How late a tick may fire.
    catch_up: models.DurationField[timedelta, timedelta] = models.DurationField()
    jitter: models.DurationField[timedelta, timedelta] = models.DurationField()
    # Whether a tick fires while the last one's job is queued or running.
    overlap: models.BooleanField[bool, bool] = models.BooleanField(db_default=True)
    # No tick up to this instant fires.
    owed_from: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    next_at: models.DateTimeField[datetime, datetime] = InstantField()
    last_tick_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    last_job_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    # How many ticks its history has had.
    ticks: models.BigIntegerField[int, int] = models.BigIntegerField(db_default=0)
    paused_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    paused_by: models.CharField[str, str] = models.CharField(max_length=255, db_default="")
    created_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    changed_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())

    # Each tick is a new version with another place in the index of those that are due.
    access: ClassVar = Access(
        operator=("UPDATE", "DELETE"),
        web=READ,
        storage={
            "autovacuum_vacuum_scale_factor": 0.02,
            "autovacuum_vacuum_threshold": 5000,
            "autovacuum_vacuum_cost_delay": 0,
        },
    )

    class Meta:
        db_table = "salon_jobs_schedule"
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        required_db_features = REQUIRED_FEATURES
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["store_id", "key"], name="salon_jobs_schedule_key", nulls_distinct=False),
            models.CheckConstraint(
                condition=Q(line="", every__isnull=False) | (~Q(line="") & Q(every=None)),
                name="salon_jobs_schedule_when",
            ),
            # An infinite one makes each poll of every scheduler fail.
            models.CheckConstraint(
                condition=finite("next_at", "anchor_at", "owed_from"), name="salon_jobs_schedule_finite"
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["next_at"], condition=Q(paused_at=None), name="salon_jobs_schedule_due")
        ]
        permissions: ClassVar = [
            ("pause_schedule", "Can pause and resume schedules"),
            ("run_schedule", "Can run schedules now"),
        ]

    def __str__(self) -> str:
        return self.key


class ScheduleTick(Row):
    """A tick of a schedule, or a run that a user requested; the newest are kept.

    The database knows no foreign key: a tick never delays a change of its schedule. Django deletes the ticks with it.
    """

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    schedule_id: int
    schedule: models.ForeignKey[Schedule, Schedule] = models.ForeignKey(
        Schedule, on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    # Counts the ticks of its schedule.
    number: models.BigIntegerField[int, int] = models.BigIntegerField()
    tick_at: models.DateTimeField[datetime, datetime] = InstantField()
    fired_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    job_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    # Why there is no job; or the job's outcome, written when its row is deleted.
    outcome: models.TextField[str, str] = models.TextField(db_default="")
    # Whether a user ran it now; otherwise it was due.
    by_hand: models.BooleanField[bool, bool] = models.BooleanField(db_default=False)
    # Who ran it now.
    run_by: models.CharField[str, str] = models.CharField(max_length=255, db_default="")

    access: ClassVar = Access(operator=("DELETE",), web=READ)

    class Meta:
        db_table = "salon_jobs_schedule_tick"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["schedule", "number"], name="salon_jobs_schedule_tick_number")
        ]
        indexes: ClassVar = [
            models.Index(fields=["job_id"], condition=~Q(job_id=None), name="salon_jobs_schedule_tick_job")
        ]

    def __str__(self) -> str:
        return f"tick {self.number} of schedule {self.schedule_id}"
