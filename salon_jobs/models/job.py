"""Models of jobs, their errors, results, progress and steps, fan-outs, follow-ups, unique marks, superseded runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import ClassVar
from uuid import UUID

import pgtrigger
from django.db import models
from django.db.models import Q
from django.db.models.functions import Cast, Coalesce, Now
from django.db.models.signals import post_save, pre_save
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from salon_jobs.core.errors import ProcessDied, TimedOut
from salon_jobs.core.records import JobState, StoreId
from salon_jobs.core.rights import READ, Access
from salon_jobs.core.units import LATEST
from salon_jobs.models.fields import (
    REQUIRED_FEATURES,
    BloomIndex,
    InstantField,
    NoStore,
    ReadableJSONField,
    StoredColumn,
    StoreIdField,
    all_finite,
)
from salon_jobs.models.row import Row

# Every enqueue evaluates this for each index: it fails after one comparison, where IN takes five times as long. The
# planner knows that IN (failed, …) implies it.
_ENDED = ~Q(state="queued") & ~Q(state="running")
_FAILED = Q(state="failed")
# Conditions that every statement keeps and every loop relies on: a running job without an owner would never be rescued,
# a queued one that has begun its only run would run twice, and an ended one without the time of its end would never be
# pruned. Short, like the instants and the moves below: the server reads the text of each check and WHEN clause again
# for each statement, which for one job takes longer than to evaluate it.
_FITS_STATE = (
    Q(finished_at=None, reason="")
    & (
        Q(state="queued", leased_by=None, begun_once_at=None, cancel_requested_at=None)
        | Q(
            state="running",
            leased_by__isnull=False,
            leased_by__gt=0,
            leased_by__lt=2**63 - 1,
            lease__gt=0,
            started_at__isnull=False,
        )
    )
) | (
    Q(finished_at__isnull=False, leased_by=None)
    & (
        Q(state="succeeded", started_at__isnull=False, reason="")
        | (
            Q(state="failed", started_at__isnull=False, cancel_requested_at=None, error_class__isnull=False)
            & ~Q(reason="")
        )
        | Q(state="cancelled")
    )
)

# Guard against mistakes: the illegal transitions, as a WHEN clause, so that a legal one calls no function.
_ILLEGAL_MOVES = pgtrigger.Condition(
    "(((OLD.state || '>') || NEW.state) = ANY ('{"
    "succeeded>queued,succeeded>running,succeeded>failed,succeeded>cancelled,queued>succeeded,queued>failed,"
    "failed>running,failed>succeeded,cancelled>running,cancelled>succeeded,cancelled>failed}'))"
)
_IDENTITY_CHANGED = pgtrigger.Condition(
    "(OLD.id IS DISTINCT FROM NEW.id OR OLD.task IS DISTINCT FROM NEW.task"
    " OR OLD.store_id IS DISTINCT FROM NEW.store_id)"
)


class TextHash(models.Func):
    """Hash of a text, seeded with a number such as another hash; immutable, as generated columns require."""

    function = "hashtextextended"
    arity = 2

    def _resolve_output_field(self) -> models.BigIntegerField[int, int]:
        return models.BigIntegerField()


class Job(Row):
    """One job, due once ``queued`` and ``run_at`` has come. Without foreign keys, since the table is hot.

    The statements in ``salon_jobs/db/sql`` write it; the model is for reading, the admin and migrations.
    """

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    task: models.CharField[str, str] = models.CharField(max_length=255)
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    queue: models.CharField[str, str] = models.CharField(max_length=100, db_default="default")
    priority: models.SmallIntegerField[int, int] = models.SmallIntegerField(_("priority"), db_default=0)
    state: models.CharField[str, str] = models.CharField(max_length=16, db_default=JobState.QUEUED.value)
    run_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    # Runs that failed or ended as cancelled, and a success that is kept; not those snoozed, released or rescued.
    attempts: models.SmallIntegerField[int, int] = models.SmallIntegerField(db_default=0)
    max_attempts: models.SmallIntegerField[int, int] = models.SmallIntegerField(db_default=25)
    # Random token of its last claim, which fences every finish; 0 after a rescue.
    lease: models.BigIntegerField[int, int] = models.BigIntegerField(db_default=0)
    # The process that holds the job.
    leased_by: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    # Times a process died running this job, or may have; a retry by a person gives all of them back.
    rescues: models.SmallIntegerField[int, int] = models.SmallIntegerField(db_default=0)
    job_key: models.CharField[str | None, str | None] = models.CharField(_("job key"), max_length=512, null=True)  # noqa: DJ001 - NULL means "no key" to the unique index
    payload = ReadableJSONField(db_default=models.Value({}, models.JSONField()))
    # Why it was cancelled or failed.
    reason: models.CharField[str, str] = models.CharField(max_length=255, db_default="")
    created_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    # When it was claimed; once its run has ended, when that began.
    started_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    # When the job was claimed for the run that began at started_at.
    claimed_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    # When the only run of a task declared at_most_once began.
    begun_once_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    finished_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    # When cancellation was requested.
    cancel_requested_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    expires_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    # The cron tick that added it.
    tick: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    concurrency_key: models.CharField[str | None, str | None] = models.CharField(  # noqa: DJ001 - NULL means that no limit by key applies
        _("concurrency key"), max_length=255, null=True
    )
    # Jobs of one store in one claim group are subject to the same limits; see sql/list_groups.sql.
    claim_group = StoredColumn(
        # The key changes only the lower half, so that claim groups that differ only in their keys are adjacent. Each
        # hash is the seed of the next: joining the parts to one text first takes twice as long.
        expression=TextHash("task", TextHash("queue", Cast("priority", models.BigIntegerField()))).bitxor(
            TextHash(  # type: ignore[arg-type] # Django takes any expression
                Coalesce("concurrency_key", models.Value("", models.TextField())), models.Value(0)
            ).bitand(2**32 - 1)
        ),
        output_field=models.BigIntegerField(),
        db_persist=True,
    )
    # The fan-out that added it.
    fan_out_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    # Class of the error with which it failed for good.
    error_class: models.CharField[str | None, str | None] = models.CharField(max_length=255, null=True)  # noqa: DJ001 - NULL: it never failed for good
    # Same for jobs of a task with the same error class, location and message.
    fingerprint: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    # Trace headers from enqueueing.
    trace = models.JSONField(null=True)
    # How long its result is kept, if different from the task's time.
    keep_result: models.DurationField[timedelta | None, timedelta | None] = models.DurationField(null=True)
    # It runs by itself, because a chunk with it failed.
    alone: models.BooleanField[bool, bool] = models.BooleanField(db_default=False, default=False)
    # Unguessable ID; anyone who has it can read the result.
    public_id: models.UUIDField[UUID | None, UUID | None] = models.UUIDField(null=True)
    # The follow-up that waits for its end.
    follow_up_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    # The jobs whose end enqueued it.
    follows = models.JSONField(null=True)
    # The flow of which it is a member.
    flow_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    # strict: jobs with its key run in order; skip_failed: a failed one gives the key up.
    ordered: models.CharField[str | None, str | None] = models.CharField(max_length=11, null=True)  # noqa: DJ001 - NULL: in no order
    # The last lines logged by a run that did not fail, with KEEP_LOG.
    log: models.TextField[str | None, str | None] = models.TextField(null=True)  # noqa: DJ001 - NULL takes no space

    access: ClassVar = Access(
        operator=("UPDATE", "DELETE"),
        web={
            "SELECT": (),
            # Not id, lease and others that the workers trust: with those, SQL injected into a web process could stop
            # the workers for all stores.
            "UPDATE": (
                *("queue", "priority", "max_attempts", "run_at", "expires_at"),
                *("state", "reason", "finished_at", "cancel_requested_at", "begun_once_at"),
            ),
        },
        # A job is three row versions within seconds: inserted, claimed, deleted. With the server's defaults, a table
        # that once held a million rows is vacuumed after 200,000 dead ones, and deliberately slowly; until then each
        # claim reads past them. So the threshold is fixed, and vacuum runs at full speed. The TOAST table holds long
        # payloads. Half of a page is free for the versions of running jobs: an update that has to leave the page logs a
        # lock of the old version first, and then the whole of the new one (a fifth of the WAL of a job).
        storage={
            "autovacuum_vacuum_scale_factor": 0,
            "autovacuum_vacuum_threshold": 5000,
            "autovacuum_vacuum_cost_delay": 0,
            "autovacuum_analyze_scale_factor": 0,
            "autovacuum_analyze_threshold": 5000,
            "toast.autovacuum_vacuum_scale_factor": 0,
            "toast.autovacuum_vacuum_threshold": 5000,
            "toast.autovacuum_vacuum_cost_delay": 0,
            "fillfactor": 50,
        },
    )

    class Meta:
        db_table = "salon_jobs_job"
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        required_db_features = REQUIRED_FEATURES
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["public_id"], condition=Q(public_id__isnull=False), name="salon_jobs_job_public_id"
            ),
            models.UniqueConstraint(
                fields=["task", "store_id", "job_key"],
                condition=Q(state="queued", job_key__isnull=False),
                nulls_distinct=False,
                name="salon_jobs_job_waiting_key",
            ),
            models.CheckConstraint(condition=_FITS_STATE, name="salon_jobs_job_state"),
            models.CheckConstraint(
                condition=Q(max_attempts__gte=1, attempts__gte=0, rescues__gte=0), name="salon_jobs_job_attempts"
            ),
            models.CheckConstraint(
                condition=all_finite(
                    *("created_at", "run_at", "started_at", "claimed_at", "begun_once_at", "expires_at", "tick"),
                    *("finished_at", "cancel_requested_at"),
                ),
                name="salon_jobs_job_instants",
            ),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["priority", "run_at", "id"],
                condition=Q(state="queued"),
                include=["queue", "task"],
                name="salon_jobs_job_due",
            ),
            models.Index(
                Coalesce("store_id", NoStore()),
                "claim_group",
                "run_at",
                "id",
                condition=Q(state="queued"),
                name="salon_jobs_job_claim_group",
            ),
            models.Index(fields=["leased_by", "id"], condition=Q(state="running"), name="salon_jobs_job_leased"),
            # Separate from the one above, which holds an entry for each job that a process ran since the last vacuum.
            models.Index(
                fields=["leased_by"],
                condition=Q(state="running", cancel_requested_at__isnull=False),
                name="salon_jobs_job_cancelling",
            ),
            models.Index(
                fields=["job_key", "task", "store_id"],
                condition=Q(state__in=["queued", "running"], job_key__isnull=False),
                name="salon_jobs_job_live_key",
            ),
            models.Index(fields=["state", "finished_at"], condition=_ENDED, name="salon_jobs_job_ended"),
            # Not for jobs without a store: each claim would write to it, a tenth of all writes of such a job.
            models.Index(fields=["store_id", "id"], condition=Q(store_id__isnull=False), name="salon_jobs_job_store"),
            models.Index(fields=["fan_out_id"], condition=Q(fan_out_id__isnull=False), name="salon_jobs_job_fan_out"),
            # For people who look for three jobs among millions: it tells which 32 pages have jobs of a task or a queue.
            # A b-tree, even of equal entries, would cost an enqueue a tenth of its time.
            BloomIndex(
                fields=["task", "queue"],
                opclasses=2 * ["text_bloom_ops(n_distinct_per_range='128')"],
                condition=Q(state="queued"),
                name="salon_jobs_job_queued_task",
            ),
            # For the admin, only on ended rows: a job that succeeds and is deleted never enters these indexes.
            models.Index(fields=["state", "id"], condition=_ENDED, name="salon_jobs_job_ended_state"),
            models.Index(fields=["task", "id"], condition=_ENDED, name="salon_jobs_job_ended_task"),
            models.Index(fields=["queue", "id"], condition=_ENDED, name="salon_jobs_job_ended_queue"),
            models.Index(
                fields=["id"], condition=Q(store_id__isnull=True) & _ENDED, name="salon_jobs_job_ended_system"
            ),
            models.Index(
                fields=["job_key"], condition=Q(job_key__isnull=False) & _ENDED, name="salon_jobs_job_ended_key"
            ),
            models.Index(fields=["fingerprint", "id"], condition=_FAILED, name="salon_jobs_job_failed_alike"),
            models.Index(
                fields=["store_id", "fingerprint", "id"], condition=_FAILED, name="salon_jobs_job_failed_store"
            ),
            models.Index(fields=["error_class", "id"], condition=_FAILED, name="salon_jobs_job_failed_class"),
        ]
        triggers: ClassVar = [
            pgtrigger.Protect(
                name="identity_never_changes",
                operation=pgtrigger.UpdateOf("id", "task", "store_id"),  # type: ignore[no-untyped-call]
                condition=_IDENTITY_CHANGED,
            ),
            pgtrigger.Protect(
                name="legal_moves_only",
                operation=pgtrigger.UpdateOf("state"),  # type: ignore[no-untyped-call]
                condition=_ILLEGAL_MOVES,
            ),
        ]
        permissions: ClassVar = [
            ("retry_job", "Can retry jobs"),
            ("cancel_job", "Can cancel jobs"),
            ("discard_job", "Can discard jobs"),
            ("view_all_stores", "Can work with jobs and messages of all stores"),
        ]

    def __str__(self) -> str:
        return f"{self.task} #{self.pk}"

    @property
    def is_held(self) -> bool:
        """Whether it waits for other jobs, of its flow or with its key."""
        is_of_others = self.flow_id is not None or self.ordered is not None
        return is_of_others and self.state == JobState.QUEUED and self.run_at >= LATEST

    def timeliness(self, now: datetime) -> str:
        """Return the state in a word or two: also whether it is scheduled or retrying ``now``, timed out or expired."""
        match self.state:
            case JobState.QUEUED if self.is_held:
                return "held"
            case JobState.QUEUED if self.run_at > now:
                return "retrying" if self.attempts else "scheduled"
            case JobState.RUNNING if self.cancel_requested_at is not None:
                return "cancelling"
            case JobState.FAILED if self.reason == TimedOut.code:
                return "timed out"
            case JobState.CANCELLED if self.reason.startswith("expired"):
                return "expired"
            case _:
                return self.state


def cancel_loaded_job(instance: Job, *, raw: bool, **_: object) -> None:
    """Cancel a job that ``loaddata`` brings before it is written: a job that waited elsewhere must not run here.

    Receiver of ``pre_save``. An operator can still retry it; its follow-up is gone (``drop_loaded_follow_up``), and
    another one may get that number.
    """
    if raw:
        instance.follow_up_id = None
    if raw and instance.state in (JobState.QUEUED, JobState.RUNNING):
        instance.state, instance.reason = JobState.CANCELLED.value, "loaded from a fixture"
        instance.leased_by, instance.finished_at = None, datetime.now(UTC)


pre_save.connect(cancel_loaded_job, sender=Job)


class JobError(Row):
    """A failed attempt of a job, apart from the hot row. ``job_id`` is not a foreign key: errors never delay a job."""

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    job_id: models.BigIntegerField[int, int] = models.BigIntegerField()
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    attempt: models.SmallIntegerField[int, int] = models.SmallIntegerField()
    error_class: models.CharField[str, str] = models.CharField(max_length=255)
    code: models.CharField[str, str] = models.CharField(max_length=64, db_default="")
    message: models.TextField[str, str] = models.TextField(db_default="")
    traceback: models.TextField[str, str] = models.TextField(db_default="")
    # The last lines that it logged.
    log: models.TextField[str, str] = models.TextField(db_default="")
    occurred_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    # The process that ran it.
    worker_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    # When the attempt began; if its process died, when it was claimed.
    started_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)

    access: ClassVar = Access(operator=("DELETE",), web=READ)

    class Meta:
        db_table = "salon_jobs_job_error"
        indexes: ClassVar = [models.Index(fields=["job_id", "id"], name="salon_jobs_job_error_job")]

    def __str__(self) -> str:
        return f"attempt {self.attempt} of job {self.job_id}: {self.error_class}"

    @property
    def is_death(self) -> bool:
        """Whether the process died, which is no attempt."""
        return self.code == ProcessDied.code


class JobResult(Row):
    """The result of a job, with columns of its row, kept for a time after a success that deletes the row.

    Written with the success itself, for jobs that keep their result. No foreign key, since the job is then gone.
    """

    job_id: models.BigIntegerField[int, int] = models.BigIntegerField(primary_key=True)
    public_id: models.UUIDField[UUID | None, UUID | None] = models.UUIDField(_("public ID"), null=True, unique=True)
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    task: models.CharField[str, str] = models.CharField(_("task"), max_length=255)
    queue: models.CharField[str, str] = models.CharField(_("queue"), max_length=100)
    priority: models.SmallIntegerField[int, int] = models.SmallIntegerField(_("priority"))
    payload = ReadableJSONField()
    # The handler's result.
    value = ReadableJSONField()
    attempts: models.SmallIntegerField[int, int] = models.SmallIntegerField(_("attempts"))
    worker_id: models.BigIntegerField[int, int] = models.BigIntegerField(_("worker"))
    run_at: models.DateTimeField[datetime, datetime] = InstantField()
    created_at: models.DateTimeField[datetime, datetime] = InstantField()
    # When the successful run began.
    started_at: models.DateTimeField[datetime, datetime] = InstantField()
    finished_at: models.DateTimeField[datetime, datetime] = InstantField()
    # When it may be deleted.
    expires_at: models.DateTimeField[datetime, datetime] = InstantField()

    access: ClassVar = Access(operator=("DELETE",), web=READ)

    class Meta:
        db_table = "salon_jobs_job_result"
        verbose_name = _("job result")
        verbose_name_plural = _("job results")
        indexes: ClassVar = [models.Index(fields=["expires_at"], name="salon_jobs_job_result_expires")]

    def __str__(self) -> str:
        return f"result of {self.task} #{self.job_id}"


class JobProgress(Row):
    """Progress of a running job, as its handler last reported. Deleted when the run ends; never read for others."""

    job_id: models.BigIntegerField[int, int] = models.BigIntegerField(primary_key=True)
    # The lease of the run that reported it.
    lease: models.BigIntegerField[int, int] = models.BigIntegerField()
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    done: models.BigIntegerField[int, int] = models.BigIntegerField()
    total: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    text: models.CharField[str, str] = models.CharField(max_length=255)
    updated_at: models.DateTimeField[datetime, datetime] = InstantField()

    access: ClassVar = Access(operator=("DELETE",), web=READ)

    class Meta:
        db_table = "salon_jobs_job_progress"
        indexes: ClassVar = [models.Index(fields=["updated_at"], name="salon_jobs_job_progress_old")]

    def __str__(self) -> str:
        said = gettext("%(done)s done") if self.total is None else gettext("%(done)s of %(total)s done")
        done = said % {"done": f"{self.done:,}", "total": f"{self.total or 0:,}"}
        return f"{done}: {self.text}" if self.text else done


class JobStep(Row):
    """A step that a job has committed, or the position of one of its cursors. Pruned once the job is gone."""

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    job_id: models.BigIntegerField[int, int] = models.BigIntegerField()
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    name: models.CharField[str, str] = models.CharField(max_length=255)
    # The run that committed it.
    attempt: models.SmallIntegerField[int, int] = models.SmallIntegerField()
    # Its result; for a cursor, the last element if a function gets it.
    value = ReadableJSONField()
    # How many elements a cursor has committed.
    position: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    # Whether a cursor has come to its end.
    ended: models.BooleanField[bool, bool] = models.BooleanField()
    started_at: models.DateTimeField[datetime, datetime] = InstantField()
    # When it was last committed.
    committed_at: models.DateTimeField[datetime, datetime] = InstantField()

    # A retry from the start, which a store may request, deletes them.
    access: ClassVar = Access(operator=("DELETE",), web={"SELECT": (), "DELETE": ()})

    class Meta:
        db_table = "salon_jobs_job_step"
        constraints: ClassVar = [models.UniqueConstraint(fields=["job_id", "name"], name="salon_jobs_job_step_once")]

    def __str__(self) -> str:
        if self.position is None:
            return self.name
        said = gettext("%(name)s, all %(position)s") if self.ended else gettext("%(name)s, the first %(position)s")
        return said % {"name": self.name, "position": f"{self.position:,}"}


class SupersededRun(Row):
    """A running job whose key a newer job took: it is not retried, even after the newer one has finished.

    A separate row, since an enqueue never touches a running job. A trigger on the job table writes it, the end of a run
    without success reads it, and the workers' maintenance deletes it.
    """

    job_id: models.BigIntegerField[int, int] = models.BigIntegerField(primary_key=True)
    # The lease of the superseded run; later runs of the job are unaffected.
    lease: models.BigIntegerField[int, int] = models.BigIntegerField()

    class Meta:
        db_table = "salon_jobs_superseded"

    def __str__(self) -> str:
        return f"superseded run of job {self.job_id}"


class FanOutRecord(Row):
    """A fan-out and the counts of its jobs; never changes. The progress of its jobs is counted on demand.

    Unique by task, tick and digest (of arguments and label), so that a second one for the same tick adds nothing.
    """

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    task: models.CharField[str, str] = models.CharField(_("task"), max_length=255)
    # The cron tick that added it.
    tick: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    # Hash of the arguments and the label.
    digest: models.CharField[str, str] = models.CharField(max_length=64)
    label: models.CharField[str, str] = models.CharField(_("label"), max_length=255, db_default="")
    inserted: models.IntegerField[int, int] = models.IntegerField(_("inserted"), db_default=0)
    # Stores that already had a waiting job with this key.
    kept: models.IntegerField[int, int] = models.IntegerField(db_default=0)
    # Paused stores, which got no job.
    paused: models.IntegerField[int, int] = models.IntegerField(db_default=0)
    created_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())

    class Meta:
        db_table = "salon_jobs_fan_out"
        verbose_name = _("fan-out")
        verbose_name_plural = _("fan-outs")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["task", "tick", "digest"], name="salon_jobs_fan_out_once")
        ]
        indexes: ClassVar = [models.Index(fields=["created_at"], name="salon_jobs_fan_out_created")]

    def __str__(self) -> str:
        return f"{self.task} #{self.pk}"


class UniqueMark(Row):
    """An enqueue with ``unique_for``: until the mark expires, the same enqueue adds nothing, even if its job is gone.

    Only salon_jobs_add_jobs writes it. It has only the id of the job: ``id`` is a digest of task, store, and key or
    arguments.
    """

    id: models.UUIDField[UUID, UUID] = models.UUIDField(primary_key=True)
    job_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    # When it expires, and may be deleted.
    expires_at: models.DateTimeField[datetime, datetime] = InstantField()

    class Meta:
        db_table = "salon_jobs_unique"
        indexes: ClassVar = [models.Index(fields=["expires_at"], name="salon_jobs_unique_expires")]

    def __str__(self) -> str:
        return f"mark of job {self.job_id}"


class FollowUp(Row):
    """A job to enqueue when others have ended: its options, and the number of jobs left.

    Written only by functions; the row is deleted when its job is enqueued.
    """

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    # Jobs that have not ended.
    remaining: models.IntegerField[int, int] = models.IntegerField()
    task: models.CharField[str, str] = models.CharField(max_length=255)
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    payload = ReadableJSONField()
    # Options of the job, in the form of an enqueue.
    options = models.JSONField()
    # The jobs it waits for: task, number, first and last ID, fan-out.
    follows = models.JSONField(null=True)
    created_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())

    access: ClassVar = Access(operator=("DELETE",), worker=("SELECT",))

    class Meta:
        db_table = "salon_jobs_follow_up"

    def __str__(self) -> str:
        return f"{self.task} after {self.remaining} jobs"


def drop_loaded_follow_up(instance: FollowUp, *, raw: bool, using: str, **_: object) -> None:
    """Delete a follow-up that ``loaddata`` brings: with no jobs left, its job would be enqueued here.

    Receiver of ``post_save``, since ``loaddata`` cannot leave a row out.
    """
    if raw:
        FollowUp.objects.using(using).filter(pk=instance.pk).delete()


post_save.connect(drop_loaded_follow_up, sender=FollowUp)
