"""Confirmation of reservations: the row and the message about it are written in one transaction."""

from __future__ import annotations

from typing import Final

from django.conf import settings

from project.salon.models.reservation import Reservation, ReservationStatus
from salon_jobs import emit

CONFIRMED: Final = "reservation.confirmed"


def confirm(reservation: Reservation) -> None:
    """Confirm a tentative reservation and emit ``reservation.confirmed``, both or neither.

    Call this in the store's context.

    The aggregate is the store, so that an external calendar receives its reservations in the order in which they were
    confirmed.
    """
    reservation.status = ReservationStatus.CONFIRMED
    reservation.save(update_fields=["status"])
    emit(
        settings.RESERVATIONS_DESTINATION,
        aggregate_id=str(reservation.store_id),  # pyright: ignore[reportAttributeAccessIssue]
        event=CONFIRMED,
        payload={"reservation_id": reservation.pk, "starts_at": reservation.starts_at},
    )
