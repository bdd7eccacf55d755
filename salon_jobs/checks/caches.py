"""Checks that no cache hands one store's page, or a session, to another."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from django.core.cache import DEFAULT_CACHE_ALIAS
from django.core.checks import CheckMessage, Error
from django.middleware.cache import CacheMiddleware
from django.urls import URLResolver, get_resolver

from salon_jobs.checks import OURS, names_of
from salon_jobs.conf import cache_settings, has_urls, middleware
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.tenancy.caches import store_key
from salon_jobs.tenancy.request import is_path_without_store
from salon_jobs.tenancy.resolvers import StoreResolver, SubdomainResolver, make_resolver

KEY_FUNCTION: Final = f"{store_key.__module__}.{store_key.__name__}"
_FETCHES: Final = "django.middleware.cache.FetchFromCacheMiddleware"
_UPDATES: Final = "django.middleware.cache.UpdateCacheMiddleware"
_METHODS: Final = ("dispatch", "get", "head", "list", "retrieve")
_DEEPEST: Final = 8


def check_caches(**_: Any) -> list[CheckMessage]:
    """Check that caches of pages and of sessions suit stores. Loads the URLs."""
    try:
        if conf.store_model is None:
            return []
    except ConfigurationError:
        return []  # E001
    known, of_middleware, of_sessions = cache_settings()
    found = list(_check_pages(known, of_middleware, by_host=isinstance(_resolver(), SubdomainResolver)))
    if of_sessions is not None and known.get(of_sessions, {}).get("KEY_FUNCTION") in (KEY_FUNCTION, store_key):
        text = f"sessions are in the cache {of_sessions!r}, whose keys contain the store: views would not find them"
        hint = "set SESSION_CACHE_ALIAS to a cache without this KEY_FUNCTION"
        found.append(Error(text, hint=hint, id="salon_jobs.E063"))
    return found


def _resolver() -> StoreResolver | None:
    try:
        return make_resolver()
    except ConfigurationError:
        return None  # E030


def _check_pages(
    known: Mapping[str, Mapping[str, Any]], of_middleware: str, *, by_host: bool
) -> Iterator[CheckMessage]:
    """Check the caches of pages. ``by_host``: a host, which is part of a page's key, has one store.

    Then pages may be stored outside of the stores, but whoever asks for one must belong to its store.
    """
    outside = {_FETCHES} if by_host else {_FETCHES, _UPDATES}
    names = middleware()
    kinds = [names_of(name) for name in names]
    tenants = [position for position, kind in enumerate(kinds) if OURS in kind]
    of_pages = [position for position, kind in enumerate(kinds) if kind & outside]
    users: dict[str, str] = {}
    if tenants and of_pages:
        users[of_middleware] = names[of_pages[0]]
        if of_pages[0] < tenants[0]:
            hint = f"in MIDDLEWARE, put {names[tenants[0]]!r} before it"
            yield Error(f"{names[of_pages[0]]} caches pages outside of their stores", hint=hint, id="salon_jobs.E061")
    if by_host:
        return
    for path, view in _views() if has_urls() else ():
        if _has_store(path, view, by_middleware=bool(tenants)):
            for alias in _aliases(view):
                users.setdefault(alias, f"the view of {path!r}")
    for alias, user in sorted(users.items()):
        if "KEY_FUNCTION" not in known.get(alias, {}):
            text = f"the cache {alias!r}, in which {user} caches pages, may hand one store's page to another"
            hint = f"set CACHES[{alias!r}]['KEY_FUNCTION'] to {KEY_FUNCTION!r}"
            yield Error(text, hint=hint, id="salon_jobs.E062")


def _has_store(path: str, view: Any, *, by_middleware: bool) -> bool:
    """Return whether a view runs as a store: by the middleware, or as a view of Django REST framework."""
    framework = sys.modules.get("salon_jobs.integrations.rest_framework")
    if framework is not None and issubclass(getattr(view, "cls", object), framework.TenantAPIView):
        return True
    is_free = getattr(view, "salon_jobs_without_store", False) or is_path_without_store(path)
    return by_middleware and not is_free


def _views(resolver: URLResolver | None = None, prefix: str = "/") -> Iterator[tuple[str, Any]]:
    """Yield each view with its path."""
    for each in (resolver or get_resolver()).url_patterns:
        path = f"{prefix}{each.pattern}"
        if isinstance(each, URLResolver):
            yield from _views(each, path)
        else:
            yield path, each.callback


def _aliases(view: Any) -> set[str]:
    """Return the caches in which a view caches its pages, for each way in which ``cache_page`` can decorate it."""
    found = _in_closures(view, _DEEPEST)
    kind = getattr(view, "view_class", getattr(view, "cls", None))
    actions: dict[str, str] = getattr(view, "actions", None) or {}  # a viewset names its own methods
    for name in (*_METHODS, *actions.values()) if kind is not None else ():
        found |= _in_closures(getattr(kind, name, None), _DEEPEST)
    return found


def _in_closures(value: Any, depth: int) -> set[str]:
    """Look for ``CacheMiddleware`` in the references of a decorated function: an instance, or the future decorator."""
    if isinstance(value, CacheMiddleware):
        return {str(value.cache_alias)}
    if isinstance(value, partial):
        return _in_closures(value.func, depth)
    if depth == 0:
        return set()
    if isinstance(value, (list, tuple)):
        decorators = cast("Sequence[object]", value)
        return {alias for each in decorators for alias in _in_closures(each, depth - 1)}
    cells: dict[str, Any] = {}
    code: Any = getattr(value, "__code__", None)
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(value, "__closure__", None) or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    if cells.get("middleware_class") is CacheMiddleware:  # a decorator that method_decorator will apply
        given: dict[str, Any] = cells.get("m_kwargs") or {}
        return {str(given.get("cache_alias") or DEFAULT_CACHE_ALIAS)}
    return {alias for each in cells.values() for alias in _in_closures(each, depth - 1)}
