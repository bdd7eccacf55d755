"""Scheduled tasks. Times are UTC, which has no daylight saving time; Japan is nine hours ahead.

``payload`` receives the tick, the instant the entry is due: dates are computed from it, never from the clock. A missed
nightly entry (because of a deploy or an outage) is backfilled for up to six hours; the five-minute entry is not,
because its next run does all the work.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from project.salon.business_day import ONE_DAY, jst_date
from project.salon.tasks import customer, operator, register, reservation
from salon_jobs import cron

_CRON: Final = {"reason": "cron"}
_NIGHTLY_BACKFILL: Final = timedelta(hours=6)


def _day_before(tick: datetime) -> dict[str, Any]:
    return {"target_date": jst_date(tick) - ONE_DAY, **_CRON}


cron("*/5 * * * *", reservation.expire_tentative_reservations, payload=_CRON)
cron("0 15 * * *", customer.purge_deleted_customer_notes, payload=_CRON, backfill=_NIGHTLY_BACKFILL)  # 00:00 JST
cron("0 16 * * *", operator.cleanup_expired_operator_sessions, payload=_CRON, backfill=_NIGHTLY_BACKFILL)  # 01:00 JST
cron("0 16 * * *", operator.cleanup_expired_operator_invitations, payload=_CRON, backfill=_NIGHTLY_BACKFILL)
cron("0 17 * * *", customer.cleanup_deleted_customers, payload=_CRON, backfill=_NIGHTLY_BACKFILL)  # 02:00 JST
cron("0 18 * * *", register.aggregate_daily_sales, payload=_day_before, backfill=_NIGHTLY_BACKFILL)  # 03:00 JST
