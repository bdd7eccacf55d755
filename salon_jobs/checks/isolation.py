"""Registers system checks of what models declare about stores; none of them asks the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import FieldDoesNotExist
from django.db import connections, router
from django.db.models import Model, UniqueConstraint

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.migration_ops.declared import declared_by_operations, declared_in_meta
from salon_jobs.tenancy.constraints import AccessConstraint, MembershipIsolation, StoreIsolation, is_store_model
from salon_jobs.tenancy.same_store import SameStoreForeignKey

Declared: TypeAlias = Mapping[type[Model], AccessConstraint]


@register("salon_jobs")
def check_isolation(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Check that models which belong to stores say so, and that their keys hold the store."""
    try:
        store_model, database = conf.store_model, conf.database
        store = None if store_model is None else apps.get_model(store_model)
    except (ConfigurationError, LookupError):
        return []  # check_settings tells
    if store is None or connections[database].vendor != "postgresql":
        return []
    models = [model for model in apps.get_models(include_auto_created=True) if _has_table(model, database)]
    declared: Declared = declared_in_meta()
    if any(_undeclared(model, declared, store) for model in models):
        declared = {**declared_by_operations(), **declared}
    messages: list[CheckMessage] = [_open(model) for model in models if _undeclared(model, declared, store)]
    for model in models:
        isolation = declared.get(model)
        if isolation is not None:
            messages += _check_names(model, isolation)
        if isinstance(isolation, StoreIsolation):
            messages += _check_field(model, isolation) or [
                *_check_uniques(model, isolation),
                *_check_references(model, isolation, declared),
            ]
        messages += [error for key in _same_store_keys(model) for error in _check_target(model, key)]
    return messages


def _has_table(model: type[Model], database: str) -> bool:
    meta = model._meta
    return bool(meta.managed and not meta.proxy and not meta.swapped and router.allow_migrate_model(database, model))


def _undeclared(model: type[Model], declared: Declared, store: type[Model]) -> bool:
    """Tell whether a model holds what belongs to a store, and nothing says who may see it."""
    if model in declared:
        return False
    targets = {key.remote_field.model for key in _foreign_keys(model)}
    return (
        model is store
        or store in targets
        or any(isinstance(declared.get(target), StoreIsolation) for target in targets)
    )


def _open(model: type[Model]) -> CheckMessage:
    meta = model._meta
    hint = (
        'give it the store and, in Meta.constraints, StoreIsolation(field="store", name="…"), then run makemigrations;'
        " a model that is not yours, the operation ProtectModel; the table of a ManyToManyField, a through model; or"
        ' say SystemScope(name="…") where stores may see each other\'s rows'
    )
    text = f"{meta.label} refers to stores or their rows, or is the store, and its table shows all of them to everybody"
    return Warning(text, hint=hint, obj=model, id="salon_jobs.W010")


def _check_field(model: type[Model], isolation: StoreIsolation) -> list[CheckMessage]:
    text = None
    try:
        field: Any = model._meta.get_field(isolation.field)
        if (field.target_field if field.is_relation else field).get_internal_type() != "UUIDField":
            text = "is not a uuid, as stores are"
    except FieldDoesNotExist:
        text = "is no field of it"
    if text is None:
        return []
    hint = 'name the field that holds the store; "id" in the store model itself'
    text = f"{isolation.name}: {isolation.field!r} {text}"
    return [Error(text, hint=hint, obj=model, id="salon_jobs.E010")]


def _check_names(model: type[Model], constraint: AccessConstraint) -> Iterator[CheckMessage]:
    """Check the fields that ``web``, ``worker`` and ``user_field`` name."""
    named = {name for may in (constraint.web, constraint.worker) for names in may.values() for name in names}
    if isinstance(constraint, MembershipIsolation):
        named.add(constraint.user_field)
    for name in sorted(named):
        try:
            column = getattr(model._meta.get_field(name), "column", None)
        except FieldDoesNotExist:
            column = None
        if column is None:
            text = f"{constraint.name}: {name!r} is no field of its table"
            hint = "name fields of the model in web, worker and user_field"
            yield Error(text, hint=hint, obj=model, id="salon_jobs.E010")


