"""Keys of Django's caches that contain the current store."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from salon_jobs.tenancy.active import current_store_id


def store_key(key: object, key_prefix: object, version: object) -> str:
    """Make a cache key of the current store; without a store, one that no store shares.

    For ``KEY_FUNCTION`` in ``CACHES``. Pages, template fragments and values that one store caches are then never found
    by another: Django computes the key of a cached page before the middleware can name its dependencies. Needs no
    transaction and makes no query.
    """
    store: Any = current_store_id()
    # A store with a text key may have a colon in it, and would share keys with another; or characters that Memcached
    # refuses.
    return f"{key_prefix}:{version}:{'' if store is None else quote(str(store), safe='')}:{key}"
