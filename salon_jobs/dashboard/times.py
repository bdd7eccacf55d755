"""Instants as operators read them."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from salon_jobs.core.units import duration


def instant(at: datetime) -> str:
    """Format an instant in the page's time zone, as the admin's own columns are."""
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S %Z}"


def ago(at: datetime, now: datetime) -> SafeString:
    """Format an instant by its distance from now, with the instant itself as a tooltip."""
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), instant(at), _distance(at, now))


def exact(at: datetime, now: datetime) -> SafeString:
    """Format an instant, followed by its distance from now."""
    return format_html('<time datetime="{}">{}</time>, {}', at.isoformat(), instant(at), _distance(at, now))


def _distance(at: datetime, now: datetime) -> str:
    distance_s = (now - at).total_seconds()
    if abs(distance_s) < 1:
        return "now"
    return f"{duration(distance_s)} ago" if distance_s > 0 else f"in {duration(-distance_s)}"
