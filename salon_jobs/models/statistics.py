"""Models of the statistics, and of the dashboard for Django's permissions."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from salon_jobs.models.fields import InstantField
from salon_jobs.models.process import Process


class IntegerArrayField(models.Field):  # type: ignore[type-arg]
    """Column of type ``integer[]``. From Django 6.1 on its own array field requires ``django.contrib.postgres``."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        """Return the column's type."""
        return "integer[]"


class TaskMinute(models.Model):
    """Results of the runs of one task on one queue in one minute.

    Workers add to it every few seconds; the minute is that of the database's clock at that time. Histograms have the
    buckets of ``salon_jobs.core.metrics``.
    """

    pk = models.CompositePrimaryKey("minute", "task", "queue")
    minute: models.DateTimeField[datetime, datetime] = InstantField()
    task: models.CharField[str, str] = models.CharField(max_length=255)
    queue: models.CharField[str, str] = models.CharField(max_length=100)
    succeeded: models.IntegerField[int, int] = models.IntegerField()
    retried: models.IntegerField[int, int] = models.IntegerField()
    failed: models.IntegerField[int, int] = models.IntegerField()
    cancelled: models.IntegerField[int, int] = models.IntegerField()
    snoozed: models.IntegerField[int, int] = models.IntegerField()
    released: models.IntegerField[int, int] = models.IntegerField(help_text="Runs that a shutdown interrupted")
    rescued: models.IntegerField[int, int] = models.IntegerField(
        help_text="Jobs requeued after their process died, started or not"
    )
    duration_s: models.FloatField[float, float] = models.FloatField(
        help_text="Sum over the runs that were not interrupted"
    )
    durations: models.Field[list[int], list[int]] = IntegerArrayField()
    wait_s: models.FloatField[float, float] = models.FloatField(help_text="Sum of the seconds between due and started")
    waits: models.Field[list[int], list[int]] = IntegerArrayField()

    class Meta:
        db_table = "salon_jobs_task_minute"

    def __str__(self) -> str:
        return f"{self.task} on {self.queue} at {self.minute:%Y-%m-%d %H:%M}"


class QueueMinute(models.Model):
    """Number of jobs waiting in one queue at one moment of a minute. One of all workers counts, once a minute."""

    pk = models.CompositePrimaryKey("minute", "queue")
    minute: models.DateTimeField[datetime, datetime] = InstantField()
    queue: models.CharField[str, str] = models.CharField(max_length=100)
    waiting: models.BigIntegerField[int, int] = models.BigIntegerField(help_text="Jobs that are queued, due or not")
    due: models.BigIntegerField[int, int] = models.BigIntegerField()
    oldest_due_s: models.FloatField[float, float] = models.FloatField(help_text="Age of the oldest due job, in seconds")
    exact: models.BooleanField[bool, bool] = models.BooleanField(
        help_text="Whether all rows were counted; otherwise the count is an estimate"
    )

    class Meta:
        db_table = "salon_jobs_queue_minute"

    def __str__(self) -> str:
        return f"{self.queue} at {self.minute:%Y-%m-%d %H:%M}"


class Dashboard(Process):
    """The dashboard: no rows of its own, one permission, ``view_dashboard``."""

    class Meta:  # pyright: ignore[reportIncompatibleVariableOverride] - Django joins them
        proxy = True
        default_permissions = ("view",)
        verbose_name = "dashboard"
        verbose_name_plural = "dashboard"
