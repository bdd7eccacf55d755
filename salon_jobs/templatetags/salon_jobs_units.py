"""Template filters that format durations, numbers and counts like the admin, with links to the rows behind them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from django import template
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from salon_jobs import words
from salon_jobs.admin.reader import sees_all_stores
from salon_jobs.conf.store_key import store_key
from salon_jobs.core import units
from salon_jobs.db import clock
from salon_jobs.jobs.statistics import TaskTotals
from salon_jobs.tenancy.names import store_name
from salon_jobs.words import ago, became_of

register: Final = template.Library()

register.filter("duration", words.duration)
register.filter("number", units.number)
register.filter("counted", units.counted)
register.filter("estimated", units.estimated)
register.filter("error_name", units.error_name)
register.filter("became", became_of)


@register.filter
def when(at: datetime | None) -> str:
    """Format an instant by its distance from now, on a page of the admin."""
    return "–" if at is None else ago(at, clock.now())


@register.filter("store_name")
def name_of_store(store: object) -> str:
    """Return the name of a store."""
    return store_name(store_key().parse(store))


@register.filter
def p50(totals: TaskTotals) -> str:
    """Format the median duration of the runs."""
    return words.about(totals.duration(0.5))


@register.filter
def p95(totals: TaskTotals) -> str:
    """Format the 95th percentile of the runs' durations."""
    return words.about(totals.duration(0.95))


@register.simple_tag(takes_context=True)
def linked(
    context: dict[str, Any],
    shown: object,
    model: str,
    key: str,
    given: Mapping[str, object] = MappingProxyType({}),
    **filters: object,
) -> SafeString:
    """Format a name or number as a link to the list of the rows behind it, for users who may see them.

    ``key`` is the link's id, which keeps the focus when the page refreshes; a trailing hyphen is followed by the first
    filter's value. Filters come by name, or ``given`` together.
    """
    wanted = {name: str(value) for name, value in {**given, **filters}.items()}
    named = next(iter(wanted.values()), "") if key.endswith("-") else ""
    return _link(context, shown, model, "changelist", f"{key}{named}", f"?{urlencode(wanted)}")


@register.simple_tag(takes_context=True)
def named(context: dict[str, Any], kind: str, name: str) -> SafeString:
    """Format the name of a task or queue as a link to its page, for users who may see it."""
    if not sees_all_stores(context["request"]):
        return format_html("{}", name)
    return _link(context, name, "job", "overview", f"{kind}-{name}", f"?{urlencode({kind: name})}")


@register.simple_tag(takes_context=True)
def linked_store(context: dict[str, Any], store: object, key: str) -> SafeString:
    """Format the name of a store as a link to its page, for users who may see it; ``key`` begins the link's id."""
    return _link(
        context, name_of_store(store), "job", "overview", f"{key}{store}", f"?{urlencode({'store': str(store)})}"
    )


@register.simple_tag(takes_context=True)
def linked_row(context: dict[str, Any], shown: object, model: str, pk: int | None, key: str) -> SafeString:
    """Format a name as a link to a row's page, for users who may see it; ``key`` and the row's ID are the link's id."""
    return format_html("{}", shown) if pk is None else _link(context, shown, model, "change", f"{key}{pk}", "", pk)


def _link(
    context: dict[str, Any], shown: object, model: str, page: str, key: str, query: str = "", *args: object
) -> SafeString:
    request = context["request"]
    if not request.user.has_perm(f"salon_jobs.view_{model}"):
        return format_html("{}", shown)
    url = reverse(f"admin:salon_jobs_{model}_{page}", args=args, current_app=request.resolver_match.namespace)
    is_zero = SafeString(' class="zero"' if shown in (0, "0") else "")
    return format_html('<a id="{}"{} href="{}{}">{}</a>', key, is_zero, url, query, shown)


@register.simple_tag
def columns(label: str, *heads: str) -> SafeString:
    """Begin a table that scrolls by itself, with the heads of its columns; "#" marks a column of numbers."""
    cells = ((SafeString(' class="n"' if head.startswith("#") else ""), head.removeprefix("#")) for head in heads)
    return format_html(
        '<div class="scroll" tabindex="0" role="region" aria-label="{}"><table>\n<thead><tr>{}</tr></thead>',
        label,
        format_html_join("", '<th scope="col"{}>{}</th>', cells),
    )
