"""Lets templates write durations, numbers and counts as the admin does, with links to the rows behind them."""

from __future__ import annotations

from typing import Any, Final

from django import template
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

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


@register.simple_tag(takes_context=True)
def linked(context: dict[str, Any], shown: object, model: str, key: str, **filters: object) -> SafeString:
    """Write a name or number as a link to the list of the rows behind it, for whoever may see them.

    ``key`` is the link's id, by which it keeps the focus when the page is read again; after a hyphen at its end comes
    the first filter's value.
    """
    request = context["request"]
    if not request.user.has_perm(f"salon_jobs.view_{model}"):
        return format_html("{}", shown)
    url = reverse(f"admin:salon_jobs_{model}_changelist", current_app=request.resolver_match.namespace)
    wanted = {name: str(value) for name, value in filters.items()}
    named = next(iter(wanted.values()), "") if key.endswith("-") else ""
    return format_html('<a id="{}{}" href="{}?{}">{}</a>', key, named, url, urlencode(wanted), shown)
