"""Sizes of Django's connection pools, and how many connections our threads keep."""

from __future__ import annotations

from typing import Any, Final, cast

from django.db import connections

from salon_jobs.core.errors import ConfigurationError

# For a pool without a size: it opens no connection that no thread asks for.
_NO_SIZE: Final = {"min_size": 0, "max_size": 10_000}


def give_pools_room() -> None:
    """Make Django's pools without a given size, of all aliases, give each thread its own permanent connection.

    psycopg's own default is four. Call this in a process of ours before it connects.
    """
    for alias in connections:
        options: dict[str, Any] = connections.settings[alias].get("OPTIONS") or {}
        if (pool := options.get("pool")) and size_of_pool(pool) is None:
            options["pool"] = {**({} if pool is True else pool), **_NO_SIZE}


def size_of_pool(pool: Any) -> int | None:
    """Return how many connections Django's ``OPTIONS["pool"]`` gives at most; None if it has no pool, or no size."""
    if not isinstance(pool, dict):
        return None
    sizes = cast("dict[str, int | None]", pool)
    return sizes.get("max_size") or sizes.get("min_size")


def refuse_small_pool(threads: int, *, using: str) -> None:
    """Raise ConfigurationError when Django's pool cannot give each of our threads its own permanent connection.

    If heartbeats waited for jobs to return a connection, a living process would be declared dead.
    """
    size = size_of_pool(connections[using].settings_dict["OPTIONS"].get("pool"))
    if size is not None and size < threads:
        raise ConfigurationError(f"{small_pool(using, size, threads)}: {SMALL_POOL_REMEDY.format(threads=threads)}")


def small_pool(using: str, size: int, threads: int) -> str:
    """Return in words that a pool is too small for a process of a worker."""
    return (
        f"DATABASES[{using!r}]['OPTIONS']['pool'] gives at most {size} connections, and a process of a worker keeps "
        f"{threads}"
    )


SMALL_POOL_REMEDY: Final = (
    "remove min_size and max_size, so that each process takes what it needs; or set max_size to {threads} or more, or "
    "lower the concurrency"
)
