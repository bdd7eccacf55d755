"""Parts of tables, as declared and as found: policies, triggers, rules, columns, constraints and indexes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, cast

from django.apps import apps
from django.db import connections, models

from salon_jobs.access.constraints import SameStoreForeignKey, StoreIsolation
from salon_jobs.access.declared_objects import identifier, identifiers
from salon_jobs.access.doctor.catalogue import Catalogue, Drift, Relation
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.doctor.expressions import normal_form
from salon_jobs.access.job_tables import own_tables


class Part(NamedTuple):
    """A part of a table as declared, and the statements that create it.

    Without a name, it is found by its text: Django names only the parts in ``Meta``. The text of a column is three
    lines: its type, NOT NULL, and its default or expression.
    """

    kind: str
    table: Relation
    name: str
    text: str
    make: tuple[str, ...] = ()


class _Kind(NamedTuple):
    """SQL to drop a kind of part, and the hint for an undeclared, missing or differing one.

    ``decides``: a person decides about a missing or differing one, and about an undeclared one if there is a hint.
    ``of_models``: an undeclared one is a drift only in the tables of salon_jobs.
    """

    drop: str
    undeclared: str = ""
    differs: str = ""
    decides: bool = False
    of_models: bool = False


_UNDECLARED: Final = "nobody declared it, and it can refuse what the processes write"
_REBUILD: Final = "it reads the table under a lock; rows that contradict it have to go first"
_AGAIN: Final = "run the doctor again after it: rows added in the meantime still need to be validated"
_DROP_CONSTRAINT: Final = "ALTER TABLE {table} DROP CONSTRAINT {name}"
_KINDS: Final = {
    "policy": _Kind("DROP POLICY {name} ON {table}"),
    "trigger": _Kind(
        "DROP TRIGGER {name} ON {table}", "it can change or drop rows unseen; declare it with pgtrigger if it is yours"
    ),
    "rule": _Kind(
        "DROP RULE {name} ON {table}",
        "it rewrites statements and runs with the rights of the table's owner; use a trigger instead",
    ),
    "column": _Kind("ALTER TABLE {table} DROP COLUMN {name}", _UNDECLARED, _REBUILD, True, True),
    "constraint": _Kind(_DROP_CONSTRAINT, _UNDECLARED, _REBUILD, True, True),
    "foreign key": _Kind(_DROP_CONSTRAINT, _UNDECLARED, _AGAIN, of_models=True),
    "index": _Kind("DROP INDEX {schema}.{name}", _UNDECLARED, _REBUILD, True, True),
}


def drop(kind: str, name: str, table: Relation) -> str:
    """Return the statement that drops a part."""
    return _KINDS[kind].drop.format(name=identifier(name), table=table.sql, schema=identifier(table.schema))


def compare_policies(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield the drifts of policies that ``compare_parts`` would."""
    return _compare(catalogue, declared, _policies(declared), ["policy"])


