"""Stores and instants as operators read them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from salon_jobs.core.units import distance, pause_details
from salon_jobs.schedules.entries import CronEntry


def instant(at: datetime) -> str:
    """Format an instant in the page's time zone, like the admin's own columns."""
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S %Z}"


def followed(follows: Mapping[str, Any]) -> str:
    """Return whose end enqueued a job, from its column ``follows``."""
    if follows["jobs"] == 1:
        return f"the end of {follows['task']} #{follows['first']}"
    which = f"fan-out {follows['fan_out']}" if follows["fan_out"] else f"#{follows['first']} to #{follows['last']}"
    return f"the end of {follows['jobs']:,} jobs of {follows['task']}, {which}"


def pause_of(row: Any) -> str:
    """Return "paused", and what ``who_paused`` returns."""
    return f"paused {who_paused(row)}".rstrip()


def who_paused(row: Any) -> str:
    """Return by whom and since when a limit or destination is paused; "" if neither is known."""
    return pause_details(row.paused_by, row.paused_at and timezone.localtime(row.paused_at))


def override_of(row: Any, declared: CronEntry) -> str:
    """Return instead of which declared line an entry has its own, by whom and since when; "" if it has none."""
    if not row.line:
        return ""
    at = row.overridden_at and timezone.localtime(row.overridden_at)
    return f"instead of {declared.expression.line}, {pause_details(row.overridden_by, at)}".rstrip(", ")


def ago(at: datetime, now: datetime) -> SafeString:
    """Format an instant by its distance from now, with the instant itself as a tooltip."""
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), instant(at), distance(at, now))


def exact(at: datetime, now: datetime) -> SafeString:
    """Format an instant, followed by its distance from now."""
    return format_html('<time datetime="{}">{}</time>, {}', at.isoformat(), instant(at), distance(at, now))
