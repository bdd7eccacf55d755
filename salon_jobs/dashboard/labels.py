"""Stores and instants as operators read them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import Error
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import SalonJobsError
from salon_jobs.core.records import StoreId
from salon_jobs.core.units import distance, pause_details
from salon_jobs.tenancy.context import tenant_context

# How long a process remembers the name of a store, and of how many.
_REMEMBERED_S: Final = 60.0
_REMEMBERED: Final = 10_000
_names: dict[StoreId, tuple[float, str]] = {}


def store_name(store: StoreId) -> str:
    """Return a store's name, at most a minute old: what its model is shown as, or its ID if there is none.

    Reads as the web role in the context of that store, since the operator's role sees no business table.
    """
    if conf.store_model is None:
        return str(store)
    known = _names.get(store)
    if known is not None and time.monotonic() - known[0] < _REMEMBERED_S:
        return known[1]
    model: Any = apps.get_model(conf.store_model)
    # The request may have a store already, set by TenantMiddleware.
    with tenant_context(store, switch=True) as context:
        name = str(model._default_manager.using(context.alias).filter(pk=store).first() or store)
    if len(_names) >= _REMEMBERED:
        _names.clear()
    _names[store] = time.monotonic(), name
    return name


def store_names(stores: Iterable[StoreId]) -> dict[StoreId, str]:
    """Return the names of stores, or their IDs if this process cannot read the names."""
    names = {store: str(store) for store in stores}
    # Only the connection of DATABASE may read them, and operators' commands work without it.
    with suppress(Error, SalonJobsError, ImproperlyConfigured):
        for store in names:
            names[store] = store_name(store)
    return names


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


def ago(at: datetime, now: datetime) -> SafeString:
    """Format an instant by its distance from now, with the instant itself as a tooltip."""
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), instant(at), distance(at, now))


def exact(at: datetime, now: datetime) -> SafeString:
    """Format an instant, followed by its distance from now."""
    return format_html('<time datetime="{}">{}</time>, {}', at.isoformat(), instant(at), distance(at, now))
