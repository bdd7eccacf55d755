"""Talks to an ASGI application as a server does, several requests at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIHandler
from django.db import connection
from django.test import Client

# What a view calls to have its own client go away.
leave: ContextVar[Callable[[], None]] = ContextVar("leave")


@dataclass(slots=True)
class Answer:
    """Is what the application sent."""

    status: int = 0
    body: bytes = b""
    left: asyncio.Event = field(default_factory=asyncio.Event)

    def json(self) -> Any:
        """Return the body, read."""
        return json.loads(self.body)


def serve(requests: Sequence[tuple[User, str]], *, leave_after: bytes = b"") -> list[Answer]:
    """Send GET requests of users at once to Django's ASGI handler, which serves each on a thread of its own.

    The clients go away when what they were sent ends with ``leave_after``.
    """
    cookies = [_cookies(user) for user, _ in requests]
    connection.close()  # the threads may need it
    application = ASGIHandler()

    async def ask_all() -> list[Answer]:
        paths = (path for _, path in requests)
        asked = (_ask(application, path, cookie, leave_after) for path, cookie in zip(paths, cookies, strict=True))
        return await asyncio.gather(*asked)

    return asyncio.run(ask_all())


def _cookies(user: User) -> bytes:
    client = Client()
    client.force_login(user)
    return "; ".join(f"{name}={value.value}" for name, value in client.cookies.items()).encode()


async def _ask(application: Any, path: str, cookies: bytes, leave_after: bytes) -> Answer:
    answer = Answer()
    leave.set(answer.left.set)
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await answer.left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        answer.status = message.get("status", answer.status)
        answer.body += message.get("body", b"")
        if leave_after and answer.body.endswith(leave_after):
            answer.left.set()

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "headers": [(b"cookie", cookies)],
        "server": ("testserver", 80),
        "asgi": {"version": "3.0"},
    }
    await application(scope, receive, send)
    return answer
