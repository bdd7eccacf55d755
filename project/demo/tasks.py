"""Tasks for returning messages. The salon's own twelve tasks are in the salon app."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from project.salon.business_day import JST
from project.salon.models import CustomerNote, Reservation, UploadedFile
from salon_jobs import store_task


@store_task(name="record-confirmation")
def record_confirmation(store_id: UUID, reservation_id: UUID, starts_at: datetime) -> None:
    """Add a note to the customer that a reservation was confirmed. Idempotent: the note has the reservation's ID."""
    customer_id = Reservation.objects.values_list("customer_id", flat=True).get(pk=reservation_id)
    CustomerNote.objects.get_or_create(
        id=reservation_id,
        defaults={
            "store_id": store_id,
            "customer_id": customer_id,
            "body": f"Confirmed for {starts_at.astimezone(JST):%Y-%m-%d %H:%M}",
        },
    )


@store_task(name="parse-upload")
def parse_upload(store_id: UUID, task_id: UUID) -> None:
    """Count the lines of an uploaded file and add up their amounts. Idempotent."""
    file = UploadedFile.objects.get(pk=task_id)
    amounts = [int(line) for line in file.content.splitlines()]
    file.lines, file.total = len(amounts), sum(amounts)
    file.save(update_fields=["lines", "total"])


class CardRefusedError(Exception):
    """Raised when a bank refuses a card."""


_MOST_YEN = 50_000


@store_task(name="charge-card", max_attempts=1)
def charge_card(store_id: UUID, sale: int, amount: int) -> None:
    """Charge a card; the bank refuses large amounts."""
    if amount > _MOST_YEN:
        raise CardRefusedError(f"the bank refused {amount:,} yen for sale {sale}")


@store_task(name="export-sales", queue="exports")
def export_sales(store_id: UUID, month: str) -> None:
    """Do nothing: the demo pauses this task's queue, as one would during maintenance of another program."""
