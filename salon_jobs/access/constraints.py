"""Constraints for ``Meta.constraints``: who may use which rows of a table, and references within one store."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, IntegrityError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Columns, Statement, Table
from django.db.models import BaseConstraint, ForeignKey, Model

from salon_jobs.access.declared_objects import PUBLIC, Policy, TableAccess, identifier
from salon_jobs.access.policies import (
    BOUND_OWNERS,
    MEMBERSHIP_POLICY,
    Parent,
    open_to_owners,
    store_access,
    system_access,
    user_condition,
)
from salon_jobs.access.roles import named_roles
from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.rights import ALL_ROWS, Privilege, Privileges
from salon_jobs.db.connections import lock_timeout
from salon_jobs.tenancy.active import current_store_id
from salon_jobs.tenancy.names import store_words
from salon_jobs.tenancy.violations import OF_ANOTHER_STORE

May: TypeAlias = Sequence[Privilege] | Mapping[Privilege, Sequence[str]]
OnDelete: TypeAlias = Literal["CASCADE", "SET NULL"]


class _Constraint(BaseConstraint):
    """Base of constraints that migrations write with their public path and compare in that form."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return the class's own arguments that differ from their defaults."""

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        path, arguments, keywords = super().deconstruct()
        return path.replace(f"{__name__}.", "salon_jobs.access."), arguments, {**keywords, **self.options()}

    def get_violation_error_message(self) -> str:
        """Return the message, which may contain the names of the constraint and of the store model."""
        return str(self.violation_error_message) % {"name": self.name, **store_words()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Constraint):
            return NotImplemented
        return self.deconstruct() == other.deconstruct()

    def __hash__(self) -> int:
        return hash((type(self), self.name))


