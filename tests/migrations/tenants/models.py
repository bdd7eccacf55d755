"""Declares a store."""

import uuid

from django.db import models


class Store(models.Model):
    """One tenant."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)

    def __str__(self) -> str:
        return str(self.pk)