def _check_uniques(model: type[Model], isolation: StoreIsolation) -> Iterator[CheckMessage]:
    field: Any = model._meta.get_field(isolation.field)
    if is_store_model(model, field):
        return
    for label, first in _uniques(model):
        if first not in (field.name, field.attname):
            hint = (
                "make it UniqueConstraint(fields=[…]) with the store first: row-level security does not reach it, so it"
                " tells a store what another one has, and keeps it from having the same"
            )
            text = f"the unique {label} is not led by {isolation.field!r}"
            yield Warning(text, hint=hint, obj=model, id="salon_jobs.W011")


def _uniques(model: type[Model]) -> Iterator[tuple[str, str | None]]:
    """Yield each unique thing and its first field; None for an expression."""
    meta = model._meta
    for field in meta.local_fields:
        if field.unique and not field.primary_key:
            yield f"field {field.name!r}", field.name
    for names in meta.unique_together:
        yield f"unique_together {tuple(names)!r}", names[0]
    for constraint in meta.constraints:
        if isinstance(constraint, UniqueConstraint):
            first = constraint.fields[0] if constraint.fields else getattr(constraint.expressions[0], "name", None)
            yield f"constraint {constraint.name!r}", first


def _check_references(model: type[Model], isolation: StoreIsolation, declared: Declared) -> Iterator[CheckMessage]:
    held = {key.field for key in _same_store_keys(model)}
    for key in _foreign_keys(model):
        target = declared.get(key.remote_field.model)
        if key.name == isolation.field or not isinstance(target, StoreIsolation):
            continue
        same_store = f'SameStoreForeignKey(field="{key.name}", name="…") in Meta.constraints'
        if key.db_constraint and not key.remote_field.model._meta.get_field(target.field).primary_key:
            hint = (
                f"say db_constraint=False and add {same_store}: a plain foreign key lets a row refer to another"
                " store's, and tells that it exists"
            )
            text = f"the foreign key {key.name!r} does not hold the store"
            yield Warning(text, hint=hint, obj=model, id="salon_jobs.W012")
        elif not key.db_constraint and key.name not in held:
            text = f"nothing in the database holds the reference {key.name!r}"
            yield Warning(text, hint=f"add {same_store}", obj=model, id="salon_jobs.W013")


def _check_target(model: type[Model], key: SameStoreForeignKey) -> list[CheckMessage]:
    try:
        field: Any = model._meta.get_field(key.field)
        model._meta.get_field(key.store_field)
        target = field.remote_field.model._meta
        needed = {target.get_field(key.to_store_field).name, field.target_field.name}
    except (FieldDoesNotExist, AttributeError):
        text = f"{key.name}: {key.field!r} is no foreign key, or there is no {key.store_field!r}, here or there"
        return [Error(text, hint="name a ForeignKey and the fields of the store", obj=model, id="salon_jobs.E011")]
    uniques = [set(constraint.fields) for constraint in target.total_unique_constraints]
    if needed in [*uniques, *map(set, target.unique_together)]:
        return []
    fields = f'["{key.to_store_field}", "{field.target_field.name}"]'
    hint = f'add UniqueConstraint(fields={fields}, name="…") to {target.label}, whose rows it refers to'
    return [Error(f"{key.name} refers to what is not unique", hint=hint, obj=model, id="salon_jobs.E011")]


def _same_store_keys(model: type[Model]) -> list[SameStoreForeignKey]:
    return [constraint for constraint in model._meta.constraints if isinstance(constraint, SameStoreForeignKey)]


def _foreign_keys(model: type[Model]) -> list[Any]:
    return [field for field in model._meta.local_fields if field.remote_field is not None]
