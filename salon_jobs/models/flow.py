"""Models of flows, their members, what each member still waits for, and what a transaction changes of jobs."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar
from uuid import UUID

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.db.models.signals import pre_save

from salon_jobs.core.records import JobState, StoreId
from salon_jobs.core.rights import READ, Access
from salon_jobs.models.fields import InstantField, StoreIdField
from salon_jobs.models.row import Row


class FlowRecord(Row):
    """A flow. Written by SQL functions only."""

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    name: models.CharField[str, str] = models.CharField(max_length=255)
    # Refuses a second flow of this name until all members have ended.
    key: models.CharField[str | None, str | None] = models.CharField(max_length=512, null=True)  # noqa: DJ001 - NULL means "no key" to the unique index
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    created_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    # When a member last ended or was retried.
    changed_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())

    # Read by the web for its store; written by functions only.
    access: ClassVar = Access(operator=("DELETE",), web=READ, worker=("SELECT", "UPDATE", "DELETE"))

    class Meta:
        db_table = "salon_jobs_flow"
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["store_id", "name", "key"],
                condition=Q(key__isnull=False),
                nulls_distinct=False,
                name="salon_jobs_flow_key",
            )
        ]
        indexes: ClassVar = [models.Index(fields=["changed_at"], name="salon_jobs_flow_changed")]

    def __str__(self) -> str:
        return f"{self.name} #{self.pk}"


class FlowMember(Row):
    """A job of a flow, and its outcome, which outlives the job and decides others. Written by SQL functions only."""

    job_id: models.BigIntegerField[int, int] = models.BigIntegerField(primary_key=True)
    flow_id: models.BigIntegerField[int, int] = models.BigIntegerField()
    # The flow's store.
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    task: models.CharField[str, str] = models.CharField(max_length=255)
    # How its predecessors must end: succeeded, failed (one of them) or ended.
    condition: models.CharField[str, str] = models.CharField(max_length=9)
    # IDs of its predecessors.
    after = models.JSONField()
    # The earliest time for it to run.
    run_at: models.DateTimeField[datetime, datetime] = InstantField()
    # succeeded, failed, cancelled, or skipped: cancelled by the flow.
    outcome: models.CharField[str | None, str | None] = models.CharField(max_length=9, null=True)  # noqa: DJ001 - NULL: it has not ended
    # The pending change of its job: start, cancel or hold.
    move: models.CharField[str | None, str | None] = models.CharField(max_length=6, null=True)  # noqa: DJ001 - NULL: nothing to do

    access: ClassVar = Access(operator=("DELETE",), web=READ, worker=("SELECT", "DELETE"))

    class Meta:
        db_table = "salon_jobs_flow_member"
        indexes: ClassVar = [
            models.Index(fields=["flow_id", "job_id"], name="salon_jobs_flow_member_flow"),
            models.Index(fields=["flow_id"], condition=Q(outcome=None), name="salon_jobs_flow_member_live"),
            models.Index(fields=["job_id"], condition=Q(move__isnull=False), name="salon_jobs_flow_member_moves"),
        ]

    def __str__(self) -> str:
        return f"{self.task} #{self.pk}"


def cancel_loaded_member(instance: FlowMember, *, raw: bool, **_: object) -> None:
    """End a member that ``loaddata`` brings as its job is ended there: otherwise its flow would hold its key for ever.

    Receiver of ``pre_save``.
    """
    if raw:
        instance.outcome, instance.move = instance.outcome or JobState.CANCELLED.value, None


pre_save.connect(cancel_loaded_member, sender=FlowMember)


class FlowEdge(Row):
    """A predecessor for which a member waits, or that did not end as required. Written by SQL functions only."""

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    job_id: models.BigIntegerField[int, int] = models.BigIntegerField()
    after_id: models.BigIntegerField[int, int] = models.BigIntegerField()
    # The flow's store.
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)

    access: ClassVar = Access(operator=("DELETE",), web=READ, worker=("SELECT", "DELETE"))

    class Meta:
        db_table = "salon_jobs_flow_edge"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["job_id", "after_id"], name="salon_jobs_flow_edge_once")
        ]
        indexes: ClassVar = [models.Index(fields=["after_id"], name="salon_jobs_flow_edge_after")]

    def __str__(self) -> str:
        return f"#{self.job_id} after #{self.after_id}"


class JobChange(Row):
    """One change of a job that others come after, in the transaction that makes it. Written only by triggers.

    The commit takes it and does what follows, so no other transaction ever sees one. The table is unlogged.
    """

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    transaction_id: models.BigIntegerField[int, int] = models.BigIntegerField()
    job_id: models.BigIntegerField[int, int] = models.BigIntegerField()
    # The flow or the follow-up.
    of_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    # Of ordered jobs that were added, up to 256 from job_id on: the number of these 256 IDs.
    block: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    # The key that it let go.
    key_id: models.UUIDField[UUID | None, UUID | None] = models.UUIDField(null=True)
    # flow, then (a follow-up) or key (of ordered jobs).
    kind: models.CharField[str, str] = models.CharField(max_length=4)
    # succeeded, failed, cancelled or queued; held: queued by its flow; look: it got a new follower.
    became: models.CharField[str, str] = models.CharField(max_length=9)

    # Written and deleted by triggers within one transaction: no row is ever live when a vacuum looks.
    access: ClassVar = Access(
        worker=(),
        storage={
            "autovacuum_vacuum_scale_factor": 0,
            "autovacuum_vacuum_threshold": 5000,
            "autovacuum_vacuum_cost_delay": 0,
        },
    )

    class Meta:
        db_table = "salon_jobs_change"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["transaction_id", "block"], name="salon_jobs_change_transaction")
        ]

    def __str__(self) -> str:
        return f"#{self.job_id} {self.became}"
