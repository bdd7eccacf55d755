"""Concurrent requests to Django's ASGI handler, sent as a server does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import connection, connections

from tests.tenancy.web import member_of, signed_in

# A view calls it to make its own client disconnect.
leave: ContextVar[Callable[[], None]] = ContextVar("leave")


@dataclass(slots=True)
class Answer:
    """Response that the application sent."""

    status: int = 0
    body: bytes = b""
    departure: asyncio.Event = field(default_factory=asyncio.Event)

    def json(self) -> Any:
        return json.loads(self.body)


def serve(stores: Sequence[UUID], path: str, *, leave_after: bytes = b"") -> list[Answer]:
    """Send concurrent GET requests of members of the stores; each is served on its own thread.

    A client disconnects once its response ends with ``leave_after``.
    """
    cookies = {store: cookies_of(signed_in(member_of(store))) for store in set(stores)}
    connection.close()  # the threads may need it
    application = ASGIHandler()

    async def send_all() -> list[Answer]:
        return await asyncio.gather(*(_send(application, path, cookies[store], leave_after) for store in stores))

    return asyncio.run(send_all())


@asynccontextmanager
async def own_thread() -> AsyncIterator[None]:
    """Give a task its own thread and connections, as Django does for a request; close them at the end."""
    async with ThreadSensitiveContext():
        try:
            yield
        finally:
            await asyncio.shield(sync_to_async(connections.close_all)())


def cookies_of(client: Any) -> str:
    return "; ".join(f"{name}={value.value}" for name, value in client.cookies.items())


async def _send(application: Any, path: str, cookies: str, leave_after: bytes) -> Answer:
    answer = Answer()
    leave.set(answer.departure.set)
    requests = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        for request in requests:
            return request
        await answer.departure.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        answer.status = message.get("status", answer.status)
        answer.body += message.get("body", b"")
        if leave_after and answer.body.endswith(leave_after):
            answer.departure.set()

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "headers": [(b"cookie", cookies.encode())],
        "server": ("testserver", 80),
        "asgi": {"version": "3.0"},
    }
    await application(scope, receive, send)
    return answer
