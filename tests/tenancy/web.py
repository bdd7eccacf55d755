"""Views, clients and stores for tests of the middleware, as the web role."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.test import AsyncClient, Client, override_settings
from django.urls import path, re_path

from project.salon.models import Customer, Membership
from salon_jobs import current_store_id
from salon_jobs.tenancy.request import without_store
from tests.interpreter import run_python
from tests.settings import SALON_JOBS
from tests.support import change, new_store_id, row, seen
from tests.waiting import LIMIT_S

NOTHING: dict[str, Any] = {"store": None, "seen": []}
both_handlers = pytest.mark.parametrize("path", ["/hooked/", "/ahooked/"])


def canaries() -> list[str]:
    """Return the customers that are visible; each store has one, named after it."""
    return list(Customer.objects.order_by("name").values_list("name", flat=True))


def expected(stores: list[UUID], number: int) -> dict[str, Any]:
    """Return the response of a view of one store."""
    return {"store": json.loads(DjangoJSONEncoder().encode(stores[number])), "seen": [f"canary {number}"]}


def look(request: HttpRequest) -> HttpResponseBase:
    return JsonResponse({"store": current_store_id(), "seen": canaries()})


async def alook(request: HttpRequest) -> HttpResponseBase:
    names = [name async for name in Customer.objects.order_by("name").values_list("name", flat=True)]
    return JsonResponse({"store": current_store_id(), "seen": names})


def write(request: HttpRequest | None = None) -> None:
    """Insert a row of the store."""
    store = current_store_id()
    assert store is not None
    Customer.objects.create(store_id=store, name="written", email="")


def written() -> int:
    """Count the rows that were committed."""
    return int(seen("SELECT count(*) FROM customer WHERE name = 'written'")[0][0])


def does(*works: Callable[[], object], status: int = 200) -> Callable[[HttpRequest], HttpResponse]:
    """Return a view that does this and answers."""

    def view(request: HttpRequest) -> HttpResponse:
        for work in works:
            work()
        return HttpResponse(status=status)

    return view


class Hook:
    """Holder of the view that a test sets."""

    view: ClassVar[Callable[..., Any]] = look


def hooked(request: HttpRequest) -> Any:
    return Hook.view(request)


async def ahooked(request: HttpRequest) -> Any:
    return await Hook.view(request)


@transaction.non_atomic_requests
def hooked_without_transaction(request: HttpRequest) -> Any:
    return hooked(request)


@transaction.non_atomic_requests
async def ahooked_without_transaction(request: HttpRequest) -> Any:
    return await ahooked(request)


@without_store
def look_free(request: HttpRequest) -> HttpResponseBase:
    return look(request)


def error_page(request: HttpRequest) -> HttpResponseBase:
    return HttpResponse(f"store {current_store_id()}, in a transaction {connection.in_atomic_block}", status=500)


handler500 = error_page
urlpatterns = [
    path("hooked/", hooked),
    path("ahooked/", ahooked),
    path("hooked-without-transaction/", hooked_without_transaction),
    path("ahooked-without-transaction/", ahooked_without_transaction),
    path("free/", look_free),
    path("open/here/", look),
    path("opened/", look),
    re_path(r"^line/(?s:.*)$", look),
]


def configured(**options: Any) -> override_settings:
    """Override the demo's SALON_JOBS, and use the routes above."""
    wanted = {**SALON_JOBS, "PATHS_WITHOUT_STORE": ["/open/"], **options}
    return override_settings(ROOT_URLCONF="tests.tenancy.web", ALLOWED_HOSTS=["*"], SALON_JOBS=wanted)


@contextmanager
def logged_in_as(alias: str) -> Iterator[None]:
    """Make ``default`` a connection of an alias's login, in this thread and in those that a server starts."""
    worker, settings = connections["default"], connections.settings["default"]
    # Under ASGI each request has a thread, and its connection goes with it.
    connections.settings["default"] = {**connections.settings[alias], "CONN_MAX_AGE": 0}
    del connections["default"]
    try:
        yield
    finally:
        connections["default"].close()
        connections.settings["default"] = settings
        connections["default"] = worker


@pytest.fixture
def web_role(database: None) -> Iterator[None]:
    """Make ``default`` the web role's connection."""
    Hook.view = look
    with logged_in_as("web"), configured():
        yield


@pytest.fixture
def two(web_role: None) -> Iterator[list[UUID]]:
    """Create two stores, each with its canary."""
    stores = sorted(new_store_id() for _ in range(2))
    for number, store in enumerate(stores):
        change("INSERT INTO store (id, name) VALUES (%s, %s)", store, f"Salon {number}")
        row("customer", store_id=store, name=f"canary {number}", email="")
    yield stores
    if connection.in_atomic_block:
        connection.close()
    change("TRUNCATE auth_user CASCADE")


@pytest.fixture
def kept(two: list[UUID]) -> list[UUID]:
    """Keep connections from one request to the next, as CONN_MAX_AGE does."""
    connections.settings["default"]["CONN_MAX_AGE"] = 600
    connections["default"].close()
    del connections["default"]
    return two


def member_of(*stores: UUID) -> User:
    """Create a user who belongs to stores."""
    user = User.objects.using("owner").create(username=f"user {uuid4()}")
    for store in stores:
        Membership.objects.using("owner").create(user_id=user.pk, store_id=store)
    return user


def signed_in(user: User | None, **options: Any) -> Client:
    """Return a client signed in as a user; None: not signed in."""
    client = Client(raise_request_exception=False, **options)
    if user is not None:
        client.force_login(user)
    return client


def name_in_session(client: Client, store: object) -> None:
    session = client.session
    session["store_id"] = str(store)
    session.save()


def serve_process(
    first_request: str = "from django.db import connection; connection.ensure_connection(); print('served')",
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Load the WSGI application in a process of its own and connect, as a request would."""
    program = "import warnings; warnings.simplefilter('error'); import project.wsgi; "
    surroundings = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", **environment}
    return run_python("-c", program + first_request, environment=surroundings)


def get_async(user: User, path: str, **options: Any) -> Any:
    """Send a request through the asynchronous handler."""

    async def send() -> HttpResponseBase:
        client = AsyncClient(raise_request_exception=False)
        await client.aforce_login(user)
        return await client.get(path, **options)

    return async_to_sync(send)()


def send(store: UUID, path: str, view: Callable[[HttpRequest], Any]) -> Any:
    """Send a request of a member of the store, through the handler of the path's kind."""
    if not path.startswith("/ahooked"):
        Hook.view = view
        return signed_in(member_of(store)).get(path)
    Hook.view = lambda request: sync_to_async(view)(request)  # noqa: PLW0108 - a plain function is not bound
    return get_async(member_of(store), path)


@pytest.fixture
def pooled(two: list[UUID]) -> Iterator[dict[str, Any]]:
    """Give every thread its connection from a pool of one; return the pool's options, which a test may change."""
    pool = {"min_size": 1, "max_size": 1, "timeout": LIMIT_S}
    default = connections.settings["default"]
    default.update(CONN_MAX_AGE=0, CONN_HEALTH_CHECKS=False, OPTIONS={**default.get("OPTIONS", {}), "pool": pool})
    connection.close()
    del connections["default"]
    yield pool
    connection.close()
    pooling: Any = connection
    pooling.close_pool()
