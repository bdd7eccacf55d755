"""One entry, as often as cron allows."""

from __future__ import annotations

from salon_jobs import cron
from tests.chaos.failover.tasks import tick

cron("* * * * *", tick)
