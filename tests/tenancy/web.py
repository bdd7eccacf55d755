"""Serves requests as the web role: what the tests of the middleware share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.test import override_settings
from django.urls import path, re_path

from project.salon.models import Customer, Membership
from salon_jobs import current_store_id
from salon_jobs.tenancy.request import without_store
from tests.settings import SALON_JOBS
from tests.support import change


def canaries() -> list[str]:
    """Return what the connection sees: each store has one customer, named after it."""
    return list(Customer.objects.order_by("name").values_list("name", flat=True))


def look(request: HttpRequest) -> HttpResponseBase:
    """Answer with what a view sees."""
    return JsonResponse({"store": current_store_id(), "seen": canaries()})


class Hook:
    """Is the view of the test."""

    view: ClassVar[Callable[..., Any]] = look


def hooked(request: HttpRequest) -> HttpResponseBase:
    """Do what the test wants done."""
    response: HttpResponseBase = Hook.view(request)
    return response


async def ahooked(request: HttpRequest) -> HttpResponseBase:
    """Do what the test wants done, asynchronously."""
    response: HttpResponseBase = await Hook.view(request)
    return response


@transaction.non_atomic_requests
def hooked_without_transaction(request: HttpRequest) -> HttpResponseBase:
    """Do it in no transaction."""
    return hooked(request)


@transaction.non_atomic_requests
async def ahooked_without_transaction(request: HttpRequest) -> HttpResponseBase:
    """Do it in no transaction, asynchronously."""
    return await ahooked(request)


@without_store
def look_free(request: HttpRequest) -> HttpResponseBase:
    """Answer with what a view without a store sees."""
    return look(request)


def error_page(request: HttpRequest) -> HttpResponseBase:
    """Tell what an error page sees."""
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
    """Return the demo's settings with others of ours, and the routes above."""
    wanted = {**SALON_JOBS, "PATHS_WITHOUT_STORE": ["/open/"], **options}
    return override_settings(ROOT_URLCONF="tests.tenancy.web", ALLOWED_HOSTS=["*"], SALON_JOBS=wanted)


@pytest.fixture
def web_role(database: None) -> Iterator[None]:
    """Let ``default`` be the web role's connection, in this thread and in those that a server starts."""
    worker, settings = connections["default"], connections.settings["default"]
    # Under ASGI each request has a thread, and its connection goes with it.
    connections.settings["default"] = {**connections.settings["web"], "CONN_MAX_AGE": 0}
    del connections["default"]
    Hook.view = look
    with configured():
        yield
    connections["default"].close()
    connections.settings["default"] = settings
    connections["default"] = worker


@pytest.fixture
def two(web_role: None) -> Iterator[list[UUID]]:
    """Create two stores, each with its canary."""
    stores = sorted(uuid4() for _ in range(2))
    for number, store in enumerate(stores):
        change("INSERT INTO store (id, name) VALUES (%s, %s)", store, f"Salon {number}")
        change(
            "INSERT INTO customer (id, store_id, name, email) VALUES (%s, %s, %s, '')",
            uuid4(),
            store,
            f"canary {number}",
        )
    yield stores
    if connection.in_atomic_block:
        connection.close()
    change("TRUNCATE auth_user CASCADE")


def member_of(*stores: UUID) -> User:
    """Create a user who belongs to stores."""
    user = User.objects.using("owner").create(username=f"user {uuid4()}")
    for store in stores:
        Membership.objects.using("owner").create(user_id=user.pk, store_id=store)
    return user