class AccessConstraint(_Constraint):
    """Base of constraints that put a model's table under row-level security and grant roles only the declared rights.

    ``web`` and ``worker`` list what those roles may do: some of SELECT, INSERT, UPDATE, DELETE; as a dict, each with
    the fields it applies to (empty: all). ``makemigrations`` detects it like any other constraint. Its operations read
    SALON_JOBS when they run, and wait only briefly for the table's lock. Removing it leaves a table without row-level
    security and with the default privileges.
    """

    def __init__(self, *, name: str, web: May = ALL_ROWS, worker: May = ALL_ROWS, **messages: Any) -> None:
        super().__init__(name=name, **messages)
        self.web, self.worker = _privileges(name, web), _privileges(name, worker)

    def protects(self, model: type[Model]) -> tuple[type[Model], AccessConstraint]:
        """Return the model of the protected table, if ``model`` declares it, and the declaration."""
        return model, self

    @abstractmethod
    def access(self, model: type[Model], roles: Roles, *, using: str) -> TableAccess:
        """Return the declared access to the model's table."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The model's fields that tell whose rows they are."""
        return ()

    def declares(self, model: type[Model], *, using: str) -> TableAccess:
        """Return the declared access to the protected table, if ``model`` has the constraint in its Meta."""
        protected, constraint = self.protects(model)
        return constraint.access(protected, conf.roles, using=using)

    def constraint_sql(self, model: Any, schema_editor: Any) -> Any:
        """Leave CREATE TABLE unchanged; the table's access is set up at the end of the migration."""
        self._at_the_end(model, schema_editor)

    def create_sql(self, model: Any, schema_editor: Any) -> Any:
        """Return the SQL that revokes default privileges, grants, creates policies and enables row-level security.

        It runs at the end of the migration if Django has yet to add foreign keys from or to the table.
        """
        table, deferred = self.protects(model)[0]._meta.db_table, schema_editor.deferred_sql
        if any(isinstance(each, Statement) and each.references_table(table) for each in deferred):
            self._at_the_end(model, schema_editor)
            return Statement("SELECT")
        return self._statement(model, schema_editor)

    def _at_the_end(self, model: type[Model], schema_editor: BaseDatabaseSchemaEditor) -> None:
        statements: list[Any] = [*schema_editor.deferred_sql, self._statement(model, schema_editor)]
        schema_editor.deferred_sql = _AccessLast(statements)

    def remove_sql(self, model: Any, schema_editor: Any) -> Any:
        """Return the SQL that disables row-level security and restores the default privileges."""
        # The end of the migration would set it up again for a table created in the same (for example squashed)
        # migration.
        self.forget_deferred(model, schema_editor)
        return self._statement(model, schema_editor, removes=True)

    def forget_deferred(self, model: type[Model], schema_editor: BaseDatabaseSchemaEditor) -> None:
        """Remove the table's access from the deferred statements of the migration."""
        table = self.protects(model)[0]._meta.db_table
        deferred: list[Any] = schema_editor.deferred_sql
        deferred[:] = [each for each in deferred if (sql := _access_of(each)) is None or sql.table != table]

    def _statement(
        self, model: type[Model], schema_editor: BaseDatabaseSchemaEditor, *, removes: bool = False
    ) -> Statement:
        roles = conf.roles
        access = self.declares(model, using=schema_editor.connection.alias)
        if roles.extra_owners:
            access = open_to_owners(access, roles, bound_owners(schema_editor.connection, roles.extra_owners))
        return Statement("%(sql)s", sql=_AccessSQL(access, removes, lock_timeout(schema_editor.connection)))

    def options(self) -> dict[str, Any]:
        privileges = (("web", self.web), ("worker", self.worker))
        return {
            role: may if any(may.values()) else tuple(may)
            for role, may in privileges
            if any(may.values()) or tuple(may) != ALL_ROWS
        }

    def validate(
        self, model: type[Model], instance: Model, exclude: Iterable[str] | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        """Accept every instance."""


class StoreIsolation(AccessConstraint):
    """Restriction of a model's rows to the current store, by forced row-level security.

    ``field`` is the model's field that holds the store; ``"id"`` in the store model itself. A table without one belongs
    to stores ``through`` its parents: the names of one or more foreign keys to isolated models, which may be isolated
    through others in turn. Each parent must be the current store's; NULL is accepted where another field is not NULL,
    never in the first one. The migrator is restricted too. There is a policy per command, TO the roles that may run it.
    With one database user the policies are TO PUBLIC, and STORE_MODEL itself is open to its owner (no FORCE), who must
    list the stores for a fan-out. Inside a tenant context, ``full_clean`` rejects an instance of another store.

    ``names``, in the store model alone: the fields by which staff find a store. The operator's role may read these and
    the key of all stores.
    """

    default_violation_error_message = OF_ANOTHER_STORE

    def __init__(
        self,
        *,
        field: str = "",
        through: str | Sequence[str] = (),
        names: Sequence[str] = (),
        name: str,
        web: May = ALL_ROWS,
        worker: May = ALL_ROWS,
        **messages: Any,
    ) -> None:
        super().__init__(name=name, web=web, worker=worker, **messages)
        self.field, self.through = field, (through,) if isinstance(through, str) else tuple(through)
        self.names = tuple(names)
        if not field and not self.through:
            raise ConfigurationError(
                f"constraint {name!r}: name the field that holds the store, or with through= the foreign key to a model"
                " that has it"
            )

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.field, *self.through)))

    def access(self, model: type[Model], roles: Roles, *, using: str) -> TableAccess:
        field: Any = model._meta.get_field(self.field) if self.field else None
        is_store = field is not None and is_store_model(model, field)
        if self.names and not is_store:
            raise ConfigurationError(f"constraint {self.name!r}: names= is for the store model alone")
        return store_access(
            model._meta.db_table,
            field.column if field else "",
            self._parents(model),
            roles=roles,
            is_store=is_store,
            names=[column_of(model, name) for name in (self.field, *self.names)] if self.names else (),
            web=_columns(model, self.web),
            worker=_columns(model, self.worker),
        )

    def _parents(self, model: type[Model]) -> list[Parent]:
        keys = [cast("ForeignKey[Any]", model._meta.get_field(name)) for name in self.through]
        return [
            Parent(
                key.column,
                key.remote_field.model._meta.db_table,
                cast("Any", key.target_field).column,
                optional=key.null and bool(self.field or number),
            )
            for number, key in enumerate(keys)
        ]

    def options(self) -> dict[str, Any]:
        field = {"field": self.field} if self.field else {}
        through = {"through": self.through[0] if len(self.through) == 1 else self.through} if self.through else {}
        names = {"names": self.names} if self.names else {}
        return {**field, **through, **names, **super().options()}

    def validate(
        self, model: type[Model], instance: Model, exclude: Iterable[str] | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        """Raise ValidationError for an instance of a store other than the current one, if there is a current store.

        Django itself looks for a parent, and finds only the store's.
        """
        if not self.field:
            return
        current, field = current_store_id(), cast("Any", model._meta.get_field(self.field))
        store = getattr(instance, field.attname)
        if None not in (current, store) and self.field not in (exclude or ()) and field.to_python(store) != current:
            raise ValidationError(self.get_violation_error_message(), code=self.violation_error_code)


class ManyToManyIsolation(AccessConstraint):
    """Restriction of a ManyToManyField's table to rows with both sides in the current store.

    For the model that has the field, ``field``; both models must be isolated. It is ``StoreIsolation(through=…)`` of
    both, on the table that Django made for the field.
    """

    def __init__(self, *, field: str, name: str, web: May = ALL_ROWS, worker: May = ALL_ROWS, **messages: Any) -> None:
        super().__init__(name=name, web=web, worker=worker, **messages)
        self.field = field

    def protects(self, model: type[Model]) -> tuple[type[Model], AccessConstraint]:
        field: Any = next((each for each in model._meta.local_many_to_many if each.name == self.field), None)
        if field is None:
            raise ConfigurationError(f"{self.name}: {self.field!r} is not a ManyToManyField of {model._meta.label}")
        sides = field.m2m_field_name(), field.m2m_reverse_field_name()
        isolation = StoreIsolation(through=sides, name=self.name, web=self.web, worker=self.worker)
        return field.remote_field.through, isolation

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.field,)

    def access(self, model: type[Model], roles: Roles, *, using: str) -> TableAccess:
        protected, isolation = self.protects(model)
        return isolation.access(protected, roles, using=using)

    def options(self) -> dict[str, Any]:
        return {"field": self.field, **super().options()}


