"""The store, which is the tenant, and the base of every store-owned model."""

from __future__ import annotations

import uuid
from typing import ClassVar
from zoneinfo import ZoneInfo

from django.db import models

from project.salon.business_day import JST
from salon_jobs.access import StoreIsolation


class Store(models.Model):
    """One salon. Under row-level security, a role sees only the current store's row. All salons are in Japan."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    name = models.CharField(max_length=120)

    class Meta:
        db_table = "store"
        constraints: ClassVar = [StoreIsolation(field="id", name="store_isolation")]

    def __str__(self) -> str:
        return self.name

    @property
    def time_zone(self) -> ZoneInfo:
        """The store's time zone."""
        return JST


class StoreOwned(models.Model):
    """Base model with a store, and an ID that can be referenced only together with the store.

    References between store-owned rows are composite, ``(store_id, …)``, because PostgreSQL checks foreign keys without
    row-level security. Django's own are not, so the fields use ``db_constraint=False`` with a ``SameStoreForeignKey``.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    store = models.ForeignKey(Store, on_delete=models.DO_NOTHING, related_name="+", db_index=False)

    class Meta:
        abstract = True
