"""Declares the inbox: each message that came in, once for each consumer."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar
from uuid import UUID

from django.db import models
from django.db.models.functions import Now


class InboxMessage(models.Model):
    """One message that ``consume_queue`` took: the job it became, or why it was set aside.

    Unique by consumer and message id: what is delivered twice becomes one job. ``message_id`` is text, since other
    producers than salon_jobs choose their own.
    """

    class Status(models.TextChoices):
        """Says what became of the message."""

        ENQUEUED = "enqueued", "became a job"
        SET_ASIDE = "set_aside", "set aside"
        RETRY = "retry", "to be tried again"
        DISMISSED = "dismissed", "dismissed by an operator"

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    consumer: models.CharField[str, str] = models.CharField(max_length=100)
    message_id: models.CharField[str, str] = models.CharField(max_length=255)
    event: models.CharField[str, str] = models.CharField(max_length=255, db_default="")
    producer: models.CharField[str, str] = models.CharField(max_length=255, db_default="")
    store_id: models.UUIDField[UUID | None, UUID | None] = models.UUIDField(null=True)
    received_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(db_default=Now())
    status: models.CharField[str, str] = models.CharField(max_length=16, choices=Status.choices)
    ended_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(
        null=True, help_text="When an operator dismissed it"
    )
    job_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(null=True)
    code: models.CharField[str, str] = models.CharField(max_length=64, db_default="", help_text="Why it was set aside")
    reason: models.TextField[str, str] = models.TextField(db_default="")
    deliveries: models.IntegerField[int, int] = models.IntegerField(db_default=1)
    raw: models.TextField[str, str] = models.TextField(
        db_default="", help_text="What was set aside: its envelope, or what came and was none"
    )

    class Meta:
        db_table = "salon_jobs_inbox"
        verbose_name = "incoming message"
        permissions: ClassVar = [
            ("retry_inboxmessage", "Can retry incoming messages"),
            ("dismiss_inboxmessage", "Can dismiss incoming messages"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["consumer", "message_id"], name="salon_jobs_inbox_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["received_at"], name="salon_jobs_inbox_received"),
            models.Index(
                fields=["status", "consumer", "id"],
                condition=models.Q(status__in=["set_aside", "retry"]),
                name="salon_jobs_inbox_open",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.message_id} for {self.consumer}"
