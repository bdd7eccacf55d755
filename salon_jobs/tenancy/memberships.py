"""Reads which stores a user belongs to, before any store is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist
from django.db import connections
from django.db.models import Field, Model
from psycopg import sql

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.tenancy import guc
from salon_jobs.tenancy.round_trip import in_one_trip, rows_in_one_trip

if TYPE_CHECKING:  # django.contrib.auth need not be installed
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser


def stores_of(user: AbstractBaseUser | AnonymousUser) -> tuple[UUID, ...]:
    """Return the stores a user belongs to, ordered by id; none for a user who is not signed in.

    One round trip. With row-level security it reads as the user: ``USER_GUC`` holds the user's key for this one
    statement, and the policy of ``MembershipIsolation`` shows that user's memberships. Raises ConfigurationError when
    ``MEMBERSHIP_MODEL`` can not work; database errors come as Django's.
    """
    if not user.is_authenticated:
        return ()
    model, user_field, store_field = membership_fields()
    target: Any = getattr(user_field, "target_field", None)  # of a foreign key: usually, not always, the user's key
    key = str(user.pk if target is None else getattr(user, target.attname))
    connection = connections[conf.database]
    if not connection.in_atomic_block:
        connection.close_if_health_check_failed()
    connection.ensure_connection()
    # Two statements of one message are one transaction, which the setting ends with.
    statement = sql.SQL("SELECT set_config({}, {}, true); SELECT {} FROM {} WHERE {} = {} ORDER BY 1").format(
        sql.Literal(conf.user_guc),
        sql.Literal(key),
        sql.Identifier(str(store_field.column)),
        sql.Identifier(model._meta.db_table),
        sql.Identifier(str(user_field.column)),
        sql.Literal(key),
    )
    rows = rows_in_one_trip(connection, statement.as_string(connection.connection))
    if guc.in_transaction(connection):  # somebody else's, which goes on
        forget = sql.SQL("SELECT set_config({}, '', true)").format(sql.Literal(conf.user_guc))
        in_one_trip(connection, forget.as_string(connection.connection))
    return tuple(store for (store,) in rows)


def membership_fields() -> tuple[type[Model], Field[Any, Any], Field[Any, Any]]:
    """Return the membership model and its fields of user and store. Raises ConfigurationError, naming the key."""
    if conf.membership_model is None:
        raise ConfigurationError(
            "SALON_JOBS['MEMBERSHIP_MODEL'] is not set: name the model that says which user belongs to which store"
        )
    try:
        model = apps.get_model(conf.membership_model)
    except LookupError:
        name = conf.membership_model
        raise ConfigurationError(f"SALON_JOBS['MEMBERSHIP_MODEL'] {name!r} is not an installed model") from None
    user = _field(model, "MEMBERSHIP_USER_FIELD", conf.membership_user_field)
    return model, user, _field(model, "MEMBERSHIP_STORE_FIELD", conf.membership_store_field)


def _field(model: type[Model], key: str, name: str) -> Field[Any, Any]:
    try:
        field = model._meta.get_field(name)
    except FieldDoesNotExist:
        field = None
    if not isinstance(field, Field) or field.column is None:
        raise ConfigurationError(f"SALON_JOBS[{key!r}]: {model._meta.label} has no column for a field {name!r}")
    return field
