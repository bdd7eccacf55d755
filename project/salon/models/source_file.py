"""Files uploaded by stores, and the tasks of parsing them."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from project.salon.models.store import StoreOwned
from salon_jobs.access import SameStoreForeignKey, StoreIsolation


class SourceFile(StoreOwned):
    """One file from a till: an amount in yen on each line."""

    name = models.CharField(max_length=120)
    content = models.TextField()

    class Meta(StoreOwned.Meta):
        db_table = "source_file"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["store", "id"], name="source_file_store_id"),
            StoreIsolation(field="store", name="source_file_isolation"),
        ]

    def __str__(self) -> str:
        return self.name


class ParseStatus(models.TextChoices):
    """States of a parse task, as the store's page shows them."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class ParseTask(StoreOwned):
    """The parsing of one file. ``lines`` and ``total`` are known once it succeeded, ``error`` once it failed."""

    source_file = models.ForeignKey(
        SourceFile, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    status = models.CharField(max_length=16, choices=ParseStatus.choices, default=ParseStatus.PENDING)
    lines = models.PositiveIntegerField(null=True)
    total = models.PositiveBigIntegerField(null=True, help_text="Yen")
    error = models.TextField(default="")

    class Meta(StoreOwned.Meta):
        db_table = "parse_task"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["store", "id"], name="parse_task_store_id"),
            SameStoreForeignKey(field="source_file", name="parse_task_source_file_of_same_store"),
            StoreIsolation(field="store", name="parse_task_isolation"),
            models.CheckConstraint(condition=models.Q(status__in=ParseStatus.values), name="parse_task_status_known"),
        ]
        indexes: ClassVar = [models.Index(fields=["store", "source_file"], name="parse_task_source_file")]

    def __str__(self) -> str:
        return f"{self.status} parse task"
