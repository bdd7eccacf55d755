"""Models of the outbox and the inbox."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar, Final
from uuid import UUID

import pgtrigger
from django.db import models
from django.db.models import Q
from django.db.models.expressions import Combinable
from django.db.models.functions import Now
from django.db.models.signals import pre_save
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from salon_jobs.core.records import PARTITIONS, MessageStatus, StoreId
from salon_jobs.core.rights import READ, Access
from salon_jobs.models.fields import REQUIRED_FEATURES, InstantField, JSONTextField, StoredColumn, StoreIdField, finite
from salon_jobs.models.row import Row

_STATUSES = [(status.value, _(status.value)) for status in MessageStatus]
WORDS = (_("pending"), _("published"), _("failed"), _("skipped"))
_OPEN = Q(status__in=["pending", "failed"])
# So that even SQL written by hand cannot give sent_at a meaning other than the time of the publish.
_TIMES_FIT_STATUS = (
    Q(status="pending", sent_at=None, ended_at=None)
    | Q(status="published", sent_at__isnull=False, ended_at=None)
    | Q(status__in=["failed", "skipped"], sent_at=None, ended_at__isnull=False)
)

_CONTENT: Final = "message_id, aggregate_type, aggregate_id, event, store_id, payload::text, headers::text"
_CONTENT_CHANGED = pgtrigger.Condition(
    " OR ".join(f"OLD.{column} IS DISTINCT FROM NEW.{column}" for column in _CONTENT.split(", "))
)


class PartitionOf(models.Func):
    """Hash of the unit of ordering: an aggregate, or a message by itself when it belongs to none."""

    template = (
        "((CASE WHEN aggregate_id = '' THEN uuid_hash_extended(message_id, 0)"
        " ELSE hashtextextended(aggregate_type || chr(31) || aggregate_id, 0) END) & "
        f"{PARTITIONS - 1})::smallint"
    )


class Message(Row):
    """A message, sent if and only if the transaction that wrote it commits. Only ``emit`` writes it.

    Before any statement inserts here, a trigger takes the gate's lock (sql/hold_gate_function.sql), on which the relay
    relies to read in id order.
    """

    id: models.BigAutoField[int, int] = models.BigAutoField(_("ID"), primary_key=True)
    message_id: models.UUIDField[UUID, UUID] = models.UUIDField(_("message ID"))
    # Destination: an ARN or RN.
    aggregate_type: models.CharField[str, str] = models.CharField(_("destination"), max_length=255)
    aggregate_id: models.CharField[str, str] = models.CharField(_("aggregate ID"), max_length=255, db_default="")
    event: models.CharField[str, str] = models.CharField(_("event"), max_length=255)
    payload = JSONTextField()
    headers = JSONTextField(db_default=models.Value({}, JSONTextField()))
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    producer: models.CharField[str, str] = models.CharField(_("producer"), max_length=255, db_default="")
    status: models.CharField[str, str] = models.CharField(
        _("status"), max_length=16, choices=_STATUSES, db_default=MessageStatus.PENDING.value
    )
    retry_count: models.SmallIntegerField[int, int] = models.SmallIntegerField(_("failed attempts"), db_default=0)
    retry_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    created_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    # When it was published.
    sent_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    # When it failed or was skipped.
    ended_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    last_error: models.TextField[str, str] = models.TextField(_("last error"), db_default="")
    replay_of: models.UUIDField[UUID | None, UUID | None] = models.UUIDField(_("replay of"), null=True)
    partition = StoredColumn(
        verbose_name=_("partition"),
        expression=PartitionOf(output_field=models.SmallIntegerField()),
        output_field=models.SmallIntegerField(),
        db_persist=True,
    )

    access: ClassVar = Access(
        operator=("INSERT", "UPDATE", "DELETE"),
        web=READ,
        # A message is two row versions within milliseconds: written, published.
        storage={
            "autovacuum_vacuum_scale_factor": 0,
            "autovacuum_vacuum_threshold": 20000,
            "autovacuum_vacuum_cost_delay": 0,
            "autovacuum_vacuum_insert_scale_factor": 0,
            "autovacuum_vacuum_insert_threshold": 100000,
            "autovacuum_analyze_scale_factor": 0.02,
        },
    )

    class Meta:
        db_table = "salon_jobs_message"
        required_db_features = REQUIRED_FEATURES
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["message_id"], name="salon_jobs_message_once"),
            models.CheckConstraint(
                condition=Q(status__in=[status.value for status in MessageStatus]), name="salon_jobs_message_status"
            ),
            models.CheckConstraint(
                condition=Q(
                    aggregate_type__regex=r"^(arn|rn):[a-z0-9-]*:[a-z][a-z0-9-]*:[a-z0-9-]*:[A-Za-z0-9-]*:[^[:space:]:]+$"
                ),
                name="salon_jobs_message_destination",
            ),
            models.CheckConstraint(condition=~Q(event=""), name="salon_jobs_message_event"),
            models.CheckConstraint(condition=_TIMES_FIT_STATUS, name="salon_jobs_message_times"),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["aggregate_type", "partition", "id"],
                condition=Q(status="pending"),
                name="salon_jobs_message_pending",
            ),
            models.Index(
                fields=["aggregate_type", "aggregate_id", "id"], condition=_OPEN, name="salon_jobs_message_open"
            ),
            # For operators, on rare rows.
            models.Index(
                fields=["status", "id"], condition=Q(status__in=["failed", "skipped"]), name="salon_jobs_message_ended"
            ),
        ]
        triggers: ClassVar = [
            pgtrigger.Protect(
                name="content_never_changes",
                operation=pgtrigger.UpdateOf(  # type: ignore[no-untyped-call]
                    "message_id", "aggregate_type", "aggregate_id", "event", "payload", "headers", "store_id"
                ),
                condition=_CONTENT_CHANGED,
            )
        ]
        permissions: ClassVar = [
            ("retry_message", "Can retry messages"),
            ("skip_message", "Can skip messages"),
            ("replay_message", "Can send messages again"),
        ]

    def __str__(self) -> str:
        return f"{self.event} #{self.pk}"


def skip_loaded_message(instance: Message, *, raw: bool, **_: object) -> None:
    """Skip a message that ``loaddata`` brings before it is written: it was, or will be, published elsewhere.

    Receiver of ``pre_save``.
    """
    if raw and instance.status == MessageStatus.PENDING:
        instance.status, instance.last_error = MessageStatus.SKIPPED.value, "loaded from a fixture"
        instance.ended_at = datetime.now(UTC)


pre_save.connect(skip_loaded_message, sender=Message)


class BlockedAggregate(Row):
    """A blocked aggregate: its next message could not be published and waits for a retry, or is parked for an operator.

    While the row exists, the relay sends nothing of that aggregate. A message without an aggregate has its own row
    (``aggregate_id`` "") while it waits.
    """

    class Status(models.TextChoices):
        """State of a blocked aggregate."""

        WAITING = "waiting", _("waiting for a retry")
        PARKED = "parked", _("parked")

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    aggregate_type: models.CharField[str, str] = models.CharField(_("destination"), max_length=255)
    aggregate_id: models.CharField[str, str] = models.CharField(_("aggregate ID"), max_length=255, db_default="")
    partition: models.SmallIntegerField[int, int] = models.SmallIntegerField()
    # The message that the later ones wait for.
    head_id: models.BigIntegerField[int, int] = models.BigIntegerField(unique=True)
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    status: models.CharField[str, str] = models.CharField(_("status"), max_length=16, choices=Status.choices)
    retry_count: models.SmallIntegerField[int, int] = models.SmallIntegerField(_("failed attempts"), db_default=0)
    retry_at: models.DateTimeField[datetime | Combinable | None, datetime | None] = InstantField(null=True)
    since: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    code: models.CharField[str, str] = models.CharField(_("code"), max_length=64, db_default="")
    error: models.TextField[str, str] = models.TextField(_("error"), db_default="")

    access: ClassVar = Access(operator=("INSERT", "UPDATE", "DELETE"), web=READ)

    class Meta:
        db_table = "salon_jobs_blocked_aggregate"
        verbose_name = _("blocked aggregate")
        verbose_name_plural = _("blocked aggregates")
        required_db_features = REQUIRED_FEATURES
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["aggregate_type", "aggregate_id"],
                condition=~Q(aggregate_id=""),
                name="salon_jobs_blocked_aggregate_one",
            )
        ]
        indexes: ClassVar = [
            models.Index(fields=["partition", "retry_at"], name="salon_jobs_blocked_partition"),
            models.Index(fields=["store_id", "id"], name="salon_jobs_blocked_store"),
        ]

    def __str__(self) -> str:
        return f"{self.aggregate_type} {self.aggregate_id}"


class RelayPartition(Row):
    """A partition of the aggregates and the relay that owns it.

    ``beat`` changes while the owner lives; ``epoch`` with each change of owner, which fences writes of a former owner.
    """

    partition: models.SmallIntegerField[int, int] = models.SmallIntegerField(_("partition"), primary_key=True)
    # The relay that owns it.
    owner: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    epoch: models.BigIntegerField[int, int] = models.BigIntegerField(db_default=0)
    beat: models.BigIntegerField[int, int] = models.BigIntegerField(db_default=0)

    # One row per partition or destination, updated every few seconds.
    access: ClassVar = Access(storage={"fillfactor": 50})

    class Meta:
        db_table = "salon_jobs_partition"
        verbose_name = _("relay partition")
        verbose_name_plural = _("relay partitions")

    def __str__(self) -> str:
        return gettext("partition %(number)s") % {"number": self.partition}


class DestinationState(Row):
    """An aggregate type: its remaining tokens, whether it is paused, and its current outage."""

    aggregate_type: models.CharField[str, str] = models.CharField(_("destination"), primary_key=True, max_length=255)
    tokens: models.FloatField[float, float] = models.FloatField(db_default=0.0)
    refilled_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    paused: models.BooleanField[bool, bool] = models.BooleanField(db_default=False)
    # When it was paused.
    paused_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True, editable=False)
    # Who paused it.
    paused_by: models.CharField[str, str] = models.CharField(max_length=255, db_default="", default="", editable=False)
    outage_since: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    outage_code: models.CharField[str, str] = models.CharField(_("outage code"), max_length=64, db_default="")
    outage: models.TextField[str, str] = models.TextField(_("outage"), db_default="")

    access: ClassVar = Access(operator=("INSERT", "UPDATE"), storage={"fillfactor": 50})

    class Meta:
        db_table = "salon_jobs_destination"
        verbose_name = _("destination")
        verbose_name_plural = _("destinations")
        permissions: ClassVar = [("pause_destinationstate", "Can pause and resume destinations")]
        constraints: ClassVar = [
            # An infinite one keeps tokens from this destination, and before PostgreSQL 17 from all.
            models.CheckConstraint(condition=finite("refilled_at"), name="salon_jobs_destination_refilled")
        ]

    def __str__(self) -> str:
        return self.aggregate_type


class Replay(Row):
    """A replay: messages that an operator sent again under new ids, with the operator, reason, selection and count."""

    id: models.BigAutoField[int, int] = models.BigAutoField(_("ID"), primary_key=True)
    requested_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    requested_by: models.CharField[str, str] = models.CharField(_("requested by"), max_length=255)
    reason: models.CharField[str, str] = models.CharField(_("reason"), max_length=1000, db_default="")
    criteria = models.JSONField(_("criteria"))
    messages: models.IntegerField[int, int] = models.IntegerField(_("messages"))

    access: ClassVar = Access(operator=("INSERT",))

    class Meta:
        db_table = "salon_jobs_replay"
        verbose_name = _("replay")
        verbose_name_plural = _("replays")

    def __str__(self) -> str:
        said = ngettext("%(count)s message by %(user)s", "%(count)s messages by %(user)s", self.messages)
        return said % {"count": self.messages, "user": self.requested_by}


class InboxMessage(Row):
    """A message that ``consume_queue`` received: its job, or the reason for its rejection.

    Unique by consumer and message id, so that duplicate deliveries become one job. ``message_id`` is text, since other
    producers than salon_jobs choose their own.
    """

    class Status(models.TextChoices):
        """State of a received message."""

        ENQUEUED = "enqueued", _("became a job")
        REJECTED = "rejected", _("rejected")
        RETRY = "retry", _("to be retried")
        DISMISSED = "dismissed", _("dismissed")

    id: models.BigAutoField[int, int] = models.BigAutoField(_("ID"), primary_key=True)
    consumer: models.CharField[str, str] = models.CharField(_("consumer"), max_length=100)
    message_id: models.CharField[str, str] = models.CharField(_("message ID"), max_length=255)
    event: models.CharField[str, str] = models.CharField(_("event"), max_length=255, db_default="")
    producer: models.CharField[str, str] = models.CharField(_("producer"), max_length=255, db_default="")
    store_id: models.Field[StoreId | None, StoreId | None] = StoreIdField(null=True)
    received_at: models.DateTimeField[datetime, datetime] = InstantField(db_default=Now())
    status: models.CharField[str, str] = models.CharField(_("status"), max_length=16, choices=Status.choices)
    # When an operator dismissed it.
    ended_at: models.DateTimeField[datetime | None, datetime | None] = InstantField(null=True)
    job_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    code: models.CharField[str, str] = models.CharField(_("code"), max_length=64, db_default="")
    reason: models.TextField[str, str] = models.TextField(_("reason"), db_default="")
    deliveries: models.IntegerField[int, int] = models.IntegerField(_("deliveries"), db_default=1)
    # Message as received.
    raw: models.TextField[str, str] = models.TextField(db_default="")

    access: ClassVar = Access(operator=("INSERT", "UPDATE", "DELETE"))

    class Meta:
        db_table = "salon_jobs_inbox"
        required_db_features = REQUIRED_FEATURES
        verbose_name = _("incoming message")
        verbose_name_plural = _("incoming messages")
        permissions: ClassVar = [
            ("retry_inboxmessage", "Can retry incoming messages"),
            ("dismiss_inboxmessage", "Can dismiss incoming messages"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["consumer", "message_id"], name="salon_jobs_inbox_once")
        ]
        indexes: ClassVar = [
            models.Index(fields=["received_at"], name="salon_jobs_inbox_received"),
            models.Index(
                fields=["status", "consumer", "id"],
                condition=Q(status__in=["rejected", "retry"]),
                name="salon_jobs_inbox_open",
            ),
        ]

    def __str__(self) -> str:
        return gettext("%(message)s for %(consumer)s") % {"message": self.message_id, "consumer": self.consumer}


def keep_loaded_rejected(instance: InboxMessage, *, raw: bool, **_: object) -> None:
    """Leave a message rejected that ``loaddata`` brings with a request to retry it, which was made elsewhere.

    Receiver of ``pre_save``.
    """
    if raw and instance.status == InboxMessage.Status.RETRY.value:
        instance.status = InboxMessage.Status.REJECTED.value


pre_save.connect(keep_loaded_rejected, sender=InboxMessage)
