"""One page, which writes: what a request asks for, its job and its messages, in one transaction."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from salon_jobs import emit, flow, schedule, tenant_context
from salon_jobs.tenancy import without_store
from tests.chaos.failover import tasks
from tests.chaos.failover.client import names

_DELAY: Final = timedelta(seconds=1)


def _many(store_id: UUID, marker: str, **_: str) -> str:
    calls = [tasks.store.call(store_id=store_id, marker=name) for name in names("follow", marker)[1:]]
    tasks.store.enqueue_many(calls, then=tasks.store.call(store_id=store_id, marker=marker))
    return "inserted"


def _delayed(store_id: UUID, marker: str, **_: str) -> str:
    later = timezone.now() + _DELAY
    return str(tasks.store.using(run_at=later).enqueue(store_id=store_id, marker=marker).action)


def _batch(marker: str, **_: str) -> str:
    tasks.finishing.enqueue_many(tasks.finishing.call(marker=name) for name in names("batch", marker))
    return "inserted"


def _flow(store_id: UUID, marker: str, **_: str) -> str:
    left, right, join = (tasks.store.call(store_id=store_id, marker=name) for name in names("flow", marker))
    with flow("failover") as members:
        first = [members.add(left), members.add(right)]
        members.add(join, after=first)
        members.add(tasks.store.call(store_id=store_id, marker=f"{marker}+never"), after=first, when="failed")
    return "inserted"


def _second(**_: str | UUID) -> str:
    schedule(tasks.second.call(), every=timedelta(seconds=2), key="second", catch_up=timedelta(hours=1))
    return "inserted"


_OTHERS: Final[dict[str, Callable[..., str]]] = {
    "chunk": lambda store_id, marker, **_: tasks.chunk.enqueue(store_id, tasks.Part(marker)).action,
    "follow": _many,
    "flow": _flow,
    "second": _second,
    "batch": _batch,
    "delayed": _delayed,
    "none": lambda **_: "inserted",
}


def _enqueue(kind: str, **arguments: Any) -> str:
    """Enqueue what a kind of write asks for; most have a task of that name, with some of these arguments."""
    if kind in _OTHERS:
        return _OTHERS[kind](**arguments)
    task: Any = getattr(tasks, kind.replace("-", "_"))
    takes = inspect.signature(task.function).parameters
    given = {**arguments, "gate": arguments["key"]}
    return str(task.enqueue(**{name: value for name, value in given.items() if name in takes}).action)


@csrf_exempt
@without_store
def write(request: HttpRequest) -> JsonResponse:
    """Write one row ``asked`` and what it asks for; answer with the server that committed it."""
    asked: dict[str, Any] = json.loads(request.body)
    store_id, marker, kind, key = UUID(asked["store"]), asked["marker"], asked["kind"], asked["key"]
    with tenant_context(store_id), connection.cursor() as cursor:
        action = _enqueue(kind, store_id=store_id, marker=marker, key=key)
        cursor.execute(
            "INSERT INTO failover_asked (marker, kind, key, action) VALUES (%s, %s, %s, %s) RETURNING server",
            [marker, kind, key, str(action)],
        )
        server: int = cursor.fetchone()[0]
        for destination, aggregate in asked["messages"]:
            cursor.execute(
                "UPDATE failover_counted SET number = number + 1 WHERE name = %s RETURNING number", [aggregate]
            )
            payload = {"number": cursor.fetchone()[0], "server": server}
            emit(f"rn::nats:::{destination}", event="counted", aggregate_id=aggregate, payload=payload)
    return JsonResponse({"server": server})


urlpatterns = [path("write/", write)]
