"""Names of stores, for operators."""

from __future__ import annotations

import time
from typing import Any, Final
from uuid import UUID

from django.apps import apps

from salon_jobs.conf import settings as conf
from salon_jobs.tenancy.context import tenant_context

# How long a process remembers the name of a store, and of how many.
_REMEMBERED_S: Final = 60.0
_REMEMBERED: Final = 10_000
_names: dict[UUID, tuple[float, str]] = {}


def store_name(store: UUID) -> str:
    """Return what the store's model is shown as, or its ID where it is gone. At most a minute old.

    Read through the web role in the context of that store: the operator's role sees no business table.
    """
    known = _names.get(store)
    if known is not None and time.monotonic() - known[0] < _REMEMBERED_S:
        return known[1]
    model: Any = apps.get_model(conf.store_model or "")
    # The request may have a store already, set by TenantMiddleware.
    with tenant_context(store, switch=True, using=conf.database):
        name = str(model._default_manager.using(conf.database).filter(pk=store).first() or store)
    if len(_names) >= _REMEMBERED:
        _names.clear()
    _names[store] = time.monotonic(), name
    return name
