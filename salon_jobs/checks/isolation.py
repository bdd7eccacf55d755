"""Checks that models of stores declare it, and that none of their references leads past the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import FieldDoesNotExist
from django.db import connections, router
from django.db.models import CASCADE, SET_DEFAULT, SET_NULL, AutoField, CompositePrimaryKey, Model, UniqueConstraint

from salon_jobs.access.constraints import (
    AccessConstraint,
    MembershipIsolation,
    SameStoreForeignKey,
    StoreIsolation,
    is_store_model,
)
from salon_jobs.access.operations.access import declared_by_operations, declared_in_meta
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import key_of, store_key
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.tenancy.resolvers import membership_fields

# Actions for which Django looks for the rows.
_BY_DJANGO: Final = (CASCADE, SET_NULL, SET_DEFAULT)
Declared: TypeAlias = Mapping[type[Model], AccessConstraint]


def check_isolation() -> list[CheckMessage]:
    """Check that models of stores declare it, and that their keys include the store."""
    using = conf.database
    if conf.store_model is None or connections[using].vendor != "postgresql":
        return []
    try:
        store = apps.get_model(conf.store_model)
    except LookupError:
        return []  # E004
    models = [
        model
        for model in apps.get_models(include_auto_created=True)
        if model._meta.managed
        and not (model._meta.proxy or model._meta.swapped)
        and router.allow_migrate_model(using, model)
    ]
    try:
        declared: Declared = declared_in_meta()
    except ConfigurationError as error:
        return [Error(str(error), hint="name a ManyToManyField of the model", id="salon_jobs.E010")]
    if not {*models} <= {*declared}:
        declared = {**declared_by_operations(), **declared}
    messages: list[CheckMessage] = [*_check_managed(declared)]
    of_stores = _of_stores(models, declared, store)
    used = {_target(key) for model in models if model in of_stores for key in _foreign_keys(model)}
    for model in models:
        isolation = declared.get(model)
        if isolation is not None:
            messages += _check_names(model, isolation)
        elif model in of_stores:
            messages.append(_unprotected(model, of_stores, store))
        elif model in used and not model.__module__.startswith("django.contrib."):
            messages.append(_shared(model))
        if isinstance(isolation, StoreIsolation):
            messages += [*_check_field(model, isolation), *_check_through(model, isolation, declared, store)] or [
                *_check_uniques(model, isolation),
                *_check_references(model, isolation, declared),
            ]
        messages += [error for key in _same_store_keys(model) for error in _check_target(model, key)]
    return [
        *messages,
        *_check_routers([model for model in models if isinstance(declared.get(model), StoreIsolation)], using),
    ]


# A router may choose among replicas at random.
_ASKED: Final = 8


def _check_routers(models: Sequence[type[Model]], using: str) -> Iterator[CheckMessage]:
    """Check that no router sends reads of stores' rows to an alias where no context is open."""
    elsewhere = {router.db_for_read(model): model for model in models for _ in range(_ASKED)}
    for alias, model in sorted(elsewhere.items(), key=lambda found: found[0]):
        if alias != using and connections[alias].vendor == "postgresql":
            text = (
                f"models of stores, such as {model._meta.label}, are read from the database {alias!r}, where a"
                " tenant_context, a request or a job sets no store: such reads find no rows"
            )
            hint = (
                f"have DATABASE_ROUTERS answer {using!r} for them; or open the context there as well, by"
                f" tenant_context(store_id, using={alias!r}), and silence this check"
            )
            yield Warning(text, hint=hint, id="salon_jobs.W016")


def _check_managed(declared: Declared) -> Iterator[CheckMessage]:
    """Refuse models that only seem isolated: migrations leave out constraints of tables that Django does not create."""
    unmanaged = [(model, isolation) for model, isolation in declared.items() if not model._meta.managed]
    if not any(isinstance(isolation, StoreIsolation) for _, isolation in unmanaged):
        return
    protected = declared_by_operations()
    for model, isolation in unmanaged:
        if isinstance(isolation, StoreIsolation) and model not in protected:
            label = model._meta.label
            text = f"{isolation.name}: no migration isolates the table of {label}, which is not managed"
            hint = f'move the declaration into a migration that depends on its table: ProtectModel("{label}", …)'
            yield Error(text, hint=hint, obj=model, id="salon_jobs.E010")


