"""Customers and their notes."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from project.salon.models.store import StoreOwned
from salon_jobs.access import SameStoreForeignKey, StoreIsolation


class Customer(StoreOwned):
    """One customer. ``deleted_at`` hides the row; after 90 days it is physically deleted."""

    name = models.CharField(max_length=120)
    email = models.EmailField()
    deleted_at = models.DateTimeField(null=True)

    class Meta(StoreOwned.Meta):
        db_table = "customer"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["store", "id"], name="customer_store_id"),
            StoreIsolation(field="store", name="customer_isolation"),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["store", "deleted_at"], condition=models.Q(deleted_at__isnull=False), name="customer_deleted"
            )
        ]

    def __str__(self) -> str:
        return self.name


class CustomerNote(StoreOwned):
    """One note about a customer. ``deleted_at`` hides the row; after 7 days it is physically deleted."""

    customer = models.ForeignKey(
        Customer, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    body = models.TextField()
    deleted_at = models.DateTimeField(null=True)

    class Meta(StoreOwned.Meta):
        db_table = "customer_note"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["store", "id"], name="customer_note_store_id"),
            SameStoreForeignKey(field="customer", name="customer_note_customer_of_same_store"),
            StoreIsolation(field="store", name="customer_note_isolation"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["store", "customer"], name="customer_note_customer"),
            models.Index(
                fields=["store", "deleted_at"],
                condition=models.Q(deleted_at__isnull=False),
                name="customer_note_deleted",
            ),
        ]

    def __str__(self) -> str:
        return self.body[:40]
