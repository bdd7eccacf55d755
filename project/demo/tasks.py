"""Declares what becomes of the messages on their way back. The salon's own twelve tasks are the salon's."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from project.salon.business_day import JST
from project.salon.models import CustomerNote, Reservation
from salon_jobs import store_task


@store_task(name="record-confirmation")
def record_confirmation(store_id: UUID, reservation_id: UUID, starts_at: datetime) -> None:
    """Note with the customer that a reservation was confirmed. Idempotent: the note has the reservation's id."""
    customer_id = Reservation.objects.values_list("customer_id", flat=True).get(pk=reservation_id)
    CustomerNote.objects.get_or_create(
        id=reservation_id,
        defaults={
            "store_id": store_id,
            "customer_id": customer_id,
            "body": f"Confirmed for {starts_at.astimezone(JST):%Y-%m-%d %H:%M}",
        },
    )
