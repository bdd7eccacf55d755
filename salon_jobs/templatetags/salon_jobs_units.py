"""Lets templates write durations, numbers and counts as the admin does."""

from __future__ import annotations

from typing import Final

from django import template

from salon_jobs.core import units
from salon_jobs.jobs.statistics import TaskTotals

register: Final = template.Library()

register.filter("duration", units.duration)
register.filter("number", units.number)
register.filter("counted", units.counted)


@register.filter
def p50(totals: TaskTotals) -> str:
    """Write what half of the runs did not exceed."""
    return units.duration(totals.duration(0.5))


@register.filter
def p95(totals: TaskTotals) -> str:
    """Write what 95 of 100 runs did not exceed."""
    return units.duration(totals.duration(0.95))
