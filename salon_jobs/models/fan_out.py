"""Declares the record of a fan-out."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models.functions import Now


class FanOutRecord(models.Model):
    """One fan-out: what it added, never changed afterwards. How far its jobs are is counted when somebody asks.

    Unique by task, tick and digest (of arguments and label): a second one for the same tick adds nothing.
    """

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    task: models.CharField[str, str] = models.CharField(max_length=255)
    tick: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(
        null=True, help_text="The cron tick it stems from"
    )
    digest: models.CharField[str, str] = models.CharField(
        max_length=64, help_text="Hash of the arguments and the label"
    )
    label: models.CharField[str, str] = models.CharField(max_length=255, db_default="")
    inserted: models.IntegerField[int, int] = models.IntegerField(db_default=0, help_text="Jobs it added")
    kept: models.IntegerField[int, int] = models.IntegerField(
        db_default=0, help_text="Stores whose job it met by its key"
    )
    paused: models.IntegerField[int, int] = models.IntegerField(
        db_default=0, help_text="Stores it left out because they are paused"
    )
    created_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "salon_jobs_fan_out"
        verbose_name = "fan-out"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["task", "tick", "digest"], name="salon_jobs_fan_out_once"),
        ]
        indexes: ClassVar = [models.Index(fields=["created_at"], name="salon_jobs_fan_out_created")]

    def __str__(self) -> str:
        return f"{self.task} #{self.pk}"
