"""Registers system checks of how requests find their store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Warning, register
from django.utils.module_loading import import_string

from salon_jobs.conf import REQUEST_STORES, middleware
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.tenancy.middleware import TenantMiddleware
from salon_jobs.tenancy.resolvers import make_resolver

_OURS: Final = f"{TenantMiddleware.__module__}.{TenantMiddleware.__name__}"
# By its name: the module can only be imported where django.contrib.auth is installed.
_SIGNS_IN: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"


@register("salon_jobs")
def check_requests(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Check that TenantMiddleware is there when it is meant to be, in its place, and can be made."""
    try:
        meant, how = conf.membership_model is not None, conf.request_store
    except ConfigurationError:
        return []  # check_settings tells
    found = [_names_of(path) for path in middleware()]
    place = next((number for number, names in enumerate(found) if _OURS in names), None)
    if place is None:
        return [_missing()] if meant else []
    errors: list[CheckMessage] = []
    try:
        make_resolver()
    except ConfigurationError as error:
        hint = "TenantMiddleware needs it: mend the setting SALON_JOBS"
        errors.append(Error(str(error), hint=hint, id="salon_jobs.E030"))
    if how in REQUEST_STORES and not any(_SIGNS_IN in names for names in found[:place]):
        hint = f"put '{_OURS}' after AuthenticationMiddleware: the store is that of the signed-in user"
        text = "TenantMiddleware stands before AuthenticationMiddleware, or without it"
        errors.append(Error(text, hint=hint, id="salon_jobs.E031"))
    return errors


def _missing() -> CheckMessage:
    hint = f"put '{_OURS}' after AuthenticationMiddleware in MIDDLEWARE"
    text = "SALON_JOBS['MEMBERSHIP_MODEL'] is set and TenantMiddleware is not in MIDDLEWARE: requests have no store"
    return Warning(text, hint=hint, id="salon_jobs.W030")


def _names_of(path: str) -> set[str]:
    """Return the dotted names of a middleware's class and of those it is made of."""
    try:
        found: object = import_string(path)
    except ImportError:  # Django tells of it
        return set()
    return {f"{kind.__module__}.{kind.__name__}" for kind in found.__mro__} if isinstance(found, type) else set()
