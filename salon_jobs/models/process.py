"""Models of processes and of limits set at run time."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Final

from django.db import models
from django.db.models.functions import Now

from salon_jobs.models.fields import InstantField


class Process(models.Model):
    """One running process. Its jobs are its own while ``heartbeat_at`` is fresh."""

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    kind: models.CharField[str, str] = models.CharField(max_length=16)
    hostname: models.CharField[str, str] = models.CharField(max_length=255)
    pid: models.IntegerField[int, int] = models.IntegerField()
    supervisor_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(
        null=True, help_text="The supervisor's row"
    )
    queues = models.JSONField(null=True, help_text="The queues it serves; null means all, and ! all but this one")
    concurrency: models.IntegerField[int, int] = models.IntegerField(db_default=1)
    started_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    heartbeat_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())

    class Meta:
        db_table = "salon_jobs_process"
        verbose_name_plural = "processes"
        indexes: ClassVar = [models.Index(fields=["heartbeat_at"], name="salon_jobs_process_beat")]

    def __str__(self) -> str:
        return f"{self.kind} {self.hostname}/{self.pid}"


UUID_NAME: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


class Limit(models.Model):
    """One limit. Workers apply it within a second; jobs they already hold still run."""

    class Kind(models.TextChoices):
        """What a limit applies to. A ``key`` is named task:key."""

        QUEUE = "queue"
        TASK = "task"
        STORE = "store"
        KEY = "key"

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    kind: models.CharField[str, str] = models.CharField(max_length=8, choices=Kind.choices)
    name: models.CharField[str, str] = models.CharField(
        max_length=512, help_text="A queue, a task, a store's id, or task:key for jobs that share a concurrency key"
    )
    paused: models.BooleanField[bool, bool] = models.BooleanField(
        db_default=False, default=False, help_text="Start no jobs of this kind"
    )
    paused_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(
        null=True, editable=False, help_text="When it was paused"
    )
    paused_by: models.CharField[str, str] = models.CharField(
        max_length=255, db_default="", default="", editable=False, help_text="Who paused it"
    )
    max_concurrency: models.PositiveIntegerField[int | None, int | None] = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="How many may run at once, in all processes; empty: as declared; 2147483647: no limit",
    )
    rate: models.FloatField[float | None, float | None] = models.FloatField(
        null=True, blank=True, help_text="How many may start a second; empty: no limit"
    )
    tokens: models.FloatField[float, float] = models.FloatField(db_default=0.0, default=0.0, editable=False)
    refilled_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now(), editable=False)

    class Meta:
        db_table = "salon_jobs_limit"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["kind", "name"], name="salon_jobs_limit_once"),
            models.CheckConstraint(
                condition=models.Q(kind__in=["queue", "task", "store", "key"]), name="salon_jobs_limit_kind"
            ),
            models.CheckConstraint(
                condition=models.Q(rate__isnull=True) | models.Q(rate__gt=0, rate__lte=1_000_000),
                name="salon_jobs_limit_rate",
            ),
            # In PostgreSQL's own spelling of a uuid: the name is compared with one as text.
            models.CheckConstraint(
                condition=~models.Q(kind="store") | models.Q(name__regex=UUID_NAME), name="salon_jobs_limit_store"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
