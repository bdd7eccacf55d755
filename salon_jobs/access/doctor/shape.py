"""Checks of the job tables' shape: columns, constraints and indexes as the models declare them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from django.apps import apps
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper

from salon_jobs.access.doctor.catalogue import Catalogue, Drift, Relation
from salon_jobs.access.doctor.objects import Relations
from salon_jobs.access.objects import identifier, identifiers
from salon_jobs.conf import settings as conf

_REBUILD: Final = "it reads the table under a lock; rows that contradict it have to go first"
_UNDECLARED: Final = "nobody declared it, and it can refuse what the processes write"
_TYPES: Final = {"varchar": "character varying", "timestamptz": "timestamp with time zone"}
_FOREIGN: Final = {"c": "check constraint", "f": "foreign key", "x": "exclusion constraint", "u": "unique constraint"}


def compare_shape(catalogue: Catalogue, relations: Relations) -> Iterable[Drift]:
    """Yield columns, constraints and indexes of our models' tables that are missing, different, invalid or undeclared.

    Of a CHECK and of a partial index's condition, columns and constants are compared; of an indexed expression only
    that there is one. Undeclared indexes are drifts only if they are unique.
    """
    tables = {
        relations[model._meta.db_table]: model
        for model in apps.get_app_config("salon_jobs").get_models()
        if model._meta.managed and not model._meta.proxy and model._meta.db_table in relations
    }
    oids = [table.oid for table in tables]
    # Django writes them without connecting, since it knows the server's version: the alias's user may not log in.
    db: Any = connections[conf.database].copy()
    db.pg_version = catalogue.version
    columns = catalogue.rows("columns", tables=oids)
    constraints = catalogue.rows("constraints", tables=oids)
    indexes = catalogue.rows("indexes", tables=oids)
    for table, model in tables.items():
        yield from _compare_columns(table, model, {row[1]: row[2:] for row in columns if row[0] == table.oid}, db)
        yield from _compare_constraints(
            table, model, {row[1]: row[2:] for row in constraints if row[0] == table.oid}, db
        )
        yield from _compare_indexes(table, model, {row[1]: row[2:] for row in indexes if row[0] == table.oid}, db)


def _compare_columns(
    table: Relation, model: type[models.Model], present: dict[str, tuple[Any, ...]], db: BaseDatabaseWrapper
) -> Iterable[Drift]:
    for field in model._meta.local_concrete_fields:
        where, name = f"column {field.column} of {table.where}", identifier(str(field.column))
        declared = field.db_type(db) or ""
        kind = re.sub(r"^\w+", lambda word: _TYPES.get(word[0], word[0]), declared)
        is_generated = isinstance(field, models.GeneratedField)  # Django makes these without NOT NULL
        is_identity = field.db_type_suffix(db) is not None
        must_be = not field.null and not is_generated
        expected = _column(kind, must_be, is_generated or is_identity or field.has_db_default())
        if (column := present.pop(str(field.column), None)) is None:
            yield Drift("column", where, expected, "none", (), True, "run python manage.py migrate, or restore it")
            continue
        found_kind, is_required, fills = column
        found = _column(found_kind, is_required, fills)
        if found == expected:
            continue
        alter = f"ALTER TABLE {table.sql} ALTER COLUMN {name}"
        fix: list[str] = []
        if found_kind != kind:
            fix.append(f"{alter} TYPE {kind}")
        if is_required != must_be:
            fix.append(f"{alter} {'SET' if must_be else 'DROP'} NOT NULL")
        yield Drift("column", where, expected, found, tuple(fix), True, _REBUILD)
    for column_name, (kind, is_required, fills) in present.items():
        where, found = f"column {column_name} of {table.where}", _column(kind, is_required, fills)
        drop = f"ALTER TABLE {table.sql} DROP COLUMN {identifier(column_name)}"
        yield Drift("column", where, "none", found, (drop,), True, _UNDECLARED)


def _column(kind: str, is_required: bool, fills_itself: bool) -> str:
    return f"{kind}{' NOT NULL' if is_required else ''}{' with a default' if fills_itself else ''}"


def _compare_constraints(
    table: Relation, model: type[models.Model], present: dict[str, tuple[Any, ...]], db: BaseDatabaseWrapper
) -> Iterable[Drift]:
    for constraint in model._meta.constraints:
        if not isinstance(constraint, models.CheckConstraint):
            continue
        with_sql = _created(constraint, model, db)
        condition = with_sql.partition(" CHECK ")[2]
        where = f"check constraint {constraint.name} of {table.where}"
        found = present.pop(constraint.name, None)
        if found is None:
            yield Drift("constraint", where, f"CHECK {condition}", "none", (with_sql,), True, _REBUILD)
            continue
        kind, is_valid, columns, definition = found
        alter = f"ALTER TABLE {table.sql}"
        quoted = set(re.findall(r'"([^"]+)"', condition))
        if kind != "c" or set(columns) != quoted or _constants(condition) != _constants(definition):
            drop = f"{alter} DROP CONSTRAINT {identifier(constraint.name)}"
            yield Drift("constraint", where, f"CHECK {condition}", definition, (drop, with_sql), True, _REBUILD)
        elif not is_valid:
            fix = f"{alter} VALIDATE CONSTRAINT {identifier(constraint.name)}"
            yield Drift("constraint", where, "validated", "NOT VALID", (fix,), True, _REBUILD)
    fields = model._meta.local_concrete_fields
    related = {str(field.column) for field in fields if field.is_relation}
    checked = {str(field.column) for field in fields if field.db_check(db)}
    for name, (kind, _, columns, definition) in present.items():
        if kind == "c" and len(columns) == 1 and checked & {*columns}:
            checked.difference_update(columns)
            continue
        # The index of a unique constraint is compared with the other indexes.
        if kind in "cfx" and not (kind == "f" and set(columns) <= related):
            where = f"{_FOREIGN[kind]} {name} of {table.where}"
            drop = f"ALTER TABLE {table.sql} DROP CONSTRAINT {identifier(name)}"
            yield Drift("constraint", where, "none", definition, (drop,), True, _UNDECLARED)
    for column in checked:
        condition = next(each for each in fields if each.column == column).db_check(db) or ""
        add = f"ALTER TABLE {table.sql} ADD CHECK ({condition})"
        where = f"check of column {column} of {table.where}"
        yield Drift("constraint", where, f"CHECK ({condition})", "none", (add,), True, _REBUILD)


def _compare_indexes(
    table: Relation, model: type[models.Model], present: dict[str, tuple[Any, ...]], db: BaseDatabaseWrapper
) -> Iterable[Drift]:
    declared = [
        *((index, False) for index in model._meta.indexes),
        *((each, True) for each in model._meta.constraints if isinstance(each, models.UniqueConstraint)),
    ]
    for index, is_unique in declared:
        where = f"{'unique ' if is_unique else ''}index {index.name} of {table.where}"
        create, row = _created(index, model, db), present.pop(index.name, None)
        if row is None:
            yield Drift("index", where, create, "none", (create,), True, _REBUILD)
            continue
        unique, is_valid, columns, nulls_not_distinct, condition, definition, is_constraint = row
        drop = (
            f"ALTER TABLE {table.sql} DROP CONSTRAINT {identifier(index.name)}"
            if is_constraint
            else f"DROP INDEX {identifier(table.schema, index.name)}"
        )
        has = (unique, nulls_not_distinct, condition is not None, _constants(condition or ""))
        names = _columns(index, model)
        wants = (
            is_unique,
            getattr(index, "nulls_distinct", None) is False,
            index.condition is not None,
            _constants(create.partition(" WHERE ")[2]),
        )
        if has != wants or (names and names != columns):
            yield Drift("index", where, create, definition, (drop, create), True, _REBUILD)
        elif not is_valid:
            yield Drift("index", where, "valid", "INVALID", (drop, create), True, _REBUILD)
    alone: dict[tuple[str, ...], str] = {
        (str(field.column),): "UNIQUE" for field in model._meta.local_concrete_fields if field.unique
    }
    alone[tuple(str(field.column) for field in model._meta.pk_fields)] = "PRIMARY KEY"
    for name, (unique, is_valid, columns, _, condition, definition, is_constraint) in present.items():
        if not unique:
            continue
        where = f"unique index {name} of {table.where}"
        if condition is None and (*columns,) in alone:
            if is_valid:
                alone.pop((*columns,))
        else:
            of_constraint = f"ALTER TABLE {table.sql} DROP CONSTRAINT {identifier(name)}"
            drop = of_constraint if is_constraint else f"DROP INDEX {identifier(table.schema, name)}"
            yield Drift("index", where, "none", definition, (drop,), True, _UNDECLARED)
    for columns, kind in alone.items():
        add = f"ALTER TABLE {table.sql} ADD {kind} ({identifiers(columns)})"
        where = f"{kind} ({', '.join(columns)}) of {table.where}"
        yield Drift("index", where, "an index", "none", (add,), True, _REBUILD)


def _created(what: models.BaseConstraint | models.Index, model: type[models.Model], db: BaseDatabaseWrapper) -> str:
    # Never entered, so that it runs nothing.
    return str(what.create_sql(model, db.schema_editor(collect_sql=True)))


def _columns(index: Any, model: type[models.Model]) -> list[str]:
    """Return the columns of an index and then those that it includes; none if it is on expressions."""
    if index.expressions:
        return []
    fields = (*(name.removeprefix("-") for name in index.fields), *index.include)
    return [str(model._meta.get_field(name).column) for name in fields]  # type: ignore[union-attr]


def _constants(sql: str) -> set[str]:
    """Return the texts and numbers in a condition; instants are shown in the session's time zone, so not those."""
    texts = re.findall(r"'((?:[^']|'')*)'", sql)
    numbers = re.findall(r"(?<![\w.])\d+(?![\w.])", re.sub(r"'(?:[^']|'')*'|\"[^\"]*\"|::\w+(?:\(\d+\))?", "", sql))
    return {each for each in (*texts, *numbers) if not re.match(r"\d{4}-", each)}