def _of_stores(models: Sequence[type[Model]], declared: Declared, store: type[Model]) -> set[type[Model]]:
    """Return the models with data of stores: isolated ones, and undeclared ones that lead to them by references."""
    found = {store, *(model for model in models if isinstance(declared.get(model), StoreIsolation))}
    others = {model: {_target(key) for key in _foreign_keys(model)} for model in models if model not in declared}
    while more := {model for model, targets in others.items() if model not in found and targets & found}:
        found |= more
    return found


def _unprotected(model: type[Model], of_stores: set[type[Model]], store: type[Model]) -> CheckMessage:
    meta, references = model._meta, _foreign_keys(model)
    keys = [key for key in references if _target(key) in of_stores - {store} and not key.null]
    through = "".join(f', or without it StoreIsolation(through="{key.name}", name="…")' for key in keys[:1])
    to_store = meta.pk.name if model is store else next((key.name for key in references if _target(key) is store), None)
    add = f'a foreign key to the store and, in Meta.constraints, StoreIsolation(field="store", name="…"){through}'
    if to_store is not None:
        add = f'StoreIsolation(field="{to_store}", name="…") to Meta.constraints'
    if (conf.membership_model or "").lower() == meta.label_lower:
        with suppress(ConfigurationError):  # E030
            _, user, field = membership_fields()
            add = f'MembershipIsolation(field="{field.name}", user_field="{user.name}", name="…") to Meta.constraints'
    hint = (
        f"add {add}, then run makemigrations. For a model of another app use the operation ProtectModel. Where stores"
        ' may see each other\'s rows, add SystemScope(name="…")'
    )
    owner: Any = meta.auto_created  # False, or the model with the field
    if owner:
        [name] = [each.name for each in owner._meta.local_many_to_many if each.remote_field.through is model]
        one_side = f'StoreIsolation(through="{keys[0].name if keys else "…"}", name="…")'
        hint = (
            f'add ManyToManyIsolation(field="{name}", name="…") to Meta.constraints of {owner._meta.label}, then run'
            " makemigrations. If that is of another app, or only one side belongs to stores, use the operation"
            f' ProtectModel("{meta.label}", {one_side})'
        )
    leads = "is the store model" if model is store else "refers to stores or their rows"
    text = f"{meta.label} {leads}, and everybody can see all its rows"
    return Warning(text, hint=hint, obj=model, id="salon_jobs.W010")


def _shared(model: type[Model]) -> CheckMessage:
    hint = (
        'declare StoreIsolation in its Meta.constraints if its rows belong to stores, and SystemScope(name="…") if the'
        " stores share them. For a model of another app use the operation ProtectModel"
    )
    text = f"rows of stores refer to {model._meta.label}, and everybody can see all its rows"
    return Warning(text, hint=hint, obj=model, id="salon_jobs.W014")


def _check_field(model: type[Model], isolation: StoreIsolation) -> list[CheckMessage]:
    if not isolation.field:
        return []
    try:
        field: Any = model._meta.get_field(isolation.field)
        if key_of(field) is store_key():
            return []
        fault = f"is of another type than the stores' keys, each of which is {store_key().description}"
    except FieldDoesNotExist:
        fault = "is not a field of the model"
    hint = 'name the field that holds the store; "id" in the store model itself'
    return [Error(f"{isolation.name}: {isolation.field!r} {fault}", hint=hint, obj=model, id="salon_jobs.E010")]


