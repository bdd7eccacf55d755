"""Translated texts for jobs, messages and limits: instants, durations, rates, and reasons.

Logs, metrics and stored texts are not translated; they use ``core.units``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext_lazy

from salon_jobs.core import units
from salon_jobs.core.records import JobState
from salon_jobs.core.units import gettext_noop, short_rate

duration: Final = partial(units.duration, translate=gettext)
relative_time: Final = partial(units.relative_time, translate=gettext)
about: Final = partial(units.about, translate=gettext)

_RATES: Final = {
    "s": ngettext_lazy("%(number)s job per second", "%(number)s jobs per second", "jobs"),
    "m": ngettext_lazy("%(number)s job per minute", "%(number)s jobs per minute", "jobs"),
    "h": ngettext_lazy("%(number)s job per hour", "%(number)s jobs per hour", "jobs"),
    "d": ngettext_lazy("%(number)s job per day", "%(number)s jobs per day", "jobs"),
}
_SCOPES: Final = {
    "queue": gettext_noop("queue %(name)s"),
    "task": gettext_noop("task %(name)s"),
    "store": gettext_noop("store %(name)s"),
    "key": gettext_noop("key %(name)s"),
}


def rate_text(rate: float) -> str:
    """Format a rate per second as a phrase, in the first unit that makes it whole."""
    number, _, unit = short_rate(rate).partition("/")
    return _RATES[unit] % {"number": number, "jobs": int(number) if number.isdecimal() else 2}


def pause_details(by: str, at: datetime | None) -> str:
    """Return "by … since …", without unknown parts; the time is in the time zone of ``at``."""
    known = {"user": by, "time": at and f"{at:%Y-%m-%d %H:%M %Z}"}
    if by:
        return (gettext("by %(user)s since %(time)s") if at else gettext("by %(user)s")) % known
    return gettext("since %(time)s") % known if at else ""


def scope_words(kind: str, name: object) -> str:
    """Format the scope of a limit or pause; a store by its name."""
    return gettext(_SCOPES[kind]) % {"name": name}


def refusal(state: str, allowed: str) -> str:
    """Return why a verb does not change a row: its state, and ``allowed``, the states in which it would."""
    return gettext("it is %(state)s; %(allowed)s") % {"state": gettext(state), "allowed": allowed}


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


# Reasons that are codes of ours; for codes of errors, the reference has a list.
_REASONS: Final = {
    "attempts_exhausted": gettext_noop("its last attempt failed"),
    "not_retried": gettext_noop("its error is not retried"),
    "process_died": gettext_noop("its processes died"),
    "superseded": gettext_noop("a newer job has its key"),
}


# Outcomes in schedule_results and cron_results for a job that was gone before its tick could be updated.
ENDED: Final = gettext_noop("ended")


def became_of(outcome: str | None) -> str:
    """Return the outcome of a tick in words: its state, and the reason; a foreign code as recorded."""
    state, colon, reason = (outcome or ENDED).partition(":")
    reason = reason.strip()
    if state == JobState.CANCELLED and reason == JobState.CANCELLED:
        return gettext(state)
    return f"{gettext(state)}{colon and ': '}{gettext(_REASONS[reason]) if reason in _REASONS else reason}"


def pause_of(row: Any) -> str:
    """Return "paused", and the result of ``who_paused``."""
    return f"{gettext('paused')} {who_paused(row)}".rstrip()


def who_paused(row: Any) -> str:
    """Return by whom and since when a limit or destination is paused; "" if neither is known."""
    return pause_details(row.paused_by, row.paused_at and timezone.localtime(row.paused_at))


def override_of(row: Any, declared_line: str) -> str:
    """Return which declared line an override replaces, by whom and since when; "" without an override."""
    if not row.line:
        return ""
    at = row.overridden_at and timezone.localtime(row.overridden_at)
    instead = gettext("instead of %(line)s") % {"line": declared_line}
    return f"{instead}, {pause_details(row.overridden_by, at)}".rstrip(", ")


def ago(at: datetime, now: datetime) -> SafeString:
    """Format an instant by its distance from now, with the instant itself as a tooltip."""
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), instant(at), relative_time(at, now))


def exact(at: datetime, now: datetime) -> SafeString:
    """Format an instant, followed by its distance from now."""
    return format_html('<time datetime="{}">{}</time>, {}', at.isoformat(), instant(at), relative_time(at, now))
