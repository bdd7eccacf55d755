"""Reader of an admin page: the operator through his role, or staff of one store through the web role."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any, NoReturn

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse
from django.utils.translation import gettext, ngettext

from salon_jobs.access.roles import FEW_ROWS
from salon_jobs.conf import settings as conf
from salon_jobs.conf.schema import REQUEST_STORES
from salon_jobs.core.errors import StoreRefused
from salon_jobs.core.records import StoreId
from salon_jobs.db.clock import one_instant
from salon_jobs.tenancy.active import current_store_id
from salon_jobs.tenancy.choice import ALL_STORES, CHOICE, choose_store
from salon_jobs.tenancy.context import tenant_context
from salon_jobs.tenancy.names import store_name, store_words
from salon_jobs.tenancy.resolvers import make_resolver

View = Callable[..., HttpResponseBase]


def may(request: HttpRequest, permission: str) -> bool:
    """Return whether the signed-in user has a permission."""
    user: Any = request.user
    allowed: bool = user.has_perm(permission)
    return allowed


def sees_all_stores(request: HttpRequest) -> bool:
    """Return whether the signed-in user works as the operator; other users are limited to one store at a time."""
    user: Any = request.user
    return conf.store_model is None or bool(user.has_perm(ALL_STORES))


def own_store(request: HttpRequest) -> str:
    """Return the name of the store to which the user of this page is limited; "" for an operator."""
    store = None if sees_all_stores(request) else current_store_id()
    return "" if store is None else store_name(store)


def reader(request: HttpRequest) -> str:
    """Return the alias to read and act through, for every query of the admin."""
    return conf.reader_database if sees_all_stores(request) else conf.database


def as_reader(view: View, site: AdminSite) -> View:
    """Return a view at one instant of the database's clock, for a limited user in the context of that user's store.

    Through the web role, row-level security then hides other stores' rows, whatever the view requests. Meanwhile the
    operator's connection refuses to work, so that a query that forgot ``reader`` fails instead of showing them.
    """

    @wraps(view)
    def read(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not site.has_permission(request):
            return view(request, *args, **kwargs)
        if sees_all_stores(request):
            with one_instant(reader(request)):
                return _rendered(view(request, *args, **kwargs))
        chooses = CHOICE in request.GET or CHOICE in request.POST
        store = None if chooses else store_of_staff(request)
        if store is None:
            try:
                return choose_store(request, "admin/salon_jobs/choose_store.html", site.each_context(request))
            except StoreRefused as refused:
                raise PermissionDenied(gettext("%(refused)s, and may not see all") % {"refused": refused}) from refused
        using, operators = reader(request), conf.reader_database
        refusing = nullcontext() if operators == using else connections[operators].execute_wrapper(_refuse)
        with tenant_context(store, using=using), refusing, one_instant(using):
            with connections[using].cursor() as cursor:
                cursor.execute(f"SET LOCAL {FEW_ROWS}")
            return _rendered(view(request, *args, **kwargs))

    return read


def _rendered(response: HttpResponseBase) -> HttpResponseBase:
    """Return the response with its content: its rows are read during rendering."""
    return response.render() if isinstance(response, SimpleTemplateResponse) else response


def store_of_staff(request: HttpRequest) -> StoreId | None:
    """Return the store in which a limited user works, found by REQUEST_STORE; None if they have yet to choose one.

    Raises PermissionDenied for a store that is not theirs, and if nothing could restrict them to it.
    """
    if conf.roles.one_user:
        raise PermissionDenied(f"without SALON_JOBS['ROLES'] nothing limits staff to a store: they need {ALL_STORES}")
    if conf.membership_model is None and conf.request_resolver in REQUEST_STORES:
        raise PermissionDenied(f"without SALON_JOBS['MEMBERSHIP_MODEL'] staff have no store: they need {ALL_STORES}")
    resolver = make_resolver()
    try:
        store = resolver.resolve(request)
    except StoreRefused as refused:
        raise PermissionDenied(str(refused)) from refused
    if store is not None and not resolver.allowed(request, store):
        raise PermissionDenied(gettext("you do not belong to this %(store)s") % store_words())
    return store


def refusal(request: HttpRequest, *permissions: str, of_all_stores: bool = False) -> str:
    """Return which of these permissions the user lacks, and the one for all stores if it is needed; "" if none."""
    missing = [each for each in permissions if not may(request, each)]
    if of_all_stores and not sees_all_stores(request):
        if not missing:
            return operators_only()
        missing.append(ALL_STORES)
    said = ngettext("it needs the permission %(names)s", "it needs the permissions %(names)s", len(missing))
    return said % {"names": gettext(" and ").join(missing)} if missing else ""


def operators_only() -> str:
    """Return why staff limited to one store are refused."""
    said = gettext("it needs operator access (%(permission)s), which staff limited to one store do not have")
    return said % {"permission": ALL_STORES}


def _refuse(*_: Any) -> NoReturn:
    raise PermissionDenied(operators_only())