def _check_through(
    model: type[Model], isolation: StoreIsolation, declared: Declared, store: type[Model]
) -> Iterator[CheckMessage]:
    """Check that each parent is isolated, that the roles can read its key, and that the first is never NULL."""
    keys = {key.name: key for key in _foreign_keys(model)}
    for number, name in enumerate(isolation.through):
        key = keys.get(name)
        target = None if key is None else _target(key)
        parent = None if target is None else declared.get(target)
        if key is None or target is None:
            fault, hint = "is not a foreign key of the model", "name foreign keys to isolated models in through"
        elif target is store:
            fault, hint = "refers to the store itself", f'write field="{name}" instead'
        elif not isinstance(parent, StoreIsolation):
            fault = f"refers to {target._meta.label}, which does not declare StoreIsolation"
            hint = "declare it there first: the rows are those whose parents the store can see"
        elif model in _parents(target, declared):
            fault, hint = "leads back to the model itself", "name a foreign key that leads to the store's field"
        elif key.null and number == 0 and not isolation.field:
            fault, hint = "can be NULL, and such rows would be nobody's", "set null=False, or put another one first"
        elif blind := [role for role in ("web", "worker") if not _can_find(role, isolation, parent, key)]:
            column = f"{target._meta.label}.{key.target_field.name}"
            fault, hint = (
                f"refers to {column}, which {' and '.join(blind)} may not SELECT",
                "grant it in the parent's declaration",
            )
        else:
            continue
        yield Error(f"{isolation.name}: {name!r} {fault}", hint=hint, obj=model, id="salon_jobs.E010")


def _parents(model: type[Model], declared: Declared) -> set[type[Model]]:
    """Return a model, and the parents through which its rows belong to stores."""
    found, more = set[type[Model]](), {model}
    while more:
        found |= more
        more = {
            _target(key)
            for each in more
            if isinstance(isolation := declared.get(each), StoreIsolation)
            for key in _foreign_keys(each)
            if key.name in isolation.through
        } - found
    return found


def _can_find(role: str, isolation: AccessConstraint, parent: AccessConstraint, key: Any) -> bool:
    """Return whether a role that uses a table may read the key of its parents, as the policy does with its rights."""
    columns = getattr(parent, role).get("SELECT")
    return not getattr(isolation, role) or (columns is not None and (not columns or key.target_field.name in columns))


def _check_names(model: type[Model], constraint: AccessConstraint) -> Iterator[CheckMessage]:
    """Check the fields named by ``web``, ``worker`` and ``user_field``."""
    named = {name for may in (constraint.web, constraint.worker) for names in may.values() for name in names}
    if isinstance(constraint, MembershipIsolation):
        named.add(constraint.user_field)
    for name in sorted(named):
        try:
            column = getattr(model._meta.get_field(name), "column", None)
        except FieldDoesNotExist:
            column = None
        if column is None:
            text = f"{constraint.name}: {name!r} is not a field with a column"
            hint = "name fields of the model in web, worker and user_field"
            yield Error(text, hint=hint, obj=model, id="salon_jobs.E010")


def _is_generated(key: Any) -> bool:
    """Return whether users cannot choose a primary key, and so cannot find out whether it is taken."""
    return isinstance(key, AutoField) or key.is_relation or key.has_default() or key.has_db_default()


def _check_uniques(model: type[Model], isolation: StoreIsolation) -> Iterator[CheckMessage]:
    meta = model._meta
    fields: list[Any] = [meta.get_field(name) for name in (isolation.field, *isolation.through) if name]
    # The table of a ManyToManyField is unique by both sides, and one of them is the store's.
    if meta.auto_created or (isolation.field and is_store_model(model, fields[0])):
        return
    stores = {name for field in fields for name in (field.name, field.attname)}
    # Each unique field or constraint with its fields; an expression counts as none.
    uniques: list[tuple[str, Sequence[str | None]]] = [
        (f"field {each.name!r}", [each.name])
        for each in meta.local_fields
        if each.unique and not (each.primary_key and (_is_generated(each) or isinstance(each, CompositePrimaryKey)))
    ]
    if isinstance(meta.pk, CompositePrimaryKey):
        uniques.append((f"primary key {meta.pk.field_names!r}", meta.pk.field_names))
    uniques += [(f"unique_together {tuple(names)!r}", names) for names in meta.unique_together]
    for constraint in meta.constraints:
        if isinstance(constraint, UniqueConstraint):
            expressions = [getattr(each, "name", None) for each in constraint.expressions]
            uniques.append((f"constraint {constraint.name!r}", constraint.fields or expressions))
    for label, names in uniques:
        if stores.isdisjoint(names):
            mend = "make the store a part of it"
            if not label.startswith("primary key"):
                mend = "make it a UniqueConstraint(fields=[…]) with the store first"
            hint = (
                f"{mend}: row-level security does not apply to it, so it reveals one store's values to another, which"
                " cannot use them itself"
            )
            text = f"the unique {label} does not contain {fields[0].name!r}"
            yield Warning(text, hint=hint, obj=model, id="salon_jobs.W011")


