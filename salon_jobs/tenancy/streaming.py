"""Makes the body of a streaming response in the context of the store: the middleware has returned long before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import copy_context
from io import BytesIO
from typing import Any, TypeAlias, cast

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase

from salon_jobs.core.errors import TenantContextError
from salon_jobs.tenancy.scope import StoreScope

Closers: TypeAlias = tuple[Callable[[], object], ...]


def stream_as(scope: StoreScope, response: HttpResponseBase) -> None:
    """Have a streaming response's body made as the store of a request, in a transaction of its own if the view had one.

    It begins with the first part. It commits when the body has ended, and rolls back when the body raises or the
    response is closed before. A plain file, which asks no database, is left as it is, for the server to send. Raises
    TenantContextError for a response whose body can not be reached.
    """
    if not getattr(response, "streaming", False):
        return
    if not isinstance(response, StreamingHttpResponse):
        raise TenantContextError(f"{type(response).__name__} streams in a way of its own: use StreamingHttpResponse")
    if _is_plain_file(response):
        return
    # What closes the parts, a generator's own close among it, must come before our end, and inside the context.
    closers: list[Callable[[], object]] = cast("Any", response)._resource_closers
    body = _AsyncBody if response.is_async else _Body
    wrapped: Any = body(response.streaming_content, scope, tuple(closers))
    closers.clear()
    response.streaming_content = wrapped


def _is_plain_file(response: StreamingHttpResponse) -> bool:
    file: Any = getattr(response, "file_to_stream", None)
    if isinstance(file, BytesIO):
        return True
    try:
        return file is not None and file.fileno() >= 0
    except (AttributeError, OSError):
        return False


class _Body(Iterator[bytes]):
    """Makes each part as the store; between them the thread that iterates has none."""

    def __init__(self, parts: Any, scope: StoreScope, closers: Closers) -> None:
        self._parts: Iterator[bytes] = iter(parts)
        self._scope, self._closers = scope, closers
        self._context = copy_context()
        self._begun = False

    def __next__(self) -> bytes:
        return self._context.run(self._next)

    def _next(self) -> bytes:
        try:
            if not self._begun:
                self._begun = True
                self._scope.open()
            return next(self._parts)
        except BaseException as error:
            self._parts = iter(())  # whoever asks again is given none, not one that is made without the store
            self._scope.close(undo=not isinstance(error, StopIteration))
            raise

    def close(self) -> None:
        """Roll back, unless the body has ended. Django calls it with the response's own."""
        self._parts = iter(())
        self._context.run(_close, self._scope, self._closers)


class _AsyncBody(AsyncIterator[bytes]):
    """Does the same with an asynchronous iterator: its database work is done in the request's thread."""

    def __init__(self, parts: Any, scope: StoreScope, closers: Closers) -> None:
        self._parts: AsyncIterator[bytes] = aiter(parts)
        self._scope, self._closers = scope, closers
        self._context = copy_context()
        self._begun = False

    async def __anext__(self) -> bytes:
        # Whichever task asks for the part, it is made in one and the same context.
        part = await asyncio.create_task(self._next(), context=self._context)
        if part is None:
            raise StopAsyncIteration
        return part

    async def _next(self) -> bytes | None:
        try:
            if not self._begun:
                self._begun = True
                await self._scope.aopen()
            return await anext(self._parts)
        except StopAsyncIteration:
            await self._scope.aclose(undo=False)
            return None
        except BaseException:
            self._parts = _nothing()
            await self._scope.aclose(undo=True)
            raise

    def close(self) -> None:
        """Roll back, unless the body has ended. Django calls it in the thread of the synchronous parts."""
        self._parts = _nothing()
        self._context.run(_close, self._scope, self._closers)


def _close(scope: StoreScope, closers: Closers) -> None:
    try:
        for close in closers:
            close()
    finally:
        scope.close(undo=True)


async def _nothing() -> AsyncIterator[bytes]:
    """Yield nothing: a response that was closed has no more parts."""
    return
    yield b""
