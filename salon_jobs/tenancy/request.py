"""``TenantMiddleware``: the store of a request, including streaming bodies and asynchronous views."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar, copy_context
from functools import partial
from io import BytesIO
from threading import Thread
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.signals import request_finished, request_started
from django.db import connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve
from django.utils.cache import patch_cache_control, patch_vary_headers
from django.utils.translation import gettext

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import StoreRefused, TenantContextError
from salon_jobs.core.events import REQUEST_REFUSED, log_event
from salon_jobs.core.records import StoreId
from salon_jobs.db.internals import is_non_atomic, resource_closers
from salon_jobs.db.session import discard
from salon_jobs.db.upkeep import clean_after_request, watch_sessions
from salon_jobs.tenancy.active import ActiveContext, forget_closed, surrounding
from salon_jobs.tenancy.choice import CHOICE, choose_store
from salon_jobs.tenancy.context import TenantContext, sync_step, tenant_context
from salon_jobs.tenancy.names import store_words
from salon_jobs.tenancy.resolvers import (
    HeaderResolver,
    OfMembers,
    StoreResolver,
    SubdomainResolver,
    make_resolver,
    memberships,
)
from salon_jobs.tenancy.violations import denial_of, denying

Closers: TypeAlias = tuple[Callable[[], object], ...]


def stream_as(context: TenantContext, response: HttpResponseBase) -> _StreamedBody | None:
    """Produce a streaming response's body as the request's store, in its own transaction if the view had one.

    The transaction begins with the first part. It commits when the body has ended, and rolls back when the body raises
    or the response is closed before that. A plain file, which makes no queries, is left for the server to send: then,
    and if the response does not stream, there is no body to return. Raises TenantContextError for a response whose body
    cannot be reached.
    """
    if not getattr(response, "streaming", False):
        return None
    if not isinstance(response, StreamingHttpResponse):
        raise TenantContextError(f"{type(response).__name__} streams in its own way: use StreamingHttpResponse")
    if _is_plain_file(response):
        return None
    # Code that closes the parts, including a generator's own close, must run before our end and inside the context.
    closers = resource_closers(response)
    body = _AsyncBody if response.is_async else _Body
    parts: Any = response.streaming_content
    wrapped: Any = body(aiter(parts) if response.is_async else iter(parts), context, tuple(closers))
    closers.clear()
    response.streaming_content = wrapped
    return cast("_StreamedBody", wrapped)


def _is_plain_file(response: StreamingHttpResponse) -> bool:
    file: Any = getattr(response, "file_to_stream", None)
    if isinstance(file, BytesIO):
        return True
    try:
        return file is not None and file.fileno() >= 0
    except (AttributeError, OSError):
        return False


class _StreamedBody:
    """Body of a response, with parts made as the store; between parts, the iterating thread has no store."""

    def __init__(self, parts: Any, as_store: TenantContext, closers: Closers) -> None:
        self._parts, self._as_store, self._closers = parts, as_store, closers
        self._variables = copy_context()
        self._ended = False

    def close(self) -> None:
        """Roll back unless the body has ended. Called in a synchronous thread when the response is closed."""
        self._ended = True
        self._variables.run(self._close)

    def watch(self, request: asyncio.Task[Any]) -> None:
        """Discard the connection if this task fails in the middle of the body, which Django then does not close."""
        request.add_done_callback(
            lambda task: None if task.cancelled() or task.exception() is None else self._abandon()
        )

    def __del__(self) -> None:
        self._abandon()

    def _abandon(self) -> None:
        """Discard the connection of a body that has neither ended nor been closed, and never will."""
        if self._as_store.is_open and not sys.is_finalizing():
            # With an event loop, Django closes none; a finalizer that runs inside the pool would wait for its lock.
            Thread(target=self._as_store.abandon, daemon=True).start()

    def _close(self) -> None:
        try:
            for close in self._closers:
                close()
        finally:
            self._as_store.roll_back()

    def _fail(self) -> None:
        """Roll back, and end with the connections as a request does: Django's ASGI handler ends no failed response."""
        self._ended = True
        try:
            self._as_store.roll_back()
        finally:
            for connection in connections.all(initialized_only=True):
                if not connection.in_atomic_block:  # it belongs to other work, such as a test around its client
                    connection.close_if_unusable_or_obsolete()


class _Body(_StreamedBody, Iterator[bytes]):
    def __next__(self) -> bytes:
        return self._variables.run(self._next)

    def _next(self) -> bytes:
        if self._ended:  # after an error too: nothing, rather than a part made without the store
            raise StopIteration
        try:
            if not self._as_store.is_open:
                self._as_store.__enter__()
            if (part := next(self._parts, None)) is not None:
                return cast("bytes", part)
            self._ended = True
            self._as_store.__exit__(None, None, None)
        except BaseException:
            self._fail()
            raise
        raise StopIteration


