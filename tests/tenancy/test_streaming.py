"""Streams bodies that read and write rows, after the middleware has returned: as the store, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
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

from project.salon.models import Customer
from salon_jobs import current_store_id, tenant_context
from salon_jobs.core.errors import TenantContextError
from salon_jobs.tenancy.request import stream_as
from tests.support import change
from tests.tenancy.asgi import serve
from tests.tenancy.test_middleware import signed_in, write, written
from tests.tenancy.web import Hook, canaries, member_of, two, web_role

__all__ = ["two", "web_role"]  # fixtures


def streaming(body: Callable[[], Any]) -> Callable[[HttpRequest], Any]:
    """Return a view that streams a body."""

    def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(body())

    return view


def astreaming(body: Callable[[], Any]) -> Callable[[HttpRequest], Any]:
    """Return an asynchronous view that streams a body."""

    async def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(body())

    return view


def looking() -> Iterator[bytes]:
    """Tell what is seen at the first part and at the last."""
    yield f"{current_store_id()} {canaries()}".encode()
    yield f" {canaries()}".encode()


async def alooking() -> AsyncIterator[bytes]:
    """Tell the same, asynchronously."""
    for end in ("", " and again"):
        names = [name async for name in Customer.objects.values_list("name", flat=True)]
        yield f"{current_store_id()} {names}{end}".encode()


def by_server_cursor() -> Iterator[bytes]:
    """Read rows by a cursor of the server, which lives as long as its transaction."""
    for name in Customer.objects.order_by("name").values_list("name", flat=True).iterator(chunk_size=7):
        yield f"{name};".encode()


def test_each_part_is_made_as_the_store_and_nothing_between_them_is(two: list[UUID]) -> None:
    Hook.view = streaming(looking)
    response: Any = signed_in(member_of(two[0])).get("/hooked/")
    assert not connection.in_atomic_block, "the view's transaction is over, the body's has not begun"
    parts = iter(response.streaming_content)
    assert next(parts).decode() == f"{two[0]} ['canary 0']"
    assert current_store_id() is None
    assert [part.decode() for part in parts] == [" ['canary 0']"]
    assert (canaries(), connection.in_atomic_block) == ([], False)


@pytest.mark.parametrize("path", ["/hooked/", "/hooked-without-transaction/"])
def test_a_server_side_cursor_goes_on_to_its_end(two: list[UUID], path: str) -> None:
    change(
        "INSERT INTO customer (id, store_id, name, email)"
        " SELECT gen_random_uuid(), s.id, 'canary ' || n, '' FROM store s, generate_series(10, 99) n"
    )
    Hook.view = streaming(by_server_cursor)
    response: Any = signed_in(member_of(two[0])).get(path)
    names = b"".join(response.streaming_content).decode().split(";")
    # Without a transaction a plain query sees no rows, in the body as in the view.
    assert len(names) == (92 if path == "/hooked/" else 1)
    assert "canary 1" not in names


def writing(then: str = "") -> Iterator[bytes]:
    """Write a row, then end, fail or go on."""
    yield b"begun"
    write(HttpRequest())
    yield b"written"
    if then == "fail":
        raise ZeroDivisionError
    yield b"ended"


def test_a_body_that_ends_commits(two: list[UUID]) -> None:
    Hook.view = streaming(writing)
    response: Any = signed_in(member_of(two[0])).get("/hooked/")
    assert b"".join(response.streaming_content) == b"begunwrittenended"
    assert written() == 1


def test_a_body_that_fails_rolls_back(two: list[UUID]) -> None:
    Hook.view = streaming(lambda: writing("fail"))
    response: Any = signed_in(member_of(two[0])).get("/hooked/")
    with pytest.raises(ZeroDivisionError):
        list(response.streaming_content)
    assert (written(), canaries(), connection.in_atomic_block) == (0, [], False)


def test_a_client_that_goes_away_rolls_back_and_leaves_a_clean_connection(two: list[UUID]) -> None:
    tidied: list[list[str]] = []

    def body() -> Iterator[bytes]:
        try:
            yield from writing()
        finally:
            tidied.append(canaries())

    Hook.view = streaming(body)
    answer: Any = wsgi_answer(signed_in(member_of(two[0])))
    parts = iter(answer)
    assert [next(parts), next(parts)] == [b"begun", b"written"]
    assert connection.in_atomic_block
    answer.close()
    assert (written(), canaries(), connection.in_atomic_block) == (0, [], False)
    assert tidied == [["canary 0", "written"]], "what the body does at its end it does as the store"
    assert list(parts) == [], "nothing is made after it was closed"


def test_a_body_that_nobody_asks_for_opens_nothing(two: list[UUID]) -> None:
    Hook.view = streaming(looking)
    answer: Any = wsgi_answer(signed_in(member_of(two[0])))
    answer.close()
    assert not connection.in_atomic_block


def wsgi_answer(client: Any) -> Any:
    """Return what a WSGI server is given to send, and must close."""
    cookies = "; ".join(f"{name}={value.value}" for name, value in client.cookies.items())
    environ = RequestFactory(headers={"Cookie": cookies}).get("/hooked/").environ
    return WSGIHandler()({**environ, "wsgi.file_wrapper": FileWrapper}, lambda *_: lambda _: None)


def test_an_asynchronous_body_works_under_wsgi_too(two: list[UUID]) -> None:
    Hook.view = streaming(alooking)
    with pytest.warns(Warning, match="must consume asynchronous iterators"):
        parts = list(wsgi_answer(signed_in(member_of(two[0]))))
    assert [part.decode() for part in parts] == [f"{two[0]} ['canary 0']{end}" for end in ("", " and again")]
    assert (canaries(), connection.in_atomic_block) == ([], False)


@pytest.mark.parametrize("path", ["/ahooked/", "/ahooked-without-transaction/"])
def test_an_asynchronous_body_is_made_as_the_store(two: list[UUID], path: str) -> None:
    Hook.view = astreaming(alooking)
    answers = serve([(member_of(store), path) for store in two])
    for number, answer in enumerate(answers):
        seen = f"{two[number]} ['canary {number}']"
        assert answer.body.decode() == f"{seen}{seen} and again"


def test_a_synchronous_body_under_asgi_too(two: list[UUID]) -> None:
    Hook.view = astreaming(looking)
    with pytest.warns(Warning, match="must consume synchronous iterators"):
        [answer] = serve([(member_of(two[1]), "/ahooked/")])
    assert answer.body.decode() == f"{two[1]} ['canary 1'] ['canary 1']"


async def awriting() -> AsyncIterator[bytes]:
    """Write a row, then wait for what never comes."""
    await sync_to_async(write)(HttpRequest())
    yield b"written"
    await asyncio.Event().wait()


def test_a_client_that_goes_away_from_an_asynchronous_body_rolls_back(two: list[UUID]) -> None:
    Hook.view = astreaming(awriting)
    [answer] = serve([(member_of(two[0]), "/ahooked/")], leave_after=b"written")
    assert answer.body == b"written"
    assert written() == 0


class Rows(RawIOBase):
    """Is a file that is kept in rows."""

    ended = False

    def read(self, size: int = -1) -> bytes:
        """Read everything at once."""
        done, self.ended = self.ended, True
        return b"" if done else f"{current_store_id()} {canaries()}".encode()

    def seekable(self) -> bool:
        """Say that it is read from front to back."""
        return False


def test_files_are_sent_by_the_server_and_those_kept_in_rows_are_read_as_the_store(
    two: list[UUID], tmp_path: Path
) -> None:
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


def test_a_response_whose_body_can_not_be_reached_is_refused(two: list[UUID]) -> None:
    class OneOfTheirs(HttpResponseBase):
        """Streams in a way of its own."""

        streaming = True

        def __iter__(self) -> Iterator[bytes]:
            return looking()

    Hook.view = lambda request: OneOfTheirs()
    client = Client()
    client.force_login(member_of(two[0]))
    with pytest.raises(TenantContextError, match="OneOfTheirs streams in a way of its own"):
        client.get("/hooked/")
    assert not connection.in_atomic_block


def test_the_parts_of_an_asynchronous_body_may_be_asked_for_by_many_tasks(two: list[UUID]) -> None:
    async def ask_for_all() -> list[str]:
        response: Any = StreamingHttpResponse(alooking())
        stream_as(tenant_context(two[0]), response)
        parts = aiter(response.streaming_content)
        found = []
        for _ in range(2):
            found.append(await asyncio.create_task(anext(parts)))
            assert current_store_id() is None
        with pytest.raises(StopAsyncIteration):
            await anext(parts)
        await sync_to_async(lambda: connection.close())()  # noqa: PLW0108 - that of the thread
        return [part.decode() for part in found]

    assert asyncio.run(ask_for_all()) == [f"{two[0]} ['canary 0']{end}" for end in ("", " and again")]


class Failing:
    """Is a body whose first part fails, and which would go on."""

    failed = False

    def part(self) -> bytes:
        if not self.failed:
            self.failed = True
            raise ZeroDivisionError
        return str(current_store_id()).encode()


def test_a_body_that_failed_makes_no_parts_without_the_store(stores: list[UUID]) -> None:
    response = StreamingHttpResponse(iter(Failing().part, b""))
    stream_as(tenant_context(stores[0]), response)
    parts = iter(response)
    with pytest.raises(ZeroDivisionError):
        next(parts)
    assert next(parts, None) is None
    response.close()


def test_nor_does_one_whose_store_could_not_be_set(stores: list[UUID]) -> None:
    response = StreamingHttpResponse(iter([b"made"]))
    stream_as(tenant_context(stores[0]), response)
    parts = iter(response)
    with tenant_context(stores[1]), pytest.raises(TenantContextError):
        next(parts)
    assert next(parts, None) is None
    response.close()
