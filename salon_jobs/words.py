"""What people read of jobs, messages and limits, in their language: durations, rates, and reasons.

Logs, metrics and what is stored are not translated; they use ``core.units``.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Final

from django.utils.translation import gettext, ngettext_lazy

from salon_jobs.core import units
from salon_jobs.core.units import gettext_noop, short_rate

duration: Final = partial(units.duration, say=gettext)
distance: Final = partial(units.distance, say=gettext)
about: Final = partial(units.about, say=gettext)

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
    """Format a rate per second as a phrase, in the first unit in which it is whole."""
    number, _, unit = short_rate(rate).partition("/")
    return _RATES[unit] % {"number": number, "jobs": int(number) if number.isdecimal() else 2}


def pause_details(by: str, at: datetime | None) -> str:
    """Return "by … since …", without what is unknown; the time is in the time zone of ``at``."""
    known = {"user": by, "time": at and f"{at:%Y-%m-%d %H:%M %Z}"}
    if by:
        return (gettext("by %(user)s since %(time)s") if at else gettext("by %(user)s")) % known
    return gettext("since %(time)s") % known if at else ""


def scope_words(kind: str, name: object) -> str:
    """Format what a limit or pause applies to; a store by its name."""
    return gettext(_SCOPES[kind]) % {"name": name}


def refusal(state: str, allowed: str) -> str:
    """Return why a verb does not change a row: its state, and ``allowed``, which says in which states it would."""
    return gettext("it is %(state)s; %(allowed)s") % {"state": gettext(state), "allowed": allowed}