def compare_parts(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield parts that are missing, differ, are disabled or invalid, or undeclared.

    Also parts that call foreign functions or operators: they may look as declared all the same, since the server shows
    a cast and not its function.
    """
    triggers = [
        Part("trigger", table, trigger.name, trigger.create, tuple(trigger.replace()))
        for function in declared.functions
        for trigger in function.triggers
        if (table := declared.relations.get(trigger.table))
    ]
    of_models = *parts_of_models(catalogue, declared), *_columns_of_isolation(catalogue, declared)
    expected = (*_policies(declared), *triggers, *of_models, *_keys(declared))
    return _compare(catalogue, declared, expected, [*_KINDS])


def _compare(
    catalogue: Catalogue, declared: Declaration, expected: Iterable[Part], kinds: list[str]
) -> Iterable[Drift]:
    parts = {(part.table.oid, part.kind, part.name or normal_form(part.text)): part for part in expected}
    declared_tables = {table for _, table in declared.present}
    tables = {table.oid: table for table in (*declared_tables, *(part.table for part in parts.values()))}
    for oid, kind, name, text, fault, is_drift, calls in catalogue.rows("parts", tables=[*tables], kinds=kinds):
        table, rule = tables[oid], _KINDS[kind]
        where, shown = f"{kind} {name} of {table.where}", _shown(text)
        is_ours, alter = table.name in own_tables(), f"ALTER TABLE {table.sql}"
        if calls and (is_ours or kind == "policy"):
            hint = "drop that, or the cast that calls it, and make this again"
            yield Drift(
                kind, where, "only functions and operators of the server or an extension", calls, (), True, hint
            )
        drop_it = drop(kind, name, table)
        part = parts.pop((oid, kind, name), None) or parts.pop((oid, kind, normal_form(text)), None)
        if part is None and is_drift:
            if is_ours or (not rule.of_models and table in declared_tables):
                yield Drift(kind, where, "none", shown, (drop_it,), bool(rule.undeclared), rule.undeclared)
        elif part is not None and _normal(part, part.text) != _normal(part, text):
            fix = _alter_column(part, text) if kind == "column" else (drop_it, *part.make)
            yield Drift(kind, where, _shown(part.text), shown, fix, rule.decides, rule.differs)
        elif fault and kind == "trigger":
            yield Drift(kind, where, "ENABLE", fault, (f"{alter} ENABLE TRIGGER {identifier(name)}",))
        elif fault and part is not None:
            validate = f"{alter} VALIDATE CONSTRAINT {identifier(name)}"
            fix = (validate,) if text.startswith("CHECK") else (drop_it, *part.make)
            yield Drift(kind, where, "valid", fault, fix, rule.decides, rule.differs)
    for part in parts.values():
        rule = _KINDS[part.kind]
        where = f"{part.kind} {part.name} of {part.table.where}"
        hint = rule.differs if part.make else "run python manage.py migrate, or restore it"
        yield Drift(part.kind, where, _shown(part.text), "none", part.make, rule.decides, hint)


def _shown(text: str) -> str:
    return " ".join(text.split())


def _normal(part: Part, text: str) -> str:
    """Return a part's text in normal form; of a trigger, with its events in order, and without a host's condition."""
    if part.kind == "column":  # models name no schema of a type
        text = re.sub(r'^(?:\w+|"(?:[^"]|"")+")\.', "", text)
    if part.kind != "trigger":
        return normal_form(text)
    text = normal_form(text.replace(" OR REPLACE", "", 1))
    if part.table.name not in own_tables():
        text = re.sub(r" when .* execute ", " execute ", text)
    return re.sub(
        r"(before|after|of) (.+?) on ",
        lambda found: f"{found[1]} {' or '.join(sorted(found[2].split(' or ')))} on ",
        text,
        count=1,
    )


def _alter_column(part: Part, found: str) -> tuple[str, ...]:
    kind, required, filled = part.text.split("\n")
    _, _, instead = found.split("\n", 2)
    what = "DEFAULT" if not instead.startswith("GENERATED") else "IDENTITY" if "IDENTITY" in instead else "EXPRESSION"
    changes = (
        f"TYPE {kind}",
        f"{'SET' if required else 'DROP'} NOT NULL",
        f"SET {filled}" if filled else f"DROP {what}",
    )
    return tuple(
        f"ALTER TABLE {part.table.sql} ALTER COLUMN {identifier(part.name)} {change}"
        for change, one, other in zip(changes, part.text.split("\n"), found.split("\n", 2), strict=True)
        if normal_form(one) != normal_form(other) and "GENERATED" not in one
    )


def _policies(declared: Declaration) -> Iterator[Part]:
    for access, table in declared.present:
        reads = [declared.relations[name] for name in access.reads if name in declared.relations]
        for policy in access.policies:
            text, make = policy.text, policy.create(table.sql)
            for each in reads:  # the server shows its schema
                plain, qualified = f" FROM {identifier(each.name)} ", f" FROM {each.sql} "
                text, make = text.replace(plain, qualified), make.replace(plain, qualified)
            yield Part("policy", table, policy.name, text, (make,))


def _keys(declared: Declaration) -> Iterator[Part]:
    """Yield the keys of declared constraints: without some, rows could refer to another store's rows."""
    for key, model in declared.foreign_keys:
        columns, to_model, to_columns = key.reference(model)
        table = declared.relations.get(model._meta.db_table)
        to = declared.relations.get(to_model._meta.db_table)
        if table is not None and to is not None:
            text = f"FOREIGN KEY ({identifiers(columns)}) REFERENCES {to.sql} ({identifiers(to_columns)})"
            text += f"{key.on_delete_sql(model)} DEFERRABLE INITIALLY DEFERRED"
            add = f"ALTER TABLE {table.sql} ADD CONSTRAINT {identifier(key.name)} {text} NOT VALID"
            yield Part("foreign key", table, key.name, text, (add,))


# Types as models write them, and as the server shows them.
_TYPES: Final = {
    "char": "character",
    "decimal": "numeric",
    "int": "integer",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "timestamptz": "timestamp with time zone",
    "varchar": "character varying",
}


def parts_of_models(catalogue: Catalogue, declared: Declaration) -> Iterator[Part]:
    """Yield columns, constraints and indexes of the tables of salon_jobs, as Django makes them."""
    editor = _editor(catalogue)
    for model in apps.get_app_config("salon_jobs").get_models():
        meta = cast("Any", model._meta)
        table = declared.relations.get(meta.db_table)
        if table is None or not meta.managed or meta.proxy:
            continue
        add = f"ALTER TABLE {table.sql} ADD "
        for each in (*meta.constraints, *meta.indexes):
            create = str(each.create_sql(model, editor)).replace(identifier(meta.db_table), table.sql, 2)
            text = create.removeprefix(add).removeprefix(f"CONSTRAINT {identifier(each.name)} ")
            yield Part("index" if text == create else "constraint", table, each.name, text, (create,))
        unnamed = [f"PRIMARY KEY ({identifiers(field.column for field in meta.pk_fields)})"]
        for field in meta.local_concrete_fields:
            yield Part("column", table, field.column, "\n".join(_column(field, editor)))
            unnamed += [f"UNIQUE ({identifier(field.column)})"] if field._unique else []
            unnamed += [f"CHECK ({check})"] if (check := field.db_check(editor.connection)) else []
        for text in unnamed:
            yield Part("constraint", table, "", text, (f"{add}{text}",))


def _columns_of_isolation(catalogue: Catalogue, declared: Declaration) -> Iterator[Part]:
    """Yield the columns that assign rows of the project's tables to stores, as Django creates them.

    They hold a store, a parent, a membership's user or a reference of a ``SameStoreForeignKey``, which is not checked
    where one of its columns is NULL. Other changes of a project's migrations to a table are not compared; nor is the
    default of a primary key without a reference, which may be older than identity columns.
    """
    found: dict[tuple[type[models.Model], str], Any] = {}
    for model, isolation in declared.models.items():
        if isinstance(isolation, StoreIsolation):
            names = isolation.field, *isolation.through, getattr(isolation, "user_field", "")
            for field in (cast("Any", model._meta.get_field(name)) for name in names if name):
                found[model, field.column] = field
    for key, model in declared.foreign_keys:
        if isinstance(key, SameStoreForeignKey):
            columns, _, _ = key.reference(model)
            found |= {(model, each.column): each for each in model._meta.concrete_fields if each.column in columns}
    editor = _editor(catalogue)
    for (model, column), field in found.items():
        table = declared.relations.get(model._meta.db_table)
        fills_itself = field.primary_key and not field.is_relation
        if table is not None and model._meta.can_migrate(catalogue.using) and not fills_itself:
            yield Part("column", table, column, "\n".join(_column(field, editor)))


def _editor(catalogue: Catalogue) -> Any:
    """Return Django's writer of SQL for the server, without connecting: the alias's user may not be able to log in."""
    db: Any = connections[catalogue.using].copy()
    db.pg_version = catalogue.version
    return db.schema_editor(collect_sql=True)  # never entered, so that it runs nothing


def _column(field: Any, editor: Any) -> tuple[str, str, str]:
    """Return the type of a field's column, NOT NULL, and its default or expression."""

    def written(sql: str, values: Iterable[Any]) -> str:
        return sql % tuple(str(editor.quote_value(value)) for value in values)

    kind = re.sub(r"^\w+", lambda word: _TYPES.get(word[0], word[0]), field.db_type(editor.connection) or "")
    if collation := field.db_parameters(editor.connection).get("collation"):
        kind += f" COLLATE {identifier(collation)}"
    required, filled = "" if field.null else "NOT NULL", str(field.db_type_suffix(editor.connection) or "")
    if isinstance(field, models.GeneratedField):  # which Django makes without NOT NULL
        how = "STORED" if cast("Any", field).db_persist else "VIRTUAL"
        required, filled = "", f"GENERATED ALWAYS AS ({written(*field.generated_sql(editor.connection))}) {how}"
    elif field.has_db_default():
        filled = f"DEFAULT {written(*editor.db_default_sql(field))}"
    return kind, required, filled