class MembershipIsolation(StoreIsolation):
    """``StoreIsolation`` that also shows the web role the signed-in user's rows while no store is set.

    For the model of the stores' members; ``user_field`` is its field for the user. ``TenantMiddleware`` needs it: it
    puts the user's key into ``app.current_user_id`` for a single statement.
    """

    def __init__(
        self, *, field: str, user_field: str, name: str, web: May = ALL_ROWS, worker: May = ALL_ROWS, **messages: Any
    ) -> None:
        super().__init__(field=field, name=name, web=web, worker=worker, **messages)
        self.user_field = user_field

    @property
    def fields(self) -> tuple[str, ...]:
        return (*super().fields, self.user_field)

    def access(self, model: type[Model], roles: Roles, *, using: str) -> TableAccess:
        access = super().access(model, roles, using=using)
        user: Any = model._meta.get_field(self.user_field)
        own = user_condition(user.column, user.db_type(connections[using]))
        web = roles.web or PUBLIC
        policy = Policy(name=MEMBERSHIP_POLICY, command="SELECT", roles=(web,), using=own)
        return replace(access, policies=(*access.policies, policy))

    def options(self) -> dict[str, Any]:
        return {"user_field": self.user_field, **super().options()}


class SystemScope(AccessConstraint):
    """Declaration that a model intentionally has no store: each role sees all of its rows or none.

    The table has forced row-level security. With one database user this does nothing.
    """

    def access(self, model: type[Model], roles: Roles, *, using: str) -> TableAccess:
        web, worker = _columns(model, self.web), _columns(model, self.worker)
        return system_access(model._meta.db_table, roles=roles, web=web, worker=worker)


