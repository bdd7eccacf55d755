"""Wakes relays: after the commit of whoever emitted, and when an operator changed something."""

from __future__ import annotations

from typing import Final

from django.db import connections

from salon_jobs.conf import settings as conf
from salon_jobs.tenancy.wake_up import WakeUps

CHANNEL: Final = "salon_jobs_message"
# What a notification carries when an operator changed what relays keep in memory.
OPERATOR: Final = "operator"
wake_ups: Final = WakeUps(CHANNEL)


def after_commit(*, using: str | None = None) -> None:
    """Arrange one wake-up for when the caller's transaction commits. Never fails it."""
    wake_ups.after_commit(using or conf.database)


def operator_changed(*, using: str) -> None:
    """Tell relays, with the caller's transaction, to look again at what is blocked and paused."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, OPERATOR])
