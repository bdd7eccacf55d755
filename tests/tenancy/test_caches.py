"""Caches hand no store what another has cached, in whichever way pages and values are cached."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import UUID

import pytest
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.test import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import cache_control, cache_page
from django.views.decorators.http import last_modified
from rest_framework.authentication import SessionAuthentication
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from project.salon.models import Customer, Membership
from salon_jobs.checks.caches import KEY_FUNCTION, check_caches
from salon_jobs.integrations.rest_framework import TenantAPIView
from salon_jobs.tenancy.caches import store_key
from salon_jobs.tenancy.request import without_store
from tests.settings import MIDDLEWARE
from tests.tenancy.web import canaries, configured, look, member_of, name_in_session, signed_in

BY_STORE: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "KEY_FUNCTION": KEY_FUNCTION},
    "plain": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "plain"},
}
SHARED = {"default": BY_STORE["plain"]}
FETCH = "django.middleware.cache.FetchFromCacheMiddleware"
UPDATE = "django.middleware.cache.UpdateCacheMiddleware"


class Page(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return look(request)  # type: ignore[return-value]


@method_decorator(cache_page(60), name="dispatch")
class CachedPage(Page): ...


class CachedMethod(Page):
    @method_decorator(cache_page(60))
    def get(self, request: HttpRequest) -> HttpResponse:
        return super().get(request)


class Api(TenantAPIView):
    authentication_classes: ClassVar = [SessionAuthentication]
    permission_classes: ClassVar = [IsAuthenticated]

    def get(self, request: Request) -> Response:
        return Response({"seen": canaries()})


@method_decorator(cache_page(60), name="dispatch")
class CachedApi(Api): ...


class CachedApiMethod(Api):
    @method_decorator(cache_page(60))
    def get(self, request: Request) -> Response:
        return super().get(request)


class CachedAction(TenantAPIView, ViewSet):
    authentication_classes: ClassVar = [SessionAuthentication]
    permission_classes: ClassVar = [IsAuthenticated]

    @method_decorator(cache_page(60))
    def figures(self, request: Request) -> Response:
        return Response({"seen": canaries()})


def dated(view: Any) -> Any:
    return cache_control(max_age=600)(last_modified(lambda request: datetime(2026, 1, 1, tzinfo=UTC))(view))


class DatedApi(Api):
    @method_decorator(dated)
    def get(self, request: Request) -> Response:
        return super().get(request)


async def aview(request: HttpRequest) -> HttpResponse:
    seen = [each.name async for each in Customer.objects.all()]
    return HttpResponse(str(seen))


def fragment(request: HttpRequest) -> HttpResponse:
    source = "{% load cache %}{% cache 60 list %}{% for each in rows %}{{ each.name }}{% endfor %}{% endcache %}"
    return HttpResponse(engines["django"].from_string(source).render({"rows": Customer.objects.all()}))


def value(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(cache.get_or_set("names", canaries)))


CACHED: dict[str, Any] = {
    "function": cache_page(60)(look),
    "coroutine": cache_page(60)(aview),
    "dispatch": CachedPage.as_view(),
    "method": CachedMethod.as_view(),
    "api-dispatch": CachedApi.as_view(),
    "api-method": CachedApiMethod.as_view(),
    "api-action": CachedAction.as_view({"get": "figures"}),
    "fragment": fragment,
    "value": value,
}
PAGES = sorted(CACHED.keys() - {"fragment", "value"})
urlpatterns = [
    *(path(f"{name}/", view) for name, view in CACHED.items()),
    path("plain/", look),
    path("public/", cache_control(public=True)(look)),
    path("dated/", dated(look)),
    path("api-dated/", DatedApi.as_view()),
]


@pytest.fixture(autouse=True)
def routes(web_role: None) -> Iterator[None]:
    with configured(), override_settings(ROOT_URLCONF=__name__, CACHES=BY_STORE):
        yield
        cache.clear()


def get(client: Any, path: str, **headers: str) -> str:
    answer = client.get(path, headers=headers)
    assert answer.status_code == 200, answer.content
    return str(answer.content)


@pytest.mark.parametrize("how", ["membership", "session", "header"])
@pytest.mark.parametrize("name", CACHED)
def test_cache_of_two_stores(two: list[UUID], name: str, how: str) -> None:
    """Each member of two stores sees the own store's page, and sees it from the cache."""
    clients: list[tuple[Any, dict[str, str]]]
    if how == "membership":
        clients = [(signed_in(member_of(store)), {}) for store in two]
    elif how == "session":
        clients = [(signed_in(member_of(*two)), {}) for store in two]
        for (client, _), store in zip(clients, two, strict=True):
            name_in_session(client, store)
    else:
        one = signed_in(member_of(*two))
        clients = [(one, {"X-Store-Id": str(store)}) for store in two]
    for _ in range(2):
        for number, (client, headers) in enumerate(clients):
            page = get(client, f"/{name}/", **headers)
            assert f"canary {number}" in page
            assert f"canary {1 - number}" not in page


@pytest.mark.parametrize("name", sorted(CACHED.keys() - {"api-dispatch"}))
def test_page_comes_from_the_cache(two: list[UUID], name: str) -> None:
    client = signed_in(member_of(two[0]))
    before = get(client, f"/{name}/")
    Customer.objects.using("owner").all().delete()
    assert get(client, f"/{name}/") == before


