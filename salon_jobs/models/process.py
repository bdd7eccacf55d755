"""Models of processes, living and ended, and their shared state: limits, cron entries and their ticks, statistics."""

from __future__ import annotations

import secrets
import time
from datetime import datetime
from typing import ClassVar, Final

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from salon_jobs.core.rights import Access
from salon_jobs.models.fields import REQUIRED_FEATURES, InstantField, IntegerArrayField, StoreKeyPattern, finite
from salon_jobs.models.row import Row

# 2020, in milliseconds: ids stay below 2**53, which JSON keeps exactly, until 2089.
_EPOCH_MS: Final = 1_577_836_800_000
_RANDOM_BITS: Final = 12


def new_process_id() -> int:
    """Draw an id that no other process ever has: milliseconds and randomness. Later processes have greater ids.

    A sequence would give an id out again after a failover that lost the last transactions. Two processes that draw in
    the same millisecond can conflict, once in 4,096 times: insert with ON CONFLICT, and draw again.
    """
    return (time.time_ns() // 1_000_000 - _EPOCH_MS << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)


class Process(Row):
    """A running process. Its jobs are its own while ``heartbeat_at`` is fresh."""

    id: models.BigIntegerField[int, int] = models.BigIntegerField(primary_key=True, default=new_process_id)
    kind: models.CharField[str, str] = models.CharField(max_length=16)
    hostname: models.CharField[str, str] = models.CharField(max_length=255)
    pid: models.IntegerField[int, int] = models.IntegerField()
    # The supervisor's row.
    supervisor_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    # The queues it serves; null means all, and ! all but this one.
    queues = models.JSONField(null=True)
    concurrency: models.IntegerField[int, int] = models.IntegerField(db_default=1)
    started_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    heartbeat_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())

    class Meta:
        db_table = "salon_jobs_process"
        verbose_name = _("process")
        verbose_name_plural = _("processes")
        indexes: ClassVar = [models.Index(fields=["heartbeat_at"], name="salon_jobs_process_beat")]

    def __str__(self) -> str:
        return f"{self.kind} {self.hostname}/{self.pid}"


class EndedProcess(Row):
    """A process that has ended lately, by itself or by dying, or the last of its kind to end.

    The statement that deletes the process's row writes it, and deletes those that are older.
    """

    id: models.BigIntegerField[int, int] = models.BigIntegerField(primary_key=True)
    kind: models.CharField[str, str] = models.CharField(max_length=16)
    hostname: models.CharField[str, str] = models.CharField(max_length=255)
    pid: models.IntegerField[int, int] = models.IntegerField()
    # When it ended; if only its silence told that it had died, its last heartbeat.
    ended_at: models.DateTimeField[datetime, datetime] = InstantField()
    # Whether it died; if it was killed for a job past its limit, it did not.
    died: models.BooleanField[bool, bool] = models.BooleanField()
    # The ids of up to a hundred jobs that it ran when it died, or may have run.
    jobs = models.JSONField(db_default=models.Value([], models.JSONField()))

    class Meta:
        db_table = "salon_jobs_ended_process"

    def __str__(self) -> str:
        return f"{self.kind} {self.hostname}/{self.pid}"