def _check_references(model: type[Model], isolation: StoreIsolation, declared: Declared) -> Iterator[CheckMessage]:
    enforced = {key.field for key in _same_store_keys(model)}
    for key in _foreign_keys(model):
        target = declared.get(_target(key))
        if key.remote_field.on_delete in _BY_DJANGO and key.swappable_setting == "AUTH_USER_MODEL":
            hint = (
                "let the database do it: set on_delete=DO_NOTHING and db_constraint=False, and add DatabaseForeignKey("
                f'field="{key.name}", on_delete="CASCADE" or "SET NULL", name="…") to Meta.constraints. A'
                " ManyToManyField needs a model of its own for that (through=)"
            )
            text = f"a user to whom rows of other stores refer by {key.name!r} cannot be deleted"
            yield Warning(text, hint=hint, obj=model, id="salon_jobs.W015")
        if key.name in (isolation.field, *isolation.through) or not isinstance(target, StoreIsolation):
            continue
        if not (isolation.field and target.field):
            text = f"nothing keeps the reference {key.name!r} within one store"
            hint = f"add {key.name!r} to through in {isolation.name}: one of the two tables has no field of the store"
            if model in _parents(_target(key), declared):
                hint = "add a field of the store and SameStoreForeignKey: a policy cannot read its own table"
            if model._meta.auto_created:
                yield Error(text, hint=hint, obj=model, id="salon_jobs.E012")
            else:
                yield Warning(text, hint=hint, obj=model, id="salon_jobs.W012")
            continue
        same_store = f'SameStoreForeignKey(field="{key.name}", name="…") in Meta.constraints'
        of: Any = _target(key)._meta.get_field(target.field)
        if key.db_constraint and not of.primary_key:
            hint = (
                f"set db_constraint=False and add {same_store}: with a plain foreign key, a row can refer to another"
                " store's row, and so find out that it exists"
            )
            text = f"the foreign key {key.name!r} does not include the store"
            yield Warning(text, hint=hint, obj=model, id="salon_jobs.W012")
        elif not key.db_constraint and key.name not in enforced:
            text = f"nothing in the database enforces the reference {key.name!r}"
            yield Warning(text, hint=f"add {same_store}", obj=model, id="salon_jobs.W013")


def _check_target(model: type[Model], key: SameStoreForeignKey) -> list[CheckMessage]:
    try:
        field: Any = model._meta.get_field(key.field)
        model._meta.get_field(key.store_field)
        target = field.remote_field.model._meta
        needed = {target.get_field(key.to_store_field).name, field.target_field.name}
    except (FieldDoesNotExist, AttributeError):
        text = f"{key.name}: {key.field!r} is not a foreign key, or one of the two models has no {key.store_field!r}"
        return [Error(text, hint="name a ForeignKey and the fields of the store", obj=model, id="salon_jobs.E011")]
    uniques = [set(constraint.fields) for constraint in target.total_unique_constraints]
    if needed in [*uniques, *map(set, target.unique_together)]:
        return []
    fields = f'["{key.to_store_field}", "{field.target_field.name}"]'
    hint = f'add UniqueConstraint(fields={fields}, name="…") to {target.label}, whose rows it refers to'
    return [Error(f"{key.name} refers to fields that are not unique", hint=hint, obj=model, id="salon_jobs.E011")]


def _same_store_keys(model: type[Model]) -> list[SameStoreForeignKey]:
    return [constraint for constraint in model._meta.constraints if isinstance(constraint, SameStoreForeignKey)]


def _foreign_keys(model: type[Model]) -> list[Any]:
    """Return a model's references; Django's own checks report references to models that are not installed."""
    return [field for field in model._meta.local_fields if isinstance(field.related_model, type)]


def _target(key: Any) -> type[Model]:
    """Return the model whose table a foreign key refers to."""
    target: type[Model] = key.remote_field.model._meta.concrete_model
    return target