class _AsyncBody(_StreamedBody, AsyncIterator[bytes]):
    async def __anext__(self) -> bytes:
        # Made in the same context in any task that asks for the part.
        part = await asyncio.create_task(self._next(), context=self._variables)
        if part is None:
            raise StopAsyncIteration
        return part

    async def _next(self) -> bytes | None:
        if self._ended:
            return None
        try:
            if not self._as_store.is_open:
                await self._as_store.__aenter__()
            if (part := await anext(self._parts, None)) is not None:
                return cast("bytes", part)
            self._ended = True
            await self._as_store.__aexit__(None, None, None)
            return None
        except BaseException:
            try:
                await sync_step(self._fail)
            finally:
                forget_closed()
            raise


V = TypeVar("V", bound=Callable[..., Any])


def without_store(view: V) -> V:
    """Mark a view that has no store: it runs without store or transaction, and row-level security shows it no rows.

    For views such as sign-in and the choice of a store. For classes: ``method_decorator(without_store, "dispatch")``.
    """
    view.salon_jobs_without_store = True  # type: ignore[attr-defined]
    return view


class TenantMiddleware:
    """Middleware that runs each view in a transaction as the store of the request, and commits.

    Place it after AuthenticationMiddleware. ``REQUEST_STORE`` defines how the store is found. A store to which the user
    does not belong gets a 403, as does a request without one; ``REQUEST_WITHOUT_STORE`` has alternatives. An exception
    that leaves the view, and a response of 500 or more, roll back; other responses commit. A view marked with Django's
    ``non_atomic_requests`` has no transaction: the store is set in every one it begins.
    """

    sync_capable: ClassVar[bool] = True
    async_capable: ClassVar[bool] = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        watch_requests()  # a custom resolver needs no STORE_MODEL
        self.get_response = get_response
        self.resolver = make_resolver()
        self.is_async = iscoroutinefunction(get_response)  # pyright: ignore[reportDeprecated] - inspect's does not know marks, in Python 3.11
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Process the request."""
        if (view := _view_of(request)) is None:
            return cast("HttpResponseBase", self.get_response(request))
        return self._run_async(request, view) if self.is_async else self._run(request, view)

    def _run(self, request: HttpRequest, view: Callable[..., Any]) -> HttpResponseBase:
        store, response = self._store_of(request)
        if store is not None:
            make = context_maker(view, store)
            with denying(), _attach(make(), request) as context:
                response = self.get_response(request)
                stream_if_open(context, make, response)
                if rolls_back(context, response):
                    context.roll_back()
        elif response is None:
            response = self.get_response(request)
        return self._vary(request, response)

    async def _run_async(self, request: HttpRequest, view: Callable[..., Any]) -> HttpResponseBase:
        """Process the request, with all database work in the thread of the request's synchronous parts."""
        store, response = await sync_to_async(self._store_of)(request)
        if store is not None:
            make = context_maker(view, store)
            with denying():
                async with _attach(make(), request) as context:
                    response = await self.get_response(request)
                    if (body := stream_if_open(context, make, response)) and (task := asyncio.current_task()):
                        body.watch(task)
                    if rolls_back(context, response):
                        await context.aroll_back()
        elif response is None:
            response = await self.get_response(request)
        return self._vary(request, response)

    def process_exception(self, request: HttpRequest, exception: Exception) -> None:
        """Roll back the view's writes at once: error pages are made outside its transaction, without a store.

        Refusals of row-level security are answered like PermissionDenied.
        """
        context: TenantContext | None = getattr(request, "_salon_jobs_context", None)
        if context is not None:
            context.roll_back()
            if (denied := denial_of(exception)) is not None:
                raise denied from exception

    def refuse(self, request: HttpRequest, refused: StoreRefused) -> HttpResponseBase:
        """Return the response for a rejected store: plain text. Override it for a custom page."""
        return HttpResponse(f"{refused}\n", status=refused.status, content_type="text/plain; charset=utf-8")

    def _store_of(self, request: HttpRequest) -> tuple[StoreId | None, HttpResponseBase | None]:
        """Return the store of the request, and the response if it was refused."""
        chooses = conf.request_without_store == "choose" and conf.request_resolver in ("membership", "session")
        try:
            try:
                store = find_store(None if chooses and CHOICE in request.GET else self.resolver, request)
            except StoreRefused:
                if (
                    chooses
                    and request.user.is_authenticated
                    and (CHOICE in request.POST or "text/html" in request.headers.get("Accept", ""))
                ):
                    return None, choose_store(request)
                raise
        except StoreRefused as refused:
            log_refusal(request, refused)
            return None, self.refuse(request, refused)
        return store, None

    def _vary(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        vary_by_store(self.resolver, request, response, by_host=True)
        return response


def find_store(resolver: StoreResolver | None, request: HttpRequest) -> StoreId | None:
    """Return the store of a request; None if it has none and runs without. Raises StoreRefused."""
    store = None if resolver is None else resolver.resolve(request)
    if resolver is not None and store is not None and not resolver.allowed(request, store):
        raise StoreRefused(gettext("you do not belong to this %(store)s") % store_words())
    if store is None and conf.request_without_store != "continue":
        raise StoreRefused(_none_is_chosen(resolver, request) % {**store_words(), "header": conf.request_header})
    return store


def _none_is_chosen(resolver: StoreResolver | None, request: HttpRequest) -> str:
    """Return the remedy for a request without a store: a client that has signed in by a token sends a header."""
    user = getattr(request, "user", None)  # a custom resolver needs no user and no memberships
    if not isinstance(resolver, HeaderResolver) or user is None or not user.is_authenticated:
        return gettext("no %(store)s is chosen: sign in, or choose one of yours")
    if conf.membership_model is not None and not memberships(request):
        return gettext("you belong to no %(store)s")
    return gettext("no %(store)s is chosen: name one of yours in the header %(header)s, by its key")


def log_refusal(request: HttpRequest, refused: StoreRefused) -> None:
    user = getattr(getattr(request, "user", None), "pk", None)
    path = request.path.encode("unicode_escape").decode()  # a line break would look like another record
    log_event(logging.WARNING, REQUEST_REFUSED, detail=str(refused), user_id=user, path=path)


def vary_by_store(
    resolver: StoreResolver, request: HttpRequest, response: HttpResponseBase, *, by_host: bool = False
) -> None:
    """Tell caches on which headers the store depends, and shared caches to keep no copy.

    Responses that a view declares ``public`` may be kept, and so may, ``by_host``, those of stores with their own host
    names: for caches that hand them out only to users whom the middleware has let in. Where the session names one of
    several stores, no header tells the browser of a switch: it asks before it shows its own copy, and not by a date.
    """
    if vary := getattr(resolver, "vary", ()):
        patch_vary_headers(response, vary)
    if not (by_host and isinstance(resolver, SubdomainResolver)) and "public" not in response.get("Cache-Control", ""):
        patch_cache_control(response, private=True)
        if isinstance(resolver, OfMembers) and resolver.follows_session(request):
            patch_cache_control(response, no_cache=True)
            del response["Last-Modified"]


def _view_of(request: HttpRequest) -> Callable[..., Any] | None:
    """Return the view that needs a store; None for paths and views without one, and if there is no view.

    A view wrongly counted among these sees no rows.
    """
    path = request.path_info
    if is_path_without_store(path):
        return None
    try:
        view = resolve(path, getattr(request, "urlconf", None)).func
    except Resolver404:
        return None
    return None if getattr(view, "salon_jobs_without_store", False) else view


def is_path_without_store(path: str) -> bool:
    """Return whether ``PATHS_WITHOUT_STORE`` lists a path."""
    return any(path.startswith(prefix) or path == prefix[:-1] for prefix in conf.paths_without_store)


def context_maker(view: Callable[..., Any], store: StoreId) -> Callable[[], TenantContext]:
    return partial(tenant_context, store, atomic=not is_non_atomic(view, conf.database))


def stream_if_open(
    context: TenantContext, make: Callable[[], TenantContext], response: HttpResponseBase
) -> _StreamedBody | None:
    """Make a streaming body run as the store, unless an exception has left the view."""
    return stream_as(make(), response) if context.is_open else None


def rolls_back(context: TenantContext, response: HttpResponseBase) -> bool:
    return response.status_code >= 500 or (response.status_code >= 400 and context.is_lost)


def _attach(context: TenantContext, request: HttpRequest) -> TenantContext:
    """Store the context where ``process_exception`` finds it."""
    request.__dict__["_salon_jobs_context"] = context
    return context


# Contexts around the request, such as those in which a test calls its client.
_around: ContextVar[tuple[ActiveContext, ...]] = ContextVar("salon_jobs_around_request", default=())


def watch_requests() -> None:
    """Connect to the start and the end of each request of this process. Idempotent."""
    watch_sessions()
    request_started.connect(_watch_from_now_on, dispatch_uid="salon_jobs.session_reset")
    request_started.connect(_note_surrounding, dispatch_uid="salon_jobs.request_guard")
    request_finished.connect(_end_request, dispatch_uid="salon_jobs.request_guard")


def _watch_from_now_on(**_: object) -> None:
    """Run after the receivers that other apps connected when they were ready."""
    request_started.disconnect(dispatch_uid="salon_jobs.session_reset")
    watch_sessions()


def _note_surrounding(**_: object) -> None:
    _around.set(surrounding())


def _end_request(**_: object) -> None:
    """End the contexts that the request left open, and reset the sessions of its connections."""
    left_open = [
        context
        for context in surrounding()
        if context not in _around.get() and connections[context.connection.alias] is context.connection
    ]
    for context in left_open:
        context.close()
    for connection in {context.connection for context in left_open}:
        discard(connection, "a request left a tenant context open")
        # A connection closed inside a transaction stays unusable; Django replaces a missing one.
        del connections[connection.alias]
    for connection in connections.all(initialized_only=True):
        clean_after_request(connection)
