"""Store model."""

import uuid
from typing import ClassVar

from django.db import models

from salon_jobs.access import StoreIsolation


class Store(models.Model):
    """One tenant."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)

    class Meta:
        constraints: ClassVar = [StoreIsolation(field="id", name="store_isolation")]

    def __str__(self) -> str:
        return str(self.pk)
