"""Bodies that read and write rows after the middleware has returned: as the store, or not at all."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from io import BytesIO, RawIOBase
from pathlib import Path
from typing import Any
from uuid import UUID
from wsgiref.util import FileWrapper

import pytest
from asgiref.sync import sync_to_async
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection
from django.http import FileResponse, HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.test import Client, RequestFactory
from django.utils.decorators import async_only_middleware

from project.salon.models import Customer
from salon_jobs import current_store_id, tenant_context
from salon_jobs.core.errors import TenantContextError, TransactionBroken
from salon_jobs.tenancy.request import stream_as
from tests.support import change, in_thread
from tests.tenancy.asgi import cookies_of, serve
from tests.tenancy.probe import fail, swallow
from tests.tenancy.web import Hook, canaries, look, member_of, signed_in, write, written

CLEAN: tuple[list[str], bool] = ([], False)


def connection_state() -> tuple[list[str], bool]:
    """Return what the connection sees after a response, and whether it is in a transaction."""
    return canaries(), connection.in_atomic_block


def stream(store: UUID, body: Callable[[], Any], path: str = "/hooked/") -> Any:
    """Return the streaming response to a member of the store."""
    Hook.view = lambda _: StreamingHttpResponse(body())
    return signed_in(member_of(store)).get(path)


def stream_to_server(store: UUID, body: Callable[[], Any]) -> Any:
    """Return what a WSGI server is given to send, and must close."""
    Hook.view = lambda _: StreamingHttpResponse(body())
    return wsgi_answer(signed_in(member_of(store)))


def wsgi_answer(client: Client) -> Any:
    environ = RequestFactory(headers={"Cookie": cookies_of(client)}).get("/hooked/").environ
    return WSGIHandler()({**environ, "wsgi.file_wrapper": FileWrapper}, lambda *_: lambda _: None)


def astream(stores: list[UUID], body: Callable[[], Any], path: str = "/ahooked/", **options: Any) -> list[str]:
    """Return the bodies that an ASGI server sends."""

    async def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(body())

    Hook.view = view
    return [answer.body.decode() for answer in serve(stores, path, **options)]


def looking() -> Iterator[bytes]:
    """Show what is visible at the first part and at the last."""
    yield f"{current_store_id()} {canaries()}".encode()
    yield f" {canaries()}".encode()


async def alooking() -> AsyncIterator[bytes]:
    for end in ("", " and again"):
        names = [name async for name in Customer.objects.values_list("name", flat=True)]
        yield f"{current_store_id()} {names}{end}".encode()


def alooking_parts(store: UUID, number: int) -> list[str]:
    return [f"{store} ['canary {number}']{end}" for end in ("", " and again")]


def by_server_cursor() -> Iterator[bytes]:
    """Read rows by a cursor of the server, which lives as long as its transaction."""
    for name in Customer.objects.order_by("name").values_list("name", flat=True).iterator(chunk_size=7):
        yield f"{name};".encode()


def writing(then: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """Write a row, and do something before the last part."""
    yield b"begun"
    write()
    yield b"written"
    then()
    yield b"ended"


def test_part_is_made_in_store(two: list[UUID]) -> None:
    """Between the parts there is no store, and a body that nobody reads opens nothing."""
    stream_to_server(two[0], looking).close()
    assert connection_state() == CLEAN
    response = stream(two[0], looking)
    assert not connection.in_atomic_block, "the view's transaction is over, the body's has not begun"
    parts = iter(response.streaming_content)
    assert next(parts).decode() == f"{two[0]} ['canary 0']"
    assert current_store_id() is None
    assert [part.decode() for part in parts] == [" ['canary 0']"]
    assert connection_state() == CLEAN


@pytest.mark.parametrize("path", ["/hooked/", "/hooked-without-transaction/"])
def test_server_side_cursor_goes_on_to_its_end(two: list[UUID], path: str) -> None:
    change(
        "INSERT INTO customer (id, store_id, name, email)"
        " SELECT gen_random_uuid(), s.id, 'canary ' || n, '' FROM store s, generate_series(10, 99) n"
    )
    names = b"".join(stream(two[0], by_server_cursor, path).streaming_content).decode().split(";")
    # Without a transaction a plain query sees no rows, in the body as in the view.
    assert len(names) == (92 if path == "/hooked/" else 1)
    assert "canary 1" not in names


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("then", "error"), [(lambda: None, None), (fail, ZeroDivisionError), (swallow, TransactionBroken)]
)
def test_body_commits_at_its_end(
    two: list[UUID], then: Callable[[], None], error: type[Exception] | None, is_async: bool
) -> None:
    async def abody() -> AsyncIterator[bytes]:
        parts = writing(then)
        while part := await sync_to_async(lambda: next(parts, b""))():
            yield part

    with failed_response(), pytest.raises(error) if error else nullcontext():
        sent = astream([two[0]], abody)[0] if is_async else stream(two[0], lambda: writing(then)).getvalue().decode()
        assert sent == "begunwrittenended"
    assert (written(), connection_state()) == (0 if error else 1, CLEAN)


@contextmanager
def failed_response() -> Iterator[None]:
    """Collect what Django's ASGI handler leaves of a response that fails, such as the open file of the request."""
    yield
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


