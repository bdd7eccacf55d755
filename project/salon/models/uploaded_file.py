"""Files uploaded by stores."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from project.salon.models.store import StoreOwned
from salon_jobs.access import StoreIsolation


class UploadedFile(StoreOwned):
    """One file from a till: an amount in yen on each line. ``lines`` and ``total`` are null until it is parsed."""

    name = models.CharField(max_length=120)
    content = models.TextField()
    lines = models.PositiveIntegerField(null=True)
    total = models.PositiveBigIntegerField(null=True, help_text="Yen")

    class Meta(StoreOwned.Meta):
        db_table = "uploaded_file"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["store", "id"], name="uploaded_file_store_id"),
            StoreIsolation(field="store", name="uploaded_file_isolation"),
        ]

    def __str__(self) -> str:
        return self.name
