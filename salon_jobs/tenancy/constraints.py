"""Declares in a model's ``Meta.constraints`` who may do what on its table: by store, by member, or of no store."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Statement, Table
from django.db.models import BaseConstraint, Model
from psycopg import sql

from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.tenancy.access import ALL_ROWS, Policy, Privilege, Privileges, TableAccess
from salon_jobs.tenancy.block import current_store_id
from salon_jobs.tenancy.brief_locks import brief_locks
from salon_jobs.tenancy.policy import MEMBERSHIP_POLICY, store_access, system_access, user_condition
from salon_jobs.tenancy.roles import ROLE_SPECS

Statements: TypeAlias = Sequence[sql.Composable]
May: TypeAlias = Sequence[Privilege] | Mapping[Privilege, Sequence[str]]


class AccessConstraint(BaseConstraint):
    """Puts a model's table under row-level security and grants each role what is told, no more.

    ``web`` and ``worker`` name what those roles may do: some of SELECT, INSERT, UPDATE, DELETE; as a dict, each with
    the fields it is meant for (none named: all). ``makemigrations`` finds it like any other constraint. Changes read
    SALON_JOBS when they run and wait for the table's lock only briefly. Taken away, it leaves a table without
    row-level security, with what the default privileges give.
    """

    def __init__(self, *, name: str, web: May = ALL_ROWS, worker: May = ALL_ROWS, **messages: Any) -> None:
        super().__init__(name=name, **messages)
        self.web, self.worker = _privileges(name, web), _privileges(name, worker)

    @abstractmethod
    def access(self, model: type[Model], roles: Roles | None) -> TableAccess | None:
        """Return what is declared of the model's table; None: nothing, with one database user (``roles`` None)."""

    def constraint_sql(self, model: Any, schema_editor: Any) -> Any:
        """Leave CREATE TABLE as it is; the table's access comes after it, at the end of the migration."""
        schema_editor.deferred_sql.append(self.create_sql(model, schema_editor))

    def create_sql(self, model: Any, schema_editor: Any) -> Any:
        """Return what takes back what default privileges gave, grants, creates the policies, switches RLS on."""
        return self._statement(_protect, model, schema_editor)

    def remove_sql(self, model: Any, schema_editor: Any) -> Any:
        """Return what switches row-level security off and grants again what default privileges give."""
        # A table of the same migration, such as a squashed one, would get at its end what is taken from it here.
        schema_editor.deferred_sql[:] = [
            statement
            for statement in schema_editor.deferred_sql
            if not (isinstance(statement, Statement) and _is_access_of(statement, model))
        ]
        return self._statement(_unprotect, model, schema_editor)

    def _statement(
        self, write: Callable[[TableAccess], Statements], model: type[Model], schema_editor: BaseDatabaseSchemaEditor
    ) -> Statement:
        access = self.access(model, conf.roles)
        if access is None:  # Django puts off to the end, and then runs, whatever is returned here
            return Statement("SELECT")
        return Statement("%(sql)s", sql=_AccessSQL(access, write, brief_locks(schema_editor.connection)))

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        """Return how to write it; the public name is shorter than the module's."""
        path, arguments, keywords = super().deconstruct()
        for role, may in (("web", self.web), ("worker", self.worker)):
            if any(may.values()):
                keywords[role] = may
            elif tuple(may) != ALL_ROWS:
                keywords[role] = tuple(may)
        return path.replace(f"{__name__}.", "salon_jobs."), arguments, keywords

    def validate(
        self, model: type[Model], instance: Model, exclude: Iterable[str] | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        """Accept every instance."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AccessConstraint):
            return NotImplemented
        return self.deconstruct() == other.deconstruct()

    def __hash__(self) -> int:
        return hash((type(self), self.name))


class StoreIsolation(AccessConstraint):
    """Shows and accepts a model's rows for the current store only, by forced row-level security.

    ``field`` names the model's field that holds the store; ``"id"`` in the store model itself. The migrator is held to
    it as well. A policy for each command, TO the roles that may run it; with one database user TO PUBLIC, and the store
    model itself, STORE_MODEL, is left open to its owner (no FORCE), who must list the stores for a fan-out.
    ``full_clean`` refuses, inside a tenant context, an instance of another store.
    """

    default_violation_error_message = "This belongs to another store than the current one."

    def __init__(self, *, field: str, name: str, web: May = ALL_ROWS, worker: May = ALL_ROWS, **messages: Any) -> None:
        super().__init__(name=name, web=web, worker=worker, **messages)
        self.field = field

    def access(self, model: type[Model], roles: Roles | None) -> TableAccess:
        """Return what is declared of the model's table."""
        field: Any = model._meta.get_field(self.field)
        return store_access(
            model._meta.db_table, field.column, roles=roles, is_store=is_store_model(model, field),
            web=_columns(model, self.web), worker=_columns(model, self.worker),
        )  # fmt: skip

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        """Return how to write it."""
        path, arguments, keywords = super().deconstruct()
        return path, arguments, {"field": self.field, **keywords}

    def validate(
        self, model: type[Model], instance: Model, exclude: Iterable[str] | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        """Refuse an instance of another store than the current one, if there is one. Raises ValidationError."""
        current, field = current_store_id(), cast("Any", model._meta.get_field(self.field))
        store = getattr(instance, field.attname)
        if None not in (current, store) and self.field not in (exclude or ()) and field.to_python(store) != current:
            raise ValidationError(cast("Any", self.get_violation_error_message()), code=self.violation_error_code)


class MembershipIsolation(StoreIsolation):
    """Does as ``StoreIsolation``, and shows the web role the rows of the signed-in user while no store is known.

    For the model that says which user belongs to which store; ``user_field`` names its field of the user. Asked by
    ``TenantMiddleware``, which puts the user's key into ``USER_GUC`` for that one statement.
    """

    def __init__(
        self, *, field: str, user_field: str, name: str, web: May = ALL_ROWS, worker: May = ALL_ROWS, **messages: Any
    ) -> None:
        super().__init__(field=field, name=name, web=web, worker=worker, **messages)
        self.user_field = user_field

    def access(self, model: type[Model], roles: Roles | None) -> TableAccess:
        """Return what is declared of the model's table."""
        access = super().access(model, roles)
        user: Any = model._meta.get_field(self.user_field)
        own = user_condition(user.column, user.db_type(connections[conf.database]))
        web = () if roles is None else (roles.web,)
        policy = Policy(name=MEMBERSHIP_POLICY, command="SELECT", roles=web, using=own)
        return replace(access, policies=(*access.policies, policy))

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        """Return how to write it."""
        path, arguments, keywords = super().deconstruct()
        return path, arguments, {"user_field": self.user_field, **keywords}


class SystemScope(AccessConstraint):
    """Puts a model without a store under forced row-level security: each role sees all its rows or none.

    Says that the table is meant to have no store. With one database user it does nothing.
    """

    def access(self, model: type[Model], roles: Roles | None) -> TableAccess | None:
        """Return what is declared of the model's table."""
        if roles is None:
            return None
        web, worker = _columns(model, self.web), _columns(model, self.worker)
        return system_access(model._meta.db_table, roles=roles, web=web, worker=worker)


class _AccessSQL(Table):
    """Writes the SQL when it is run: the table may have another name by then."""

    def __init__(
        self, access: TableAccess, write: Callable[[TableAccess], Statements], around: tuple[Statements, Statements]
    ) -> None:
        super().__init__(access.table, lambda name: name)
        self._access, self._write, self._around = access, write, around

    def __str__(self) -> str:
        before, after = self._around
        written = self._write(replace(self._access, table=self.table))
        return ";\n".join(statement.as_string() for statement in (*before, *written, *after))


def _is_access_of(statement: Statement, model: type[Model]) -> bool:
    written = statement.parts.get("sql")
    return isinstance(written, _AccessSQL) and written.table == model._meta.db_table


def _protect(access: TableAccess) -> Statements:
    given = access.give(conf.roles.runtime) if conf.roles is not None else []
    return [*given, *access.protect()]


def _unprotect(access: TableAccess) -> Statements:
    roles = conf.roles
    if roles is None:
        return access.unprotect()
    default = [spec.name(roles) for spec in ROLE_SPECS if spec.business_dml]
    return [*access.unprotect(), *access.take(roles.runtime), *access.give_by_default(default)]


def is_store_model(model: type[Model], field: Any) -> bool:
    """Tell whether a model, whose ``field`` holds the store, is that of the stores, not of what each of them has.

    By its key alone where STORE_MODEL is not set yet, and where an old migration knows a model that is gone or renamed.
    """
    try:
        if conf.store_model is not None:
            return apps.get_model(model._meta.label) is apps.get_model(conf.store_model)
    except LookupError:
        pass
    return bool(field.primary_key and not field.is_relation)


def _privileges(name: str, may: May) -> dict[Privilege, tuple[str, ...]]:
    """Return what a role may do, in one order. Raises ConfigurationError."""
    given = (
        {what: tuple(fields) for what, fields in may.items()} if isinstance(may, Mapping) else dict.fromkeys(may, ())
    )
    if unknown := set(given) - set(ALL_ROWS):
        raise ConfigurationError(f"constraint {name!r}: {sorted(unknown)} are none of {', '.join(ALL_ROWS)}")
    if given.get("DELETE"):
        raise ConfigurationError(f"constraint {name!r}: DELETE is for whole rows; name no fields with it")
    return {privilege: given[privilege] for privilege in ALL_ROWS if privilege in given}


def _columns(model: type[Model], may: Privileges) -> dict[Privilege, tuple[str, ...]]:
    return {what: tuple(column_of(model, name) for name in names) for what, names in may.items()}


def column_of(model: type[Model], name: str) -> str:
    """Return the column of a field."""
    field: Any = model._meta.get_field(name)
    column: str = field.column
    return column
