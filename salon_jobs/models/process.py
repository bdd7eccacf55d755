"""Declares the row by which a process shows that it lives."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models.functions import Now


class Process(models.Model):
    """One running process. Its jobs are its own while ``heartbeat_at`` is fresh."""

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    kind: models.CharField[str, str] = models.CharField(max_length=16)
    hostname: models.CharField[str, str] = models.CharField(max_length=255)
    pid: models.IntegerField[int, int] = models.IntegerField()
    supervisor_id: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(
        null=True, help_text="The row of the process that started it"
    )
    queues = models.JSONField(null=True, help_text="The queues it serves; null means all")
    concurrency: models.IntegerField[int, int] = models.IntegerField(db_default=1)
    started_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(db_default=Now())
    heartbeat_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "salon_jobs_process"
        verbose_name_plural = "processes"
        indexes: ClassVar = [models.Index(fields=["heartbeat_at"], name="salon_jobs_process_beat")]

    def __str__(self) -> str:
        return f"{self.kind} {self.hostname}/{self.pid}"
