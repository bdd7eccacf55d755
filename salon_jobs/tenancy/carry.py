"""Takes the store of the surrounding context along to a thread, a task or a callback."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from django.db import connections

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import TenantContextError
from salon_jobs.tenancy.block import current_store_id
from salon_jobs.tenancy.context import tenant_context

P = ParamSpec("P")
R = TypeVar("R")


def carry_store(function: Callable[P, R], *, atomic: bool = True, using: str | None = None) -> Callable[P, R]:
    """Return ``function``, ``def`` or ``async def``, so that it runs in a ``tenant_context`` of the current store.

    For what runs elsewhere or later: a thread, an executor, a task. The context is opened on the connection of the
    thread that runs it. A ``def`` closes that connection afterwards unless it was open before: a thread that ends would
    leave it open, and never give it back to a pool. ``atomic`` and ``using`` are those of ``tenant_context``. Raises
    TenantContextError outside of every context.
    """
    store_id = current_store_id()
    if store_id is None:
        raise TenantContextError("there is no store to carry: call carry_store inside a tenant_context")
    alias = using or conf.database

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            async with tenant_context(store_id, atomic=atomic, using=alias):
                return await function(*args, **kwargs)

        return cast("Callable[P, R]", run_async)

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        connection = connections[alias]
        was_open = connection.connection is not None
        try:
            with tenant_context(store_id, atomic=atomic, using=alias):
                return function(*args, **kwargs)
        finally:
            if not was_open:
                connection.close()

    return run
