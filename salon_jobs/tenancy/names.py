"""Names of stores for people, and of the store model."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db import Error

from salon_jobs.conf.store_key import store_model
from salon_jobs.core.errors import SalonJobsError
from salon_jobs.core.records import StoreId
from salon_jobs.tenancy.context import tenant_context

# How long a process keeps the name of a store, and of how many.
_REMEMBERED_S: Final = 60.0
_REMEMBERED: Final = 10_000
_names: dict[StoreId, tuple[float, str]] = {}


def store_name(store: StoreId) -> str:
    """Return a store's name, at most a minute old: the text of its row, or its ID if there is none.

    Reads as the web role in the context of that store, since the operator's role sees no business table.
    """
    model: Any = store_model()
    if model is None:
        return str(store)
    known = _names.get(store)
    if known is not None and time.monotonic() - known[0] < _REMEMBERED_S:
        return known[1]
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


def store_words() -> dict[str, str]:
    """Return the name of the store model in the current language, for placeholders ``store`` and ``stores``."""
    model = store_model()
    names = ("store", "stores") if model is None else (model._meta.verbose_name, model._meta.verbose_name_plural)
    return dict(zip(("store", "stores"), map(str, names), strict=True))
