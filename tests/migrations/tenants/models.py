"""Store model."""

import uuid
from typing import Any, ClassVar

from django.conf import settings
from django.db import models

from salon_jobs.access import StoreIsolation


def primary_key() -> Any:
    """Return the key of a store, of the type that the environment says."""
    if getattr(settings, "TENANTS_KEY", "uuid") == "bigint":
        return models.BigAutoField(primary_key=True, serialize=False)
    return models.UUIDField(primary_key=True, default=uuid.uuid4, serialize=False)


class Store(models.Model):
    """One tenant."""

    id = primary_key()

    class Meta:
        constraints: ClassVar = [StoreIsolation(field="id", name="store_isolation")]

    def __str__(self) -> str:
        return str(self.pk)