class _AccessLast(list[Any]):
    """Statements for the end of a migration: foreign keys first, since policies would restrict their validation."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=lambda each: _access_of(each) is not None))


def _access_of(deferred: object) -> _AccessSQL | None:
    sql = deferred.parts.get("sql") if isinstance(deferred, Statement) else None
    return sql if isinstance(sql, _AccessSQL) else None


class _AccessSQL(Table):
    """SQL composed when it runs: the table may have another name by then."""

    def __init__(self, access: TableAccess, removes: bool, around: tuple[list[str], list[str]]) -> None:
        super().__init__(access.table, lambda name: name)
        self._access, self._removes, self._around = access, removes, around

    def __str__(self) -> str:
        before, after = self._around
        access, roles = replace(self._access, table=self.table), conf.roles
        if self._removes:
            defaults = [name for spec, name in named_roles(roles) if spec.business_dml]
            statements = access.remove(roles.runtime, defaults=defaults)
        else:
            statements = access.install(roles.runtime)
        # Django runs the returned statement, perhaps at the end.
        return ";\n".join((*before, *statements, *after)) if statements else "SELECT"


def is_store_model(model: type[Model], field: Any) -> bool:
    """Return whether a model, with the store in ``field``, is the store model itself.

    If STORE_MODEL is not set yet, or an old migration has a removed or renamed model, the key decides.
    """
    try:
        if conf.store_model is not None:
            return apps.get_model(model._meta.label) is apps.get_model(conf.store_model)
    except LookupError:
        pass
    return bool(field.primary_key and not field.is_relation)


def _privileges(name: str, may: May) -> dict[Privilege, tuple[str, ...]]:
    """Return the privileges of a role, in a fixed order. Raises ConfigurationError."""
    fields = {what: tuple(names) for what, names in may.items()} if isinstance(may, Mapping) else dict.fromkeys(may, ())
    if invalid := set(fields) - set(ALL_ROWS):
        raise ConfigurationError(f"constraint {name!r}: {sorted(invalid)} are not among {', '.join(ALL_ROWS)}")
    if fields.get("DELETE"):
        raise ConfigurationError(f"constraint {name!r}: DELETE is for whole rows; name no fields with it")
    return {privilege: fields[privilege] for privilege in ALL_ROWS if privilege in fields}


def _columns(model: type[Model], may: Privileges) -> dict[Privilege, tuple[str, ...]]:
    return {what: tuple(column_of(model, name) for name in names) for what, names in may.items()}


def column_of(model: type[Model], name: str) -> str:
    field: Any = model._meta.get_field(name)
    column: str = field.column
    return column


_ADD: Final = (
    "%(before)sALTER TABLE %(table)s ADD CONSTRAINT %(name)s FOREIGN KEY (%(columns)s) REFERENCES %(to_table)s "
    "(%(to_columns)s)%(on_delete)s DEFERRABLE INITIALLY DEFERRED NOT VALID%(after)s"
)


def row_by_row(check: str, *, keys: str = "") -> str:
    """Return the template of a statement that checks a foreign key of ``table`` in all rows, also in hidden ones.

    PostgreSQL first tries one query with the caller's rights, which obeys FORCEd row-level security: it overlooks rows
    that violate the key, and rejects rows that do not. Without SELECT on the table it checks row by row instead,
    without row-level security; should it ever try the query anyway, row_security = off makes that an error instead of a
    wrong result. ``keys`` are the columns that it then looks up, if the key refers to its own table. No other session
    sees the owner without the right, which the transaction restores. Unlike removing FORCE for a while, this blocks no
    readers or writers.
    """
    revoke = "REVOKE SELECT ON %(table)s FROM CURRENT_USER;\n"
    return (
        f"SET LOCAL row_security = off;\n{revoke}"
        + (f"GRANT SELECT ({keys}) ON %(table)s TO CURRENT_USER;\n{check};\n{revoke}" if keys else f"{check};\n")
        + "GRANT SELECT ON %(table)s TO CURRENT_USER;\nSET LOCAL row_security = %(row_security)s"
    )


VALIDATE: Final = "ALTER TABLE %(table)s VALIDATE CONSTRAINT %(name)s"
_DROP: Final = "%(before)sALTER TABLE %(table)s DROP CONSTRAINT %(name)s%(after)s"


def bound_owners(connection: BaseDatabaseWrapper, owners: Sequence[str]) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {BOUND_OWNERS}", [[*owners]])
        bound: list[str] = cursor.fetchone()[0]
    return bound


def row_security_of(connection: BaseDatabaseWrapper) -> str:
    """Return the value of ``row_security`` to restore after ``row_by_row``."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW row_security")
        row: tuple[str] = cursor.fetchone()
    return row[0]


