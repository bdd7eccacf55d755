"""Tells Sentry's cron monitors of the jobs that cron entries start: one check-in a tick, whatever its attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid5

from django.utils.text import slugify
from sentry_sdk.crons import capture_checkin

from salon_jobs.core import log_events
from salon_jobs.core.tracing import Run
from salon_jobs.schedule.entries import CronEntry, entries_of_tick

if TYPE_CHECKING:
    from sentry_sdk.types import MonitorConfig

_CHECK_INS: Final = UUID("9a4d2c0e-6f5b-4f0c-9d47-1f2f6f5a7c11")
_LONGEST_SLUG: Final = 50
_MARGIN_MINUTES: Final = 5
# How a job ends for good; after any other end it runs again, and its check-in stays open.
_OK: Final = (log_events.JOB_SUCCEEDED,)
_ERROR: Final = (log_events.JOB_FAILED, log_events.JOB_CANCELLED, log_events.JOB_EXPIRED)


def begin(run: Run) -> Sequence[CronEntry]:
    """Check in the entries whose tick this job is, when it runs for the first time; returns them."""
    entries = [] if run.tick is None else entries_of_tick(run.task, run.tick)
    if run.attempt == 1:
        for entry in entries:
            _check_in(entry, run, "in_progress")
    return entries


def end(entries: Sequence[CronEntry], run: Run) -> None:
    """Close their check-ins when the job has ended for good."""
    if run.ended in _OK or run.ended in _ERROR:
        for entry in entries:
            _check_in(entry, run, "ok" if run.ended in _OK else "error")


def _check_in(entry: CronEntry, run: Run, status: str) -> None:
    # Made from what it stands for: whichever process runs the next attempt finds it again.
    name = uuid5(_CHECK_INS, f"{entry.name}/{run.tick}/{run.job_id}").hex
    config: MonitorConfig = {
        "schedule": {"type": "crontab", "value": entry.expression.line},
        "timezone": entry.expression.timezone,
        "checkin_margin": _MARGIN_MINUTES,
    }
    capture_checkin(slug_of(entry.name), name, status, monitor_config=config)


def slug_of(name: str) -> str:
    """Return by what Sentry knows the monitor of an entry: its name, made distinct where a slug can not hold it all."""
    slug = slugify(name)
    if name.isascii() and 0 < len(slug) <= _LONGEST_SLUG:
        return slug
    mark = uuid5(_CHECK_INS, name).hex[:8]
    return f"{slug[: _LONGEST_SLUG - len(mark) - 1]}-{mark}".strip("-")