class Limit(Row):
    """A limit or pause. Workers apply it within a second; jobs they already hold still run."""

    class Kind(models.TextChoices):
        """The scope of a limit. A ``key`` is named task:key."""

        QUEUE = "queue", _("Queue")
        TASK = "task", _("Task")
        STORE = "store", _("Store")
        KEY = "key", _("Key")

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    kind: models.CharField[str, str] = models.CharField(_("kind"), max_length=8, choices=Kind.choices)
    name: models.CharField[str, str] = models.CharField(_("name"), max_length=512)
    paused: models.BooleanField[bool, bool] = models.BooleanField(_("paused"), db_default=False, default=False)
    # When it was paused.
    paused_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True, editable=False)
    # Who paused it.
    paused_by: models.CharField[str, str] = models.CharField(max_length=255, db_default="", default="", editable=False)
    # NULL: as declared; 2147483647: no limit.
    max_concurrency: models.PositiveIntegerField[int | None, int | None] = models.PositiveIntegerField(
        _("max concurrency"), null=True, blank=True
    )
    # Starts per second.
    rate: models.FloatField[float | None, float | None] = models.FloatField(_("rate"), null=True, blank=True)
    burst: models.PositiveIntegerField[int | None, int | None] = models.PositiveIntegerField(
        _("burst"), null=True, blank=True
    )

    access: ClassVar = Access(operator=("INSERT", "UPDATE", "DELETE"))

    class Meta:
        db_table = "salon_jobs_limit"
        verbose_name = _("limit")
        verbose_name_plural = _("limits")
        required_db_features = REQUIRED_FEATURES
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["kind", "name"], name="salon_jobs_limit_once"),
            models.CheckConstraint(
                condition=Q(kind__in=["queue", "task", "store", "key"]), name="salon_jobs_limit_kind"
            ),
            models.CheckConstraint(
                condition=Q(rate__isnull=True) | Q(rate__gt=0, rate__lte=1_000_000), name="salon_jobs_limit_rate"
            ),
            # As PostgreSQL writes a store's key: the name is compared with one as text.
            models.CheckConstraint(
                condition=~Q(kind="store") | Q(name__regex=StoreKeyPattern()), name="salon_jobs_limit_store"
            ),
            models.CheckConstraint(condition=~Q(burst=0), name="salon_jobs_limit_burst"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def scope(self) -> str:
        """The scope, as ``kind:name``."""
        return f"{self.kind}:{self.name}"


class RateBucket(Row):
    """Bucket of a rate limit, from the first start until it is full again."""

    scope: models.CharField[str, str] = models.CharField(max_length=600, primary_key=True)
    # When it is full, and may be deleted.
    full_at: models.DateTimeField[datetime, datetime] = InstantField()

    access: ClassVar = Access(operator=("DELETE",))

    class Meta:
        db_table = "salon_jobs_rate"
        indexes: ClassVar = [models.Index(fields=["full_at"], name="salon_jobs_rate_full")]
        # An infinite one would never allow a start again.
        constraints: ClassVar = [models.CheckConstraint(condition=finite("full_at"), name="salon_jobs_rate_full_at")]

    def __str__(self) -> str:
        return self.scope


class CronEntryState(Row):
    """A cron entry that a scheduler has registered. Ticks before ``registered_at`` are never backfilled."""

    name: models.CharField[str, str] = models.CharField(max_length=255, primary_key=True)
    registered_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    last_tick_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    paused_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    paused_by: models.CharField[str, str] = models.CharField(max_length=255, db_default="")
    # The line that replaces the one in code; empty: that one.
    line: models.CharField[str, str] = models.CharField(max_length=255, db_default="")
    overridden_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    overridden_by: models.CharField[str, str] = models.CharField(max_length=255, db_default="")

    access: ClassVar = Access(operator=("UPDATE",))

    class Meta:
        db_table = "salon_jobs_cron_entry"
        verbose_name = _("cron entry")
        verbose_name_plural = _("cron entries")
        permissions: ClassVar = [
            ("run_cronentrystate", "Can run cron entries now"),
            ("pause_cronentrystate", "Can pause and resume cron entries"),
        ]

    def __str__(self) -> str:
        return self.name


class CronTick(Row):
    """A fired or skipped tick. Unique by entry and instant: the transaction that inserts it also enqueues the job."""

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    entry: models.CharField[str, str] = models.CharField(_("entry"), max_length=255)
    tick_at: models.DateTimeField[datetime, datetime] = InstantField()
    fired_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    job_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    # Why there is no job; or the job's outcome, written when its row is deleted.
    outcome: models.TextField[str, str] = models.TextField(db_default="")

    class Meta:
        db_table = "salon_jobs_cron_tick"
        verbose_name = _("cron tick")
        verbose_name_plural = _("cron ticks")
        constraints: ClassVar = [models.UniqueConstraint(fields=["entry", "tick_at"], name="salon_jobs_cron_tick_once")]
        indexes: ClassVar = [models.Index(fields=["job_id"], name="salon_jobs_cron_tick_job")]

    def __str__(self) -> str:
        return gettext("%(entry)s at %(time)s") % {"entry": self.entry, "time": f"{self.tick_at:%Y-%m-%d %H:%M}"}


class TaskMinute(Row):
    """Results of the runs of one task on one queue in one minute.

    Workers add to it every few seconds; the minute is that of the database's clock then. Histograms have the buckets of
    ``salon_jobs.core.metrics``.
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
    # Runs that a shutdown interrupted.
    released: models.IntegerField[int, int] = models.IntegerField()
    # Jobs requeued after their process died, started or not.
    rescued: models.IntegerField[int, int] = models.IntegerField()
    # Sum over the runs that were not interrupted.
    duration_s: models.FloatField[float, float] = models.FloatField()
    durations: models.Field[list[int], list[int]] = IntegerArrayField()
    # Sum of the seconds between due and started.
    wait_s: models.FloatField[float, float] = models.FloatField()
    waits: models.Field[list[int], list[int]] = IntegerArrayField()
    duration_max_s: models.FloatField[float | None, float | None] = models.FloatField(null=True)
    wait_max_s: models.FloatField[float | None, float | None] = models.FloatField(null=True)

    # Each row of the current minute is updated by every process every few seconds, and never afterwards. No indexed
    # column changes: with free space in its page such an update touches no index and leaves nothing to vacuum.
    access: ClassVar = Access(storage={"fillfactor": 70})

    class Meta:
        db_table = "salon_jobs_task_minute"

    def __str__(self) -> str:
        return f"{self.task} on {self.queue} at {self.minute:%Y-%m-%d %H:%M}"


class QueueMinute(Row):
    """Number of jobs waiting in one queue at one moment of a minute. One of all workers counts them, once a minute."""

    pk = models.CompositePrimaryKey("minute", "queue")
    minute: models.DateTimeField[datetime, datetime] = InstantField()
    queue: models.CharField[str, str] = models.CharField(max_length=100)
    # Jobs that are queued, due or not.
    waiting: models.BigIntegerField[int, int] = models.BigIntegerField()
    due: models.BigIntegerField[int, int] = models.BigIntegerField()
    # Age of the oldest due job, in seconds.
    oldest_due_s: models.FloatField[float, float] = models.FloatField()
    # Whether all rows were counted; otherwise the count is an estimate.
    exact: models.BooleanField[bool, bool] = models.BooleanField()

    class Meta:
        db_table = "salon_jobs_queue_minute"

    def __str__(self) -> str:
        return f"{self.queue} at {self.minute:%Y-%m-%d %H:%M}"


class Dashboard(Process):
    """The dashboard: no rows, one permission, ``view_dashboard``."""

    class Meta:  # pyright: ignore[reportIncompatibleVariableOverride] - Django joins them
        proxy = True
        default_permissions = ("view",)
        verbose_name = _("dashboard")
        verbose_name_plural = _("dashboard")
