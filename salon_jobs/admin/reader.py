"""Says through which role a page of the admin reads: the operator's, or the web's as a limited user's store."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Final, NoReturn
from uuid import UUID

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse

from salon_jobs.admin.store_choice import CHOICE, choose_store
from salon_jobs.conf import REQUEST_STORES
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import StoreRefused
from salon_jobs.tenancy.context import tenant_context
from salon_jobs.tenancy.resolvers import make_resolver
from salon_jobs.tenancy.roles import FEW_ROWS

ALL_STORES: Final = "salon_jobs.view_all_stores"

View = Callable[..., HttpResponseBase]


def sees_all_stores(request: HttpRequest) -> bool:
    """Tell whether the signed-in user works as the operator; whoever does not is limited to one store at a time."""
    user: Any = request.user
    return conf.store_model is None or bool(user.has_perm(ALL_STORES))


def reader(request: HttpRequest) -> str:
    """Return the alias to read and act through: every query of the admin goes through it."""
    return conf.reader_database if sees_all_stores(request) else conf.database


def as_reader(view: View, site: AdminSite) -> View:
    """Return the view that runs, for a limited user, in the context of that user's store, through the web role.

    Row-level security then shows no other store's rows, whatever the view asks for; the operator's connection refuses
    to work meanwhile, so that a query that forgot ``reader`` fails instead of showing them.
    """

    @wraps(view)
    def read(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not site.has_permission(request) or sees_all_stores(request):
            return view(request, *args, **kwargs)
        chooses = CHOICE in request.GET or CHOICE in request.POST
        store = None if chooses else store_of_staff(request)
        if store is None:
            return choose_store(request, site)
        with tenant_context(store, using=conf.database), _without_operator():
            with connections[conf.database].cursor() as cursor:
                cursor.execute(f"SET LOCAL {FEW_ROWS}")
            response = view(request, *args, **kwargs)
            if isinstance(response, SimpleTemplateResponse):
                response.render()  # its rows are read while it is rendered
            return response

    return read


def store_of_staff(request: HttpRequest) -> UUID | None:
    """Return the store that a limited user works in, as REQUEST_STORE finds it; None when one is to be chosen.

    Raises PermissionDenied for a store that is not theirs, and where nothing could hold them to it.
    """
    if conf.roles is None:
        raise PermissionDenied(f"without SALON_JOBS['ROLES'] nothing limits staff to a store: they need {ALL_STORES}")
    if conf.membership_model is None and conf.request_store in REQUEST_STORES:
        raise PermissionDenied(f"without SALON_JOBS['MEMBERSHIP_MODEL'] staff have no store: they need {ALL_STORES}")
    resolver = make_resolver()
    try:
        store = resolver.resolve(request)
    except StoreRefused as refused:
        raise PermissionDenied(str(refused)) from refused
    if store is not None and not resolver.allowed(request, store):
        raise PermissionDenied("you do not belong to this store")
    return store


@contextmanager
def _without_operator() -> Generator[None]:
    with ExitStack() as stack:
        if conf.reader_database != conf.database:
            stack.enter_context(connections[conf.reader_database].execute_wrapper(_refuse))
        yield


def _refuse(*_: Any) -> NoReturn:
    raise PermissionDenied("this page reads as the operator, which staff of one store may not")
