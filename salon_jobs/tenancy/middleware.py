"""Runs each request as the store of its user: ``TenantMiddleware``, and ``without_store`` for views that have none."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeVar, cast
from uuid import UUID

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve
from django.utils.cache import patch_vary_headers

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import StoreRefused
from salon_jobs.core.log_events import REQUEST_REFUSED, log_event
from salon_jobs.tenancy.resolvers import make_resolver
from salon_jobs.tenancy.scope import StoreScope
from salon_jobs.tenancy.streaming import stream_as

V = TypeVar("V", bound=Callable[..., Any])


def without_store(view: V) -> V:
    """Mark a view that has no store: it runs without one, in no transaction of ours, and row-level security shows none.

    For views such as sign-in and the choice of a store. Of a class: ``method_decorator(without_store, "dispatch")``.
    """
    view.salon_jobs_without_store = True  # type: ignore[attr-defined]
    return view


class TenantMiddleware:
    """Opens a transaction as the store of the request, runs the view in it, and commits.

    Stands after AuthenticationMiddleware. ``REQUEST_STORE`` says how the store is found; a store that the user does
    not belong to is answered with 403, and so is none unless ``REQUEST_WITHOUT_STORE`` is ``continue``. An exception
    that leaves the view, and a response of 500 or more, roll back; other responses commit. A view marked with Django's
    ``non_atomic_requests`` has no transaction: the store is set at every one it begins.
    """

    sync_capable: ClassVar[bool] = True
    async_capable: ClassVar[bool] = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.resolver = make_resolver()
        self.is_async = iscoroutinefunction(get_response)  # pyright: ignore[reportDeprecated] - inspect's does not know marks, in Python 3.11
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Answer the request."""
        if self.is_async:
            return self._acall(request)
        view = _view_of(request)
        if view is None:
            return cast("HttpResponseBase", self.get_response(request))
        try:
            store = self._store_of(request)
        except StoreRefused as refused:
            return self._vary(self.refuse(request, refused))
        if store is None:
            return self._vary(self.get_response(request))
        scope = _begin(request, view, store)
        scope.open()
        try:
            response: HttpResponseBase = self.get_response(request)
            if scope.is_open:
                stream_as(scope.again(), response)
        except BaseException:
            scope.close(undo=True)
            raise
        scope.close(undo=response.status_code >= 500)
        return self._vary(response)

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        """Do the same, with all that touches the database in the thread of the request's synchronous parts."""
        view = _view_of(request)
        if view is None:
            return cast("HttpResponseBase", await self.get_response(request))
        try:
            store = await sync_to_async(self._store_of)(request)
        except StoreRefused as refused:
            return self._vary(self.refuse(request, refused))
        if store is None:
            return self._vary(await self.get_response(request))
        scope = _begin(request, view, store)
        await scope.aopen()
        try:
            response: HttpResponseBase = await self.get_response(request)
            if scope.is_open:
                stream_as(scope.again(), response)
        except BaseException:
            await scope.aclose(undo=True)
            raise
        await scope.aclose(undo=response.status_code >= 500)
        return self._vary(response)

    def process_exception(self, request: HttpRequest, exception: Exception) -> None:
        """Roll back at once what the view did: error pages are made without a store, outside its transaction."""
        scope: StoreScope | None = getattr(request, "_salon_jobs_scope", None)
        if scope is not None:
            scope.close(undo=True)

    def refuse(self, request: HttpRequest, refused: StoreRefused) -> HttpResponseBase:
        """Answer a request whose store is refused: plain text. Override it for a page of your own."""
        return HttpResponse(f"{refused}\n", status=refused.status, content_type="text/plain; charset=utf-8")

    def _store_of(self, request: HttpRequest) -> UUID | None:
        """Resolve the store. Raises StoreRefused."""
        try:
            store = self.resolver.resolve(request)
            if store is not None and not self.resolver.allowed(request, store):
                raise StoreRefused("you do not belong to this store")
            if store is None and conf.request_without_store == "refuse":
                raise StoreRefused("this needs a store: sign in, or choose one of yours")
        except StoreRefused as refused:
            user = getattr(getattr(request, "user", None), "pk", None)
            path = request.path.encode("unicode_escape").decode()  # a line break in it would look like another record
            log_event(logging.WARNING, REQUEST_REFUSED, detail=str(refused), user_id=user, path=path)
            raise
        return store

    def _vary(self, response: HttpResponseBase) -> HttpResponseBase:
        """Tell caches which headers chose the store."""
        if vary := getattr(self.resolver, "vary", ()):
            patch_vary_headers(response, vary)
        return response


def _view_of(request: HttpRequest) -> Callable[..., Any] | None:
    """Return the view that needs a store; None for paths and views that have none, and where there is no view.

    Whoever is taken for one of them wrongly sees no rows.
    """
    path = request.path_info
    if any(path.startswith(prefix) or path == prefix[:-1] for prefix in conf.paths_without_store):
        return None
    try:
        view = resolve(path, getattr(request, "urlconf", None)).func
    except Resolver404:
        return None
    return None if getattr(view, "salon_jobs_without_store", False) else view


def _begin(request: HttpRequest, view: Callable[..., Any], store: UUID) -> StoreScope:
    """Return the context for a view, and leave it where ``process_exception`` finds it."""
    atomic = conf.database not in getattr(view, "_non_atomic_requests", ())
    scope = StoreScope(store, atomic=atomic)
    request.__dict__["_salon_jobs_scope"] = scope
    return scope
