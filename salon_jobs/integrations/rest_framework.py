"""``TenantAPIView``: views of Django REST framework that run as the store of the authenticated user."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

from django.db import DatabaseError
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_model
from salon_jobs.core.errors import ConfigurationError, StoreRefused
from salon_jobs.db.internals import mark_non_atomic
from salon_jobs.tenancy.active import current_store_id, expect_no_rows
from salon_jobs.tenancy.context import TenantContext
from salon_jobs.tenancy.request import (
    context_maker,
    find_store,
    log_refusal,
    rolls_back,
    stream_if_open,
    vary_by_store,
    watch_requests,
    without_store,
)
from salon_jobs.tenancy.resolvers import StoreResolver, make_resolver
from salon_jobs.tenancy.violations import violation_of

try:
    from rest_framework.exceptions import APIException, ValidationError
    from rest_framework.request import Request
    from rest_framework.serializers import PrimaryKeyRelatedField, as_serializer_error, empty
    from rest_framework.views import APIView
except ModuleNotFoundError as missing:
    raise ConfigurationError("TenantAPIView needs djangorestframework: pip install 'salon-jobs[drf]'") from missing


# Without a docstring: the description of an API takes the first one in the bases, and for generic views it leaves out
# those of the framework, but not ours.
class TenantAPIView(APIView):
    # View that runs in a transaction as the store of the user whom it authenticates, and commits.
    #
    # The first base of generic views and viewsets too. ``REQUEST_STORE`` defines how the store is found, once the user
    # is known and before permissions are checked; TenantMiddleware passes the view by. The response is rendered in the
    # store. An exception, even one that is answered, and a response of 500 or more, roll back. Where row-level security
    # refuses a row, the answer is a 400 that names the field. ``non_atomic_requests`` on ``dispatch`` works as it does
    # with the middleware.

    _original: HttpRequest
    _make: Callable[[], TenantContext]
    _context: TenantContext | None = None

    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Callable[..., HttpResponseBase]:
        """Return the view, for which Django opens no transaction: ours is the outermost, with ATOMIC_REQUESTS too."""
        watch_requests()
        view = without_store(super().as_view(*args, **initkwargs))
        mark_non_atomic(view, conf.database)
        return view

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Process the request, and end the context that it opened."""
        self._original = request
        try:
            response = super().dispatch(request, *args, **kwargs)
            try:
                return self._ended(response)
            except DatabaseError as error:  # from COMMIT, which checks references
                response = self.handle_exception(error)
                self.response = self.finalize_response(self.request, response, *args, **kwargs)
                return self._ended(self.response)
        except BaseException:
            if self._context is not None:
                self._context.roll_back()
            raise

    def perform_authentication(self, request: Request) -> None:
        """Authenticate the user, find the store and open its context."""
        super().perform_authentication(request)
        try:
            store = find_store(_resolver(conf.request_resolver), self._original)
        except StoreRefused as refused:
            log_refusal(self._original, refused)
            if refused.status == 403:
                self.permission_denied(request, str(refused), refused.code)  # 401 if nobody is signed in
            error = APIException(str(refused), refused.code)
            error.status_code = refused.status
            raise error from refused
        if store is not None:
            self._make = context_maker(self.dispatch, store)
            self._context = self._make().__enter__()

    def handle_exception(self, exc: Exception) -> HttpResponseBase:
        """Return the answer to an exception, after a rollback. It is rendered in its own transaction."""
        if (violation := violation_of(exc)) is not None:
            cause, exc = exc, ValidationError(as_serializer_error(violation))
            exc.__cause__ = cause
        response = super().handle_exception(exc)
        if self._context is not None:
            self._context.roll_back()
            self._context.__enter__()
        return response

    def _ended(self, response: HttpResponseBase) -> HttpResponseBase:
        """Render a response in the store, stream its body there, and end the context."""
        context = self._context
        with expect_no_rows() if context is None else nullcontext():
            if callable(render := getattr(response, "render", None)):
                render()
        if context is not None:
            stream_if_open(context, self._make, response)
            if rolls_back(context, response):
                context.roll_back()
            else:
                context.__exit__(None, None, None)
        vary_by_store(_resolver(conf.request_resolver), self._original, response)
        return response


class CurrentStore:
    """Default of a serializer's field for the store: ``store = HiddenField(default=CurrentStore())``.

    With it, unique constraints that begin with the store are checked before a row is saved.
    """

    def __call__(self) -> Model | None:
        """Return the store of the surrounding context, without a query; None outside."""
        store, model = current_store_id(), store_model()
        return None if store is None or model is None else model(pk=store)


# Without a docstring, like the view: descriptions of an API show that of a field's class.
class StoreField(PrimaryKeyRelatedField):
    # Field that shows the store's key and takes none from clients: ``organization = StoreField()``.
    #
    # For an API whose answers have had the store. What a client sends in it is ignored, as in a read-only field, and
    # rows get the current store, by ``CurrentStore``.

    def __init__(self, **options: Any) -> None:
        super().__init__(default=CurrentStore(), **options)

    def get_queryset(self) -> QuerySet[Any]:
        """Return no rows: a form offers no choice."""
        model: Any = store_model()
        nothing: QuerySet[Any] = model._base_manager.none()
        return nothing

    def get_value(self, dictionary: Any) -> Any:
        """Return that the client sends nothing."""
        return empty


@cache
def _resolver(name: str) -> StoreResolver:
    return make_resolver()
