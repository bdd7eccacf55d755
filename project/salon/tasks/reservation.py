"""Expiry of tentative reservations."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from django.db.models.functions import Now

from project.salon.models.reservation import Reservation, ReservationStatus
from salon_jobs import fan_out, store_task, task


@task(name="expire-tentative-reservations", max_attempts=3)
def expire_tentative_reservations(reason: Literal["cron"]) -> None:
    """Enqueue one job per store. Idempotent: a store whose job is still waiting gets no second one."""
    fan_out(expire_tentative_for_store)


@store_task(
    name="expire-tentative-for-store",
    max_attempts=10,
    job_key="expire_tentative:{store_id}",
    job_key_mode="preserve_run_at",
)
def expire_tentative_for_store(store_id: UUID) -> None:
    """Expire overdue reservations by the database's clock, in one statement. Idempotent.

    The job has no cutoff of its own: whenever it runs, a reservation is expired exactly if its time has come.
    """
    Reservation.objects.filter(store_id=store_id, status=ReservationStatus.TENTATIVE, expires_at__lte=Now()).update(
        status=ReservationStatus.EXPIRED
    )
