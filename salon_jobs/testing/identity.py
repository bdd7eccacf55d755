"""Context managers for acting as another database role, or as a store, on the test's own connection."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError, connections, transaction
from django.db.models import Model
from psycopg import errors

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.db.connections import can_run
from salon_jobs.tenancy.context import tenant_context

_KEYS: Final = ("web", "worker", "operator", "migrator")


@contextmanager
def as_role(role: str, *, using: str | None = None) -> Generator[None]:
    """Run a block as a database role: web, worker, operator or migrator of SALON_JOBS['ROLES'], or any role's name.

    Opens a transaction (or a savepoint) and sets the role locally in it, so that the role's privileges and policies
    apply; the previous role returns at the end. The connection's own login must be allowed to: a superuser, or a
    member. Raises ConfigurationError if it is not, or if there is no such role.
    """
    connection = connections[using or conf.database]
    name = role_name(role)
    with transaction.atomic(using=connection.alias):
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('role'), session_user")
            before, login = cursor.fetchone()
            try:
                cursor.execute("SELECT set_config('role', %s, true)", [name])
            except DatabaseError as error:
                raise _refusal(name, login, error) from error
        yield
        # RELEASE SAVEPOINT keeps a local set. After an error, rolling back to it also reverts the role.
        if can_run(connection):
            with connection.cursor() as cursor:
                cursor.execute("SELECT set_config('role', %s, true)", [before])


@contextmanager
def as_store(store: UUID | str | Model, *, using: str | None = None) -> Generator[None]:
    """Run a block as a store, given as a row of the store model or its id: ``tenant_context`` in a transaction."""
    store_id: Any = store.pk if isinstance(store, Model) else store
    with tenant_context(store_id, using=using):
        yield


def role_name(role: str) -> str:
    """Return the name of a role in this deployment. Raises ConfigurationError for a key when ROLES is not set."""
    if role not in _KEYS:
        return role
    if conf.roles is None:
        raise ConfigurationError(
            f"there is no role {role!r}: SALON_JOBS['ROLES'] is not set, so one database user does everything"
        )
    name: str = getattr(conf.roles, role)
    return name


def _refusal(name: str, login: str, error: DatabaseError) -> ConfigurationError:
    if isinstance(error.__cause__, errors.InsufficientPrivilege):
        return ConfigurationError(
            f"the test's connection logs in as {login!r}, which may not become {name!r}: "
            f'let the tests log in as a superuser, or GRANT "{name}" TO "{login}" on the test server'
        )
    return ConfigurationError(f"the test's connection cannot become {name!r}: {error}")