def assert_given_back(store: UUID) -> None:
    """Assert that a request gets the one connection of the pool, clean."""
    Hook.view = look
    assert in_thread(lambda: signed_in(member_of(store)).get("/hooked/").json()["seen"]) == ["canary 0"]
    assert written() == 0


def test_abandoned_body_gives_connection_back(pooled: object, two: list[UUID]) -> None:
    def begin() -> None:
        response = StreamingHttpResponse(writing())
        stream_as(tenant_context(two[0]), response)
        parts = iter(response)
        assert [next(parts), next(parts)] == [b"begun", b"written"]

    in_thread(begin)
    assert_given_back(two[0])


async def failing(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for part in parts:
        yield part
        raise ZeroDivisionError


async def awriting() -> AsyncIterator[bytes]:
    await sync_to_async(write)()
    yield b"written"
    await asyncio.Event().wait()


@async_only_middleware
def breaking(get_response: Callable[[HttpRequest], Awaitable[Any]]) -> Callable[[HttpRequest], Awaitable[Any]]:
    """Have bodies fail outside of TenantMiddleware."""

    async def middleware(request: HttpRequest) -> Any:
        response = await get_response(request)
        response.streaming_content = failing(response.streaming_content)
        return response

    return middleware


@pytest.mark.parametrize("by_middleware", [False, True])
def test_failed_async_body_gives_connection_back(
    pooled: object, two: list[UUID], settings: Any, by_middleware: bool
) -> None:
    """Django closes no response that failed, and the thread that holds the connection ends."""
    middleware = settings.MIDDLEWARE
    with failed_response():
        if by_middleware:
            settings.MIDDLEWARE = [f"{__name__}.breaking", *middleware]
        with pytest.raises(ZeroDivisionError) as failed:
            astream([two[0]], awriting if by_middleware else lambda: failing(awriting()))
        settings.MIDDLEWARE = middleware
        assert_given_back(two[0])
        assert failed.value.__traceback__ is not None, "what it holds need not be collected before"
        del failed


def test_client_disconnects(two: list[UUID]) -> None:
    cleaned: list[list[str]] = []

    def body() -> Iterator[bytes]:
        try:
            yield from writing()
        finally:
            cleaned.append(canaries())

    answer = stream_to_server(two[0], body)
    parts = iter(answer)
    assert [next(parts), next(parts)] == [b"begun", b"written"]
    assert connection.in_atomic_block
    answer.close()
    assert (written(), connection_state()) == (0, CLEAN)
    assert cleaned == [["canary 0", "written"]], "what the body does at its end it does as the store"
    assert list(parts) == [], "nothing is made after it was closed"


def test_client_disconnects_from_async_body(two: list[UUID]) -> None:
    assert astream([two[0]], awriting, leave_after=b"written") == ["written"]
    assert written() == 0


@pytest.mark.parametrize("path", ["/ahooked/", "/ahooked-without-transaction/"])
def test_async_body_is_made_in_store(two: list[UUID], path: str) -> None:
    bodies = astream(two, alooking, path)
    assert bodies == ["".join(alooking_parts(store, number)) for number, store in enumerate(two)]


def test_body_of_other_kind_than_server(two: list[UUID]) -> None:
    with pytest.warns(Warning, match="must consume asynchronous iterators"):
        parts = list(stream_to_server(two[0], alooking))
    assert [part.decode() for part in parts] == alooking_parts(two[0], 0)
    assert connection_state() == CLEAN
    with pytest.warns(Warning, match="must consume synchronous iterators"):
        bodies = astream([two[1]], looking)
    assert bodies == [f"{two[1]} ['canary 1'] ['canary 1']"]


class Rows(RawIOBase):
    """File that is kept in rows."""

    ended = False

    def read(self, size: int = -1) -> bytes:
        done, self.ended = self.ended, True
        return b"" if done else f"{current_store_id()} {canaries()}".encode()

    def seekable(self) -> bool:
        return False


def test_file_response(two: list[UUID], tmp_path: Path) -> None:
    """Plain files are sent by the server, those kept in rows are read as the store."""
    (tmp_path / "price-list").write_bytes(b"prices")
    client = signed_in(member_of(two[0]))
    for file, body, by_server in (
        ((tmp_path / "price-list").open("rb"), "prices", True),
        (BytesIO(b"receipt"), "receipt", True),
        (Rows(), f"{two[0]} ['canary 0']", False),
    ):
        Hook.view = lambda request, file=file: FileResponse(file)
        answer = wsgi_answer(client)
        assert isinstance(answer, FileWrapper) == by_server
        assert b"".join(answer).decode() == body
        answer.close()
    assert not connection.in_atomic_block


def test_unreachable_body_is_refused(two: list[UUID]) -> None:
    class OneOfTheirs(HttpResponseBase):
        streaming = True

        def __iter__(self) -> Iterator[bytes]:
            return looking()

    Hook.view = lambda request: OneOfTheirs()
    client = Client()
    client.force_login(member_of(two[0]))
    with pytest.raises(TenantContextError, match="OneOfTheirs streams in its own way"):
        client.get("/hooked/")
    assert not connection.in_atomic_block


def test_parts_read_by_many_tasks(two: list[UUID]) -> None:
    async def read_all() -> list[str]:
        response: Any = StreamingHttpResponse(alooking())
        stream_as(tenant_context(two[0]), response)
        parts = aiter(response.streaming_content)
        parts_read = []
        for _ in range(2):
            parts_read.append(await asyncio.create_task(anext(parts)))
            assert current_store_id() is None
        with pytest.raises(StopAsyncIteration):
            await anext(parts)
        await sync_to_async(lambda: connection.close())()  # noqa: PLW0108 - that of the thread
        return [part.decode() for part in parts_read]

    assert asyncio.run(read_all()) == alooking_parts(two[0], 0)


@pytest.mark.parametrize("fails", ["the first part", "setting the store"])
def test_failed_body_makes_no_more_parts(stores: list[UUID], fails: str) -> None:
    in_part = fails == "the first part"
    works: Iterator[Any] = iter([fail, lambda: str(current_store_id()).encode()] if in_part else [lambda: b"made"])
    # Unlike a generator, this goes on after an error.
    response = StreamingHttpResponse(iter(lambda: next(works)(), b""))  # noqa: PLW0108 - the next one each time
    stream_as(tenant_context(stores[0]), response)
    parts = iter(response)
    other = nullcontext() if in_part else tenant_context(stores[1])
    with other, pytest.raises(ZeroDivisionError if in_part else TenantContextError):
        next(parts)
    assert next(parts, None) is None
    response.close()