@pytest.mark.parametrize("name", PAGES)
def test_cached_page_of_a_host(two: list[UUID], name: str) -> None:
    """It reaches the members of its store alone, though every store has its own host name."""
    host = {"SERVER_NAME": f"{two[0]}.salons.example"}
    with configured(REQUEST_STORE="*.salons.example"), override_settings(ROOT_URLCONF=__name__):
        assert "canary 0" in get(signed_in(member_of(two[0]), **host), f"/{name}/")
        for user in (member_of(two[1]), None):
            assert signed_in(user, **host).get(f"/{name}/").status_code == 403


@pytest.mark.parametrize("place", [1, 1 + len(MIDDLEWARE)], ids=["outside", "inside"])
def test_page_of_a_host_after_a_membership(two: list[UUID], place: int) -> None:
    """Outside of the stores it is handed out to somebody who has left, and the check says so."""
    names = [UPDATE, *MIDDLEWARE]
    names[place:place] = [FETCH]
    user = member_of(two[0])
    client = signed_in(user, SERVER_NAME=f"{two[0]}.salons.example")
    with (
        configured(REQUEST_STORE="*.salons.example"),
        override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=names, CACHES=SHARED),
    ):
        get(client, "/plain/")
        Membership.objects.using("owner").filter(user_id=user.pk).delete()
        assert client.get("/plain/").status_code == (200 if place == 1 else 403)
        assert [each.id for each in check_caches()] == (["salon_jobs.E061"] if place == 1 else [])


@pytest.mark.parametrize("place", [0, len(MIDDLEWARE)], ids=["outside", "inside"])
def test_cache_of_the_whole_site(two: list[UUID], place: int) -> None:
    """Outside of the stores nothing is cached; inside, each store has its pages. The check names the former."""
    names = [*MIDDLEWARE]
    names[place:place] = [UPDATE]
    clients = [signed_in(member_of(store)) for store in two]
    with override_settings(MIDDLEWARE=[*names, FETCH]):
        for _ in range(2):
            for number, client in enumerate(clients):
                assert f"canary {number}" in get(client, "/plain/")
        assert ("salon_jobs.E061" in [each.id for each in check_caches()]) is (place == 0)


def test_key_contains_the_whole_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores whose keys are texts share no key, whatever these contain, and Memcached accepts it."""
    stores = [None, "a", "a:b", "a:", ":", "a b", "é", "a%3Ab"]
    keys = []
    for store in stores:
        monkeypatch.setattr("salon_jobs.tenancy.caches.current_store_id", lambda store=store: store)
        keys += [store_key(key, "p", 1) for key in ("c", "b:c", ":c", "a:c")]
    assert len({*keys}) == len(keys)
    assert all(each.isascii() and each.isprintable() and " " not in each for each in keys)


@pytest.mark.parametrize("resolver", ["membership", "session"])
def test_response_of_a_store_is_private(two: list[UUID], resolver: str) -> None:
    client = signed_in(member_of(*two[:1]))
    name_in_session(client, two[0])
    with configured(REQUEST_STORE=resolver), override_settings(ROOT_URLCONF=__name__):
        assert client.get("/plain/")["Cache-Control"] == "private"
        assert client.get("/public/")["Cache-Control"] == "public"


@pytest.mark.parametrize("page", ["dated", "api-dated"])
@pytest.mark.parametrize("how", ["membership", "session", "header", "one store", "host"])
def test_browser_asks_after_a_switch(two: list[UUID], how: str, page: str) -> None:
    """A switch in the session leaves address and headers as they were, and a date tells nothing of the store."""
    resolver = {"header": "header", "session": "session", "host": "*.salons.example"}.get(how, "membership")
    host = {"SERVER_NAME": f"{two[0]}.salons.example"} if how == "host" else {}
    client = signed_in(member_of(*two[: 1 if how == "one store" else 2]), **host)
    name_in_session(client, two[0])
    with configured(REQUEST_STORE=resolver), override_settings(ROOT_URLCONF=__name__):
        answer = client.get(f"/{page}/", headers={"X-Store-Id": str(two[0])} if how == "header" else {})
    asks = how in ("membership", "session")
    assert "canary 0" in answer.content.decode()
    assert ("no-cache" in answer["Cache-Control"], "Last-Modified" in answer) == (asks, not asks)
    assert "max-age=600" in answer["Cache-Control"]


@pytest.mark.parametrize("caches", [SHARED, BY_STORE], ids=["shared", "by store"])
@pytest.mark.parametrize("name", PAGES)
def test_check_finds_cached_pages(name: str, caches: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    routes = [path(f"{name}/", CACHED[name]), path("plain/", look), path("free/", without_store(cache_page(1)(look)))]
    monkeypatch.setitem(globals(), "urlpatterns", routes)
    with override_settings(ROOT_URLCONF=f"{__name__}", CACHES=caches):
        found = check_caches()
    assert [each.id for each in found] == (["salon_jobs.E062"] if caches is SHARED else [])
    assert all(f"/{name}/" in each.msg and KEY_FUNCTION in str(each.hint) for each in found)


@pytest.mark.parametrize("alias", ["default", "plain"])
def test_check_finds_sessions_by_store(alias: str) -> None:
    engine = "django.contrib.sessions.backends.cached_db"
    with override_settings(SESSION_ENGINE=engine, SESSION_CACHE_ALIAS=alias):
        assert [each.id for each in check_caches()] == (["salon_jobs.E063"] if alias == "default" else [])


def test_check_without_views() -> None:
    """A project of workers has no URLs."""
    with override_settings(ROOT_URLCONF=None, CACHES=SHARED):
        assert check_caches() == []
