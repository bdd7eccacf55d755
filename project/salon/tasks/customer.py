"""Physical deletion of what was deleted long enough ago: customers after 90 days, notes after 7."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

from project.salon.models.customer import Customer, CustomerNote
from project.salon.models.reservation import Reservation
from project.salon.tasks.tick import current_tick
from salon_jobs import fan_out, store_task, task

CUSTOMER_RETENTION: Final = timedelta(days=90)
NOTE_RETENTION: Final = timedelta(days=7)


@task(name="cleanup-deleted-customers", max_attempts=3)
def cleanup_deleted_customers(reason: Literal["cron"]) -> None:
    """Enqueue one job per store, all with one cutoff 90 days before the tick. Idempotent by store and cutoff."""
    fan_out(cleanup_deleted_customers_for_store, cutoff=current_tick() - CUSTOMER_RETENTION)


@store_task(
    name="cleanup-deleted-customers-for-store",
    max_attempts=5,
    job_key="cleanup_customers:{store_id}:{cutoff}",
    job_key_mode="preserve_run_at",
)
def cleanup_deleted_customers_for_store(store_id: UUID, cutoff: datetime) -> None:
    """Delete customers whose ``deleted_at`` is before ``cutoff``, with their notes. Idempotent.

    Their reservations stay, without a customer: they are part of the books.
    """
    gone = Customer.objects.filter(store_id=store_id, deleted_at__lt=cutoff)
    CustomerNote.objects.filter(store_id=store_id, customer__in=gone).delete()
    Reservation.objects.filter(store_id=store_id, customer__in=gone).update(customer=None)
    gone.delete()


@task(name="purge-deleted-customer-notes", max_attempts=3)
def purge_deleted_customer_notes(reason: Literal["cron"]) -> None:
    """Enqueue one job per store, all with one cutoff 7 days before the tick. Idempotent by store and cutoff."""
    fan_out(purge_deleted_customer_notes_for_store, cutoff=current_tick() - NOTE_RETENTION)


@store_task(
    name="purge-deleted-customer-notes-for-store",
    max_attempts=5,
    job_key="purge_customer_notes:{store_id}:{cutoff}",
    job_key_mode="preserve_run_at",
)
def purge_deleted_customer_notes_for_store(store_id: UUID, cutoff: datetime) -> None:
    """Delete notes whose ``deleted_at`` is before ``cutoff``. Idempotent."""
    CustomerNote.objects.filter(store_id=store_id, deleted_at__lt=cutoff).delete()
