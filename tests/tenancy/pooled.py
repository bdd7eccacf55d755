"""Gives a test a pool of one connection, and looks at what that carries."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from django.db import connections

from project.salon.models import Store
from salon_jobs import tenant_context
from salon_jobs.tenancy.context import TenantContext

POOLED = "pooled"


def pool_of_one(role: str, options: dict[str, Any]) -> Iterator[Any]:
    """Make an alias of the role of another one, with a pool of one connection; gives its wrapper."""
    settings = copy.deepcopy(connections.settings[role])
    settings["OPTIONS"]["pool"] = {"min_size": 1, "max_size": 1, "timeout": 10, **options}
    settings.update(CONN_MAX_AGE=0, CONN_HEALTH_CHECKS=False)
    connections.settings[POOLED] = settings
    wrapper: Any = connections[POOLED]
    try:
        yield wrapper
    finally:
        wrapper.close()
        wrapper.close_pool()
        del connections[POOLED], connections.settings[POOLED]


def in_session(store: UUID, using: str = POOLED, **options: Any) -> TenantContext:
    """Return a context on the session."""
    return tenant_context(store, atomic=False, scope="session", using=using, **options)


def visible(using: str = POOLED) -> list[UUID]:
    """Return the stores that a statement outside a transaction sees."""
    return list(Store.objects.using(using).order_by("id").values_list("pk", flat=True))


def backend(using: str = POOLED) -> int:
    """Return which process of the server answers."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def carried(using: str = POOLED) -> str:
    """Return the store on the connection; empty without one."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT coalesce(current_setting('app.current_store_id', true), '')")
        return str(cursor.fetchone()[0])


def in_thread(work: Callable[[], None]) -> None:
    """Run in a new thread, which takes its own connection and gives it back."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
