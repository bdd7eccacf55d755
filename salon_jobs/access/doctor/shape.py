"""Checks of the job tables' shape: columns, constraints and indexes as the models declare them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from django.apps import apps
from django.db import connections, models

from salon_jobs.access.doctor.catalogue import Catalogue, Drift, Relation
from salon_jobs.access.doctor.expressions import normal_form
from salon_jobs.access.doctor.objects import Relations
from salon_jobs.access.objects import identifier, identifiers

_REBUILD: Final = "it reads the table under a lock; rows that contradict it have to go first"
_UNDECLARED: Final = "nobody declared it, and it can refuse what the processes write"
_TYPES: Final = {"varchar": "character varying", "timestamptz": "timestamp with time zone"}


def compare_shape(catalogue: Catalogue, relations: Relations) -> Iterable[Drift]:
    """Yield columns, constraints and indexes of our models' tables that are missing, different, invalid or undeclared.

    Undeclared indexes are drifts only if they are unique.
    """
    tables = {
        relations[model._meta.db_table]: model
        for model in apps.get_app_config("salon_jobs").get_models()
        if model._meta.managed and not model._meta.proxy and model._meta.db_table in relations
    }
    oids = [table.oid for table in tables]
    # Django writes them without connecting, since it knows the server's version: the alias's user may not log in. The
    # editor is never entered, so that it runs nothing.
    db: Any = connections[catalogue.using].copy()
    db.pg_version = catalogue.version
    editor = db.schema_editor(collect_sql=True)
    columns, definitions = catalogue.rows("columns", tables=oids), catalogue.rows("definitions", tables=oids)
    for table, model in tables.items():
        yield from _compare_columns(table, model, {row[1]: row[2:] for row in columns if row[0] == table.oid}, editor)
        present = {row[1]: row[2:] for row in definitions if row[0] == table.oid}
        yield from _compare_definitions(table, model, present, editor)


def _compare_columns(
    table: Relation, model: type[models.Model], present: dict[str, tuple[Any, ...]], editor: Any
) -> Iterable[Drift]:
    for field in model._meta.local_concrete_fields:
        name = str(field.column)
        where, alter = f"column {name} of {table.where}", f"ALTER TABLE {table.sql} ALTER COLUMN {identifier(name)}"
        kind = re.sub(r"^\w+", lambda word: _TYPES.get(word[0], word[0]), field.db_type(editor.connection) or "")
        # Django makes generated columns without NOT NULL.
        required = "" if field.null or isinstance(field, models.GeneratedField) else "NOT NULL"
        expected = (kind, required, _filled(field, editor))
        shown = " ".join(filter(None, expected))
        if (found := present.pop(name, None)) is None:
            yield Drift("column", where, shown, "none", (), True, "run python manage.py migrate, or restore it")
            continue
        differs = [normal_form(one) != normal_form(other) for one, other in zip(expected, found, strict=True)]
        if not any(differs):
            continue
        default = f"SET {expected[2]}" if expected[2] else "DROP DEFAULT"
        changes = (f"TYPE {kind}", f"{'SET' if required else 'DROP'} NOT NULL", default)
        can_change = (*differs[:2], differs[2] and "GENERATED" not in f"{expected[2]} {found[2]}")
        fix = tuple(f"{alter} {change}" for change, yes in zip(changes, can_change, strict=True) if yes)
        yield Drift("column", where, shown, " ".join(filter(None, found)), fix, True, _REBUILD)
    for name, found in present.items():
        drop = f"ALTER TABLE {table.sql} DROP COLUMN {identifier(name)}"
        where = f"column {name} of {table.where}"
        yield Drift("column", where, "none", " ".join(filter(None, found)), (drop,), True, _UNDECLARED)


def _filled(field: Any, editor: Any) -> str:
    """Return what fills a column for which a statement has no value; empty: nothing."""
    if suffix := field.db_type_suffix(editor.connection):
        return str(suffix)
    if isinstance(field, models.GeneratedField):
        (sql, values), text = field.generated_sql(editor.connection), "GENERATED ALWAYS AS ({}) STORED"
    elif field.has_db_default():
        (sql, values), text = editor.db_default_sql(field), "DEFAULT {}"
    else:
        return ""
    return text.format(sql % tuple(str(editor.quote_value(value)) for value in values))


def _compare_definitions(
    table: Relation, model: type[models.Model], present: dict[str, tuple[Any, ...]], editor: Any
) -> Iterable[Drift]:
    """Compare constraints and indexes. Django names only those in ``Meta``; the others are found by what they say."""
    meta = model._meta
    alter = f"ALTER TABLE {table.sql}"
    declared = {
        each.name: str(each.create_sql(model, editor)).replace(identifier(meta.db_table), table.sql, 2)
        for each in (*meta.constraints, *meta.indexes)
    }
    texts = (
        f"PRIMARY KEY ({identifiers(str(field.column) for field in meta.pk_fields)})",
        *(f"UNIQUE ({identifier(str(field.column))})" for field in meta.local_fields if field._unique),  # type: ignore[attr-defined]
        *(f"CHECK ({check})" for field in meta.local_fields if (check := field.db_check(editor.connection))),
    )
    unnamed = {normal_form(text): f"{alter} ADD {text}" for text in texts}
    for name, (kind, is_valid, definition) in present.items():
        where = f"{kind} {name} of {table.where}"
        found = definition.removesuffix(" NOT VALID").replace(" USING btree", "", 1)
        if kind.endswith("index"):
            what, drop = "index", f"DROP INDEX {identifier(table.schema, name)}"
        else:
            what, drop = "constraint", f"{alter} DROP CONSTRAINT {identifier(name)}"
        create = declared.pop(name, None) or unnamed.pop(normal_form(found), None)
        if create is None:
            if kind != "index":
                yield Drift(what, where, "none", definition, (drop,), True, _UNDECLARED)
            continue
        expected = create.removeprefix(f"{alter} ADD ").removeprefix(f"CONSTRAINT {identifier(name)} ")
        if normal_form(expected) != normal_form(found):
            yield Drift(what, where, expected, definition, (drop, create), True, _REBUILD)
        elif not is_valid:
            fix = (f"{alter} VALIDATE CONSTRAINT {identifier(name)}",) if kind == "check constraint" else (drop, create)
            yield Drift(what, where, "valid", "NOT VALID", fix, True, _REBUILD)
    for name, create in (declared | unnamed).items():
        what = "constraint" if create.startswith(alter) else "index"
        expected = create.removeprefix(f"{alter} ADD ")
        yield Drift(what, f"{what} {name} of {table.where}", expected, "none", (create,), True, _REBUILD)
