"""Reservations."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from project.salon.models.customer import Customer
from project.salon.models.store import StoreOwned
from salon_jobs.access import SameStoreForeignKey, StoreIsolation


class ReservationStatus(models.TextChoices):
    """States of a reservation: tentative until the customer confirms or it expires."""

    TENTATIVE = "tentative"
    CONFIRMED = "confirmed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Reservation(StoreOwned):
    """One booking. A tentative one holds its chair until ``expires_at``. It outlives a deleted customer."""

    customer = models.ForeignKey(
        Customer, on_delete=models.DO_NOTHING, null=True, db_constraint=False, db_index=False, related_name="+"
    )
    status = models.CharField(max_length=16, choices=ReservationStatus.choices, default=ReservationStatus.TENTATIVE)
    starts_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, help_text="When a tentative reservation lapses")

    class Meta(StoreOwned.Meta):
        db_table = "reservation"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["store", "id"], name="reservation_store_id"),
            SameStoreForeignKey(field="customer", name="reservation_customer_of_same_store"),
            StoreIsolation(field="store", name="reservation_isolation"),
            models.CheckConstraint(
                condition=models.Q(status__in=ReservationStatus.values), name="reservation_status_known"
            ),
            models.CheckConstraint(
                condition=~models.Q(status=ReservationStatus.TENTATIVE) | models.Q(expires_at__isnull=False),
                name="reservation_tentative_expires",
            ),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["store", "expires_at"], condition=models.Q(status="tentative"), name="reservation_tentative"
            ),
            models.Index(fields=["store", "customer"], name="reservation_customer"),
        ]

    def __str__(self) -> str:
        return f"{self.status} reservation for {self.starts_at:%Y-%m-%d %H:%M}"