class DatabaseForeignKey(_Constraint):
    """Foreign key by which the database deletes rows, in all stores, or sets the reference in them to NULL.

    When a user, or another row that stores share, is deleted, Django finds referring rows only in the current store.
    PostgreSQL's own deletion is not subject to row-level security. ``field`` is the model's ForeignKey, with
    ``db_constraint=False`` and ``on_delete=DO_NOTHING``. No signals are sent for rows that the database deletes.

    The key is added at the end of the migration, NOT VALID, and then validated, even in rows that row-level security
    hides from the migrator. In a migration with ``atomic = False``, writers wait for neither.
    """

    default_violation_error_message = "This refers to a row that does not exist."

    def __init__(self, *, field: str, on_delete: OnDelete | None, name: str, **messages: Any) -> None:
        super().__init__(name=name, **messages)
        self.field, self.on_delete = field, on_delete
        if on_delete not in (None, *get_args(OnDelete)):
            raise ConfigurationError(f"constraint {name!r}: on_delete is 'CASCADE' or 'SET NULL', not {on_delete!r}")

    def constraint_sql(self, model: Any, schema_editor: Any) -> Any:
        """Leave CREATE TABLE unchanged: the other table's unique constraint may come later in the migration."""
        self._add_at_the_end(model, schema_editor)

    def create_sql(self, model: Any, schema_editor: Any) -> Any:
        """Return the SQL that checks pending rows now: a table with pending checks cannot be altered."""
        self._add_at_the_end(model, schema_editor)
        return Statement("SET CONSTRAINTS ALL IMMEDIATE")

    def remove_sql(self, model: Any, schema_editor: Any) -> Any:
        """Return the SQL that drops the key; cancel a key that this migration was to add at its end."""
        drop = self._statement(_DROP, model, schema_editor)
        deferred: list[Any] = schema_editor.deferred_sql
        others = [
            each
            for each in deferred
            if not (
                isinstance(each, Statement)
                and (each.template == _ADD or VALIDATE in each.template)
                and all(str(each.parts[part]) == str(drop.parts[part]) for part in ("table", "name"))
            )
        ]
        if len(others) == len(deferred):
            return drop
        deferred[:] = others
        return Statement("SELECT")

    def _add_at_the_end(self, model: type[Model], schema_editor: BaseDatabaseSchemaEditor) -> None:
        is_own = self.reference(model)[1]._meta.db_table == model._meta.db_table
        validate = row_by_row(VALIDATE, keys="%(to_columns)s" if is_own else "")
        schema_editor.deferred_sql += [
            self._statement(_ADD, model, schema_editor),
            self._statement(f"%(before)s{validate}%(after)s", model, schema_editor),
        ]

    def reference(self, model: type[Model]) -> tuple[list[str], type[Model], list[str]]:
        """Return the key's columns, the model it refers to, and the columns there."""
        key = cast("ForeignKey[Any]", model._meta.get_field(self.field))
        return [key.column], key.remote_field.model, [column_of(key.remote_field.model, key.target_field.name)]

    def on_delete_sql(self, model: type[Model]) -> str:
        """Return the ON DELETE clause, which never clears the store."""
        of = f" ({identifier(column_of(model, self.field))})" if self.on_delete == "SET NULL" else ""
        return f" ON DELETE {self.on_delete}{of}" if self.on_delete else ""

    def _statement(self, template: str, model: type[Model], schema_editor: BaseDatabaseSchemaEditor) -> Statement:
        quote, meta = schema_editor.quote_name, model._meta
        columns, to, to_columns = self.reference(model)
        before, after = lock_timeout(schema_editor.connection)
        return Statement(
            template,
            before="".join(f"{each};\n" for each in before),
            after="".join(f";\n{each}" for each in after),
            name=quote(self.name),
            table=Table(meta.db_table, quote),
            columns=Columns(meta.db_table, columns, quote),
            to_table=Table(to._meta.db_table, quote),
            to_columns=Columns(to._meta.db_table, to_columns, quote),
            on_delete=self.on_delete_sql(model),
            row_security=row_security_of(schema_editor.connection),
        )

    def options(self) -> dict[str, Any]:
        return {"field": self.field, "on_delete": self.on_delete}

    def validate(
        self, model: type[Model], instance: Model, exclude: Iterable[str] | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        """Accept every instance; the field itself looks for the row."""


class SameStoreForeignKey(DatabaseForeignKey):
    """Composite foreign key ``(store, field)`` to a row of the same store, checked at the end of a transaction.

    PostgreSQL checks foreign keys without row-level security, so a plain one lets a row refer to another store's row,
    and reveals that it exists. ``field`` is the model's ForeignKey, with ``db_constraint=False``; ``store_field`` is
    the field that holds the store, in this model and (unless ``to_store_field`` differs) in the referenced one, which
    needs a UniqueConstraint on (store, key). A row without a reference is valid. Without ``on_delete``, Django deletes.
    """

    default_violation_error_message = "This refers to a row of another %(store)s, or to none."

    def __init__(
        self,
        *,
        field: str,
        name: str,
        store_field: str = "store",
        to_store_field: str | None = None,
        on_delete: OnDelete | None = None,
        **messages: Any,
    ) -> None:
        super().__init__(field=field, on_delete=on_delete, name=name, **messages)
        self.store_field, self.to_store_field = store_field, to_store_field or store_field

    def reference(self, model: type[Model]) -> tuple[list[str], type[Model], list[str]]:
        """Return the key's columns, the model it refers to, and the columns there."""
        key = cast("ForeignKey[Any]", model._meta.get_field(self.field))
        to: type[Model] = key.remote_field.model
        to_columns = [column_of(to, self.to_store_field), column_of(to, key.target_field.name)]
        return [column_of(model, self.store_field), key.column], to, to_columns

    def options(self) -> dict[str, Any]:
        store = {} if self.store_field == "store" else {"store_field": self.store_field}
        to_store = {} if self.to_store_field == self.store_field else {"to_store_field": self.to_store_field}
        on_delete = {"on_delete": self.on_delete} if self.on_delete else {}
        return {"field": self.field, **store, **to_store, **on_delete}

    def validate(
        self, model: type[Model], instance: Model, exclude: Iterable[str] | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        """Raise ValidationError for an instance with a reference to no row of its store."""
        meta: Any = model._meta
        key, store = meta.get_field(self.field), meta.get_field(self.store_field)
        to: Any = key.remote_field.model
        reference = {
            key.target_field.attname: getattr(instance, key.attname),
            to._meta.get_field(self.to_store_field).attname: getattr(instance, store.attname),
        }
        if None in reference.values() or {self.field, self.store_field} & set(exclude or ()):
            return
        if not to._base_manager.using(using).filter(**reference).exists():
            raise ValidationError(self.get_violation_error_message(), code=self.violation_error_code)


def rows_that_violate(error: IntegrityError) -> str | None:
    """Return the query for the rows that keep a SameStoreForeignKey from being validated; None for other errors.

    PostgreSQL names none of them, since the key is validated without the right to read them.
    """
    diag: Any = getattr(error.__cause__, "diag", None)
    for model in apps.get_models():
        for key in model._meta.constraints:
            names = getattr(diag, "table_name", None), getattr(diag, "constraint_name", None)
            if isinstance(key, SameStoreForeignKey) and names == (model._meta.db_table, key.name):
                columns, to_model, to_columns = key.reference(model)
                ours, theirs = (
                    ", ".join(f"{alias}.{identifier(column)}" for column in each)
                    for alias, each in (("t", columns), ("parent", to_columns))
                )
                there = f"SELECT FROM {identifier(to_model._meta.db_table)} AS parent WHERE ({theirs}) = ({ours})"
                table = identifier(model._meta.db_table)
                return f"SELECT t.* FROM {table} AS t WHERE ({ours}) IS NOT NULL AND NOT EXISTS ({there})"
    return None
