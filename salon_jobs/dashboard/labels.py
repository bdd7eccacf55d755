"""Stores and instants as operators read them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from salon_jobs.core.records import JobState
from salon_jobs.core.units import gettext_noop
from salon_jobs.schedules.entries import CronEntry
from salon_jobs.words import distance, pause_details


def instant(at: datetime) -> str:
    """Format an instant in the page's time zone, like the admin's own columns."""
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S %Z}"


def followed(follows: Mapping[str, Any]) -> str:
    """Return whose end enqueued a job, from its column ``follows``."""
    if follows["jobs"] == 1:
        return gettext("the end of %(task)s #%(first)s") % follows
    if follows["fan_out"]:
        said = gettext("the end of %(jobs)s jobs of %(task)s, fan-out %(fan_out)s")
    else:
        said = gettext("the end of %(jobs)s jobs of %(task)s, #%(first)s to #%(last)s")
    return said % {**follows, "jobs": f"{follows['jobs']:,}"}


# Of the reasons that are codes of ours; of those of errors, the reference has a list.
_REASONS: Final = {
    "attempts_exhausted": gettext_noop("its last attempt failed"),
    "not_retried": gettext_noop("its error is not retried"),
    "process_died": gettext_noop("its processes died"),
    "superseded": gettext_noop("a newer job has its key"),
}


# What schedule_results and cron_results say of a job that was gone before its tick could be written to.
ENDED: Final = gettext_noop("ended")


def became_of(outcome: str | None) -> str:
    """Return what became of a tick, in words: its state, and the reason; one that is no code of ours as recorded."""
    state, colon, reason = (outcome or ENDED).partition(":")
    reason = reason.strip()
    if state == JobState.CANCELLED and reason == JobState.CANCELLED:
        return gettext(state)
    return f"{gettext(state)}{colon and ': '}{gettext(_REASONS[reason]) if reason in _REASONS else reason}"


def pause_of(row: Any) -> str:
    """Return "paused", and what ``who_paused`` returns."""
    return f"{gettext('paused')} {who_paused(row)}".rstrip()


def who_paused(row: Any) -> str:
    """Return by whom and since when a limit or destination is paused; "" if neither is known."""
    return pause_details(row.paused_by, row.paused_at and timezone.localtime(row.paused_at))


def override_of(row: Any, declared: CronEntry) -> str:
    """Return instead of which declared line an entry has its own, by whom and since when; "" if it has none."""
    if not row.line:
        return ""
    at = row.overridden_at and timezone.localtime(row.overridden_at)
    instead = gettext("instead of %(line)s") % {"line": declared.expression.line}
    return f"{instead}, {pause_details(row.overridden_by, at)}".rstrip(", ")


def ago(at: datetime, now: datetime) -> SafeString:
    """Format an instant by its distance from now, with the instant itself as a tooltip."""
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), instant(at), distance(at, now))


def exact(at: datetime, now: datetime) -> SafeString:
    """Format an instant, followed by its distance from now."""
    return format_html('<time datetime="{}">{}</time>, {}', at.isoformat(), instant(at), distance(at, now))
