"""A site of views that write a row, and of bodies that are read row by row while they are sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ClassVar
from uuid import UUID, uuid4

from asgiref.sync import sync_to_async
from django.db import models, transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import path
from django.utils.decorators import async_only_middleware


class ByHeader:
    """Resolver that believes the header."""

    def resolve(self, request: HttpRequest) -> UUID:
        return UUID(request.headers["X-Store-Id"])

    def allowed(self, request: HttpRequest, store: UUID) -> bool:
        return True


class Line(models.Model):
    """Customer, also for a Django that knows nothing of salon_jobs."""

    id = models.UUIDField(primary_key=True)
    store_id = models.UUIDField()
    name = models.TextField()
    email = models.TextField()

    class Meta:
        app_label: ClassVar[str] = "streams"
        db_table: ClassVar[str] = "customer"
        managed: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.name


_lines = Line._default_manager.order_by("name")
_PADDING = "." * 4_000


async def _lines_one_by_one() -> AsyncIterator[bytes]:
    async for line in _lines.aiterator(chunk_size=20):
        yield f"{line.name}{_PADDING}\n".encode()


def _lines_at_once() -> Iterator[bytes]:
    for line in _lines.iterator(chunk_size=20):
        yield f"{line.name}{_PADDING}\n".encode()


def stream(request: HttpRequest) -> HttpResponseBase:
    return StreamingHttpResponse(_lines_one_by_one())


async def stream_async(request: HttpRequest) -> HttpResponseBase:
    return StreamingHttpResponse(_lines_one_by_one())


async def stream_sync_body(request: HttpRequest) -> HttpResponseBase:
    return StreamingHttpResponse(_lines_at_once())


def _new(request: HttpRequest) -> Line:
    return Line(id=uuid4(), store_id=UUID(request.headers["X-Store-Id"]), name=request.GET["name"], email="")


@transaction.atomic
def write(request: HttpRequest) -> HttpResponse:
    _new(request).save(force_insert=True)
    return HttpResponse("written")


async def write_async(request: HttpRequest) -> HttpResponse:
    return await sync_to_async(write)(request)


async def _failing() -> AsyncIterator[bytes]:
    async for part in _lines_one_by_one():
        yield part
        raise ZeroDivisionError


def stream_failing(request: HttpRequest) -> HttpResponseBase:
    return StreamingHttpResponse(_failing())


async def _stopped_from_outside(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for part in parts:
        yield part
        raise ZeroDivisionError


@async_only_middleware
def stop_outside(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Middleware around the store's, which ends a body and never closes it."""

    async def process(request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = await get_response(request)
        if request.path == "/stream/stopped/":
            streaming: Any = response
            streaming.streaming_content = _stopped_from_outside(streaming.streaming_content)
        return response

    return process


urlpatterns = [
    path("stream/", stream),
    path("stream/async/", stream_async),
    path("stream/sync-body/", stream_sync_body),
    path("stream/failing/", stream_failing),
    path("stream/stopped/", stream),
    path("write/", write),
    path("write/async/", write_async),
]
