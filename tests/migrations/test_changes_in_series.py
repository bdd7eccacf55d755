"""Migrates random series of changes of isolated models, as makemigrations writes them, one by one and back again.

After each step the policies are those that the models declare, every key is valid, and no store has lost a row or
found another's. Backwards, the catalogue is what it was. Many more of them: ``--hypothesis-profile=hard``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Final

import pytest
from django.apps import apps
from django.db import models
from django.db.migrations import (
    AddConstraint,
    AddField,
    AlterField,
    AlterModelTable,
    CreateModel,
    DeleteModel,
    RemoveConstraint,
    RemoveField,
    RenameField,
    RenameModel,
)
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.operations.base import Operation
from django.db.migrations.questioner import MigrationQuestioner
from django.db.migrations.state import ModelState, ProjectState
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from salon_jobs.access import DatabaseForeignKey, ManyToManyIsolation, SameStoreForeignKey, StoreIsolation
from tests.migrations.isolated import assert_as_declared, migrating, rows_of, snapshot
from tests.migrations.operations import migrate
from tests.support import change, seen

DEEP: Final = settings.get_current_profile_name() in ("full", "hard")
SETTINGS: Final = settings(
    settings.get_profile("hard") if settings.get_current_profile_name() == "hard" else settings.get_profile("default"),
    max_examples={"quick": 4, "full": 25}.get(settings.get_current_profile_name(), 1000),
    deadline=None,
    stateful_step_count=20 if DEEP else 15,
    derandomize=settings.get_current_profile_name() != "hard",
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
    phases=(Phase.explicit, Phase.generate),  # a failing series names its changes; to shrink it takes minutes
)
numbers: Final = itertools.count(1)
picks: Final = st.integers(0, 10_000)
Change = Callable[[ProjectState], None]


class Answers(MigrationQuestioner):
    """Answers of a person who knows that what is missing was renamed, and what fills new columns."""

    def __init__(self, renamed: tuple[str, str] | None) -> None:
        super().__init__(defaults={})
        self.renamed = renamed

    def ask_rename(self, model_name: str, old_name: str, new_name: str, field_instance: Any) -> bool:
        return self.renamed == (old_name, new_name)

    def ask_rename_model(self, old_model_state: Any, new_model_state: Any) -> bool:
        return self.renamed == (old_model_state.name, new_model_state.name)

    def ask_not_null_addition(self, field_name: str, model_name: str) -> Any:
        return 1

    def ask_not_null_alteration(self, field_name: str, model_name: str) -> Any:
        return 1


def written(before: ProjectState, after: ProjectState, renamed: tuple[str, str] | None) -> list[Operation]:
    """Return the operations that makemigrations writes."""
    detector: Any = MigrationAutodetector
    # It changes the states that it compares.
    found = detector(before.clone(), after.clone(), Answers(renamed))._detect_changes()
    return [each for migration in found.get("salon", []) for each in migration.operations]


def key(to: str, **options: Any) -> Any:
    kind = models.OneToOneField if options.pop("one", False) else models.ForeignKey
    return kind(f"salon.{to}", models.CASCADE, related_name="+", **options)


def renamed_in(constraint: models.BaseConstraint, old: str, new: str) -> models.BaseConstraint:
    """Return a constraint whose field has another name."""
    _, arguments, keywords = constraint.deconstruct()
    for name in ("field", "through", "fields", "store_field"):
        value = keywords.get(name)
        if value == old:
            keywords[name] = new
        elif isinstance(value, tuple):
            keywords[name] = tuple(new if each == old else each for each in value)
    return type(constraint)(*arguments, **keywords)


class Series(RuleBasedStateMachine):
    """One project whose models are changed; ``done`` are the migrations, to be undone at the end."""

    mode: ClassVar[str]
    stores: ClassVar[Sequence[Any]]
    changes: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(migrating(self.mode))
        store: Any = apps.get_model("salon.Store")
        self.state = ProjectState({("salon", "store"): ModelState.from_model(store)})
        self.done: list[tuple[ProjectState, list[Operation], list[Any]]] = []
        self.named = itertools.count(1)

    @initialize()
    def start(self) -> None:
        """Create four models in one migration."""
        first = [
            self.new("Shared"),
            self.new("First", "store"),
            self.new("Second", "store"),
            self.new("Third", "second"),
        ]
        self.run(*first)
        for each in first:
            self.fill(each)

    # What is there

    def model(self, name: str) -> Any:
        return self.state.models["salon", name.lower()]

    def names(self) -> list[str]:
        return [model.name for (_, name), model in sorted(self.state.models.items()) if name != "store"]

    def isolation_of(self, name: str) -> Any:
        constraints = self.model(name).options.get("constraints", [])
        return next((each for each in constraints if isinstance(each, StoreIsolation)), None)

    def is_parent(self, name: str) -> bool:
        return any(
            self.model(other).fields[each].remote_field.model.lower() == f"salon.{name}".lower()
            for other in self.names()
            if (isolation := self.isolation_of(other)) is not None
            for each in isolation.through
        )

    def pick(self, number: int, *, of: Sequence[Any]) -> Any:
        return of[number % len(of)]

    def fields(self, name: str, wanted: Callable[[str, Any], bool]) -> list[tuple[str, str]]:
        return [(name, field) for field, value in self.model(name).fields.items() if wanted(field, value)]

    def all_fields(self, wanted: Callable[[str, Any], bool]) -> list[tuple[str, str]]:
        return [each for name in self.names() for each in self.fields(name, wanted)]

    def held(self, name: str) -> set[str]:
        """Return the fields by which rows belong to a store, and those of constraints."""
        held = {"id"}
        for constraint in self.model(name).options.get("constraints", []):
            _, _, keywords = constraint.deconstruct()
            for each in ("field", "through", "fields"):
                value = keywords.get(each, ())
                held |= {value} if isinstance(value, str) else set(value)
        return held

    # How it changes

    def run(self, *changes: Operation | Change, renamed: tuple[str, str] | None = None) -> None:
        """Make changes of the models, and run the operations that are written for them."""
        after = self.state.clone()
        for each in changes:
            if isinstance(each, Operation):
                each.state_forwards("salon", after)
            else:
                each(after)
        before = self.state
        operations = written(before, after, renamed)
        assert operations or renamed is not None
        was = snapshot(before)
        rows = self.rows(before)
        state = migrate(*operations, state=before.clone())
        type(self).changes += 1
        self.state = state
        self.done.append((before, operations, was))
        assert_as_declared(state)
        kept = self.rows(state)
        for table, counts in rows.items():
            assert kept.get(table, counts) == counts

    def rows(self, state: ProjectState) -> dict[str, list[int]]:
        isolated = {
            model._meta.db_table
            for model in state.apps.get_models()
            if any(isinstance(each, StoreIsolation) for each in model._meta.constraints)
            and model._meta.label != "salon.Store"
        }
        return {table: [rows_of(store, table) for store in self.stores] for table in isolated}

    def new(self, name: str, of: str | None = None) -> CreateModel:
        """Return a new model: with a store, through the rows of another model, or shared."""
        table = f"t{next(numbers)}"
        fields: list[tuple[str, Any]] = [("id", models.AutoField(primary_key=True))]
        constraints: list[models.BaseConstraint] = []
        if of == "store":
            fields.append(("store", key("Store")))
            constraints.append(StoreIsolation(field="store", name=f"{table}_isolation"))
            constraints.append(models.UniqueConstraint(fields=["store", "id"], name=f"{table}_unique"))
        elif of is not None:
            fields.append(("parent", key(of)))
            constraints.append(StoreIsolation(through="parent", name=f"{table}_isolation"))
        fields.append(("size", models.IntegerField(null=True)))
        return CreateModel(name, fields, options={"db_table": table, "constraints": constraints})

    def fill(self, model: CreateModel) -> None:
        """Add two rows of each store, with the keys 1 to 6."""
        columns = {name for name, _ in model.fields}
        table = model.options["db_table"]
        for number, store in enumerate(self.stores, start=1):
            for size in (None, number):
                if "parent" in columns:
                    change(f'INSERT INTO "{table}" (parent_id, size) VALUES (%s, %s)', number * 2, size)
                elif "store" in columns:
                    change(f'INSERT INTO "{table}" (store_id, size) VALUES (%s, %s)', store, size)
                else:
                    change(f'INSERT INTO "{table}" (size) VALUES (%s)', size)

    def alter(self, name: str, field: str, **changed: Any) -> None:
        """Change a field's arguments."""
        value = self.model(name).fields[field]
        _, _, arguments, keywords = value.deconstruct()
        kind = changed.pop("kind", type(value))
        keywords = {key: each for key, each in {**keywords, **changed}.items() if each is not models.NOT_PROVIDED}
        keywords.pop("unique", None) if kind is models.OneToOneField else None
        keywords.setdefault("related_name", "+") if "to" in keywords else None
        new = kind(*arguments, **keywords)
        if new.deconstruct()[1:] != value.deconstruct()[1:]:
            self.run(AlterField(name, field, new))

    @rule(pick=picks, kind=st.sampled_from(["store", "through", "shared"]))
    def create_model(self, pick: int, kind: str) -> None:
        parents = [name for name in self.names() if self.isolation_of(name) and self.has_rows(name)]
        if len(self.names()) < 7 and (parents or kind != "through"):
            of = {"store": "store", "shared": None}.get(kind) if kind != "through" else self.pick(pick, of=parents)
            new = self.new(f"New{next(self.named)}", of)
            self.run(new)
            self.fill(new)

    def has_rows(self, name: str) -> bool:
        """Return whether a model has the rows that defaults refer to."""
        [(count,)] = seen(f'SELECT count(*) FROM "{self.table(name)}" WHERE id <= 6')
        return bool(count == 6)

    def table(self, name: str) -> str:
        return str(self.model(name).options["db_table"])

    @rule(pick=picks, kind=st.sampled_from(["null", "default", "db_default", "text", "one-off"]))
    def add_plain_field(self, pick: int, kind: str) -> None:
        name, field = self.pick(pick, of=self.names()), f"f{next(self.named)}"
        value: Any = {
            "null": models.IntegerField(null=True),
            "default": models.IntegerField(default=3),
            "db_default": models.IntegerField(db_default=3),
            "text": models.CharField(max_length=9, default="x"),
            "one-off": models.SmallIntegerField(),
        }[kind]
        self.run(AddField(name, field, value))

    @rule(pick=picks, to=picks, kind=st.sampled_from(["null", "default", "one", "loose", "bare", "one-off"]))
    def add_key(self, pick: int, to: int, kind: str) -> None:
        name, target = self.pick(pick, of=self.names()), self.pick(to, of=self.names())
        kinds: dict[str, dict[str, Any]] = {
            "null": {"null": True},
            "default": {"default": 1},
            "one": {"null": True, "one": True},
            "loose": {"null": True, "db_constraint": False},
            "bare": {"default": 2, "db_index": False},
            "one-off": {},
        }
        field = f"k{next(self.named)}"
        self.run(AddField(name, field, key(target, **kinds[kind])))

    @rule(pick=picks, to=picks)
    def add_key_of_same_store(self, pick: int, to: int) -> None:
        of_store = [each for each in self.names() if (found := self.isolation_of(each)) and found.field == "store"]
        if not of_store:
            return
        name, target = self.pick(pick, of=of_store), self.pick(to, of=of_store)
        field = f"s{next(self.named)}"
        new = SameStoreForeignKey(field=field, name=f"same_{next(numbers)}")
        self.run(AddField(name, field, key(target, null=True, db_constraint=False)), AddConstraint(name, new))
        table, to_table = (self.table(each) for each in (name, target))
        change(
            f'UPDATE "{table}" t SET {field}_id = (SELECT min(id) FROM "{to_table}" p WHERE p.store_id = t.store_id)'
        )

    @rule(pick=picks, to=picks)
    def add_key_of_the_database(self, pick: int, to: int) -> None:
        name, target = self.pick(pick, of=self.names()), self.pick(to, of=self.names())
        field = f"d{next(self.named)}"
        new = DatabaseForeignKey(field=field, on_delete="SET NULL", name=f"database_{next(numbers)}")
        self.run(AddField(name, field, key(target, null=True, db_constraint=False)), AddConstraint(name, new))

    @rule(pick=picks, to=picks)
    def add_many_to_many(self, pick: int, to: int) -> None:
        isolated = [each for each in self.names() if self.isolation_of(each)]
        name, target = self.pick(pick, of=isolated), self.pick(to, of=isolated)
        if name == target:
            return
        field = f"m{next(self.named)}"
        many: Any = models.ManyToManyField(f"salon.{target}", related_name="+")
        new = ManyToManyIsolation(field=field, name=f"many_{next(numbers)}")
        self.run(AddField(name, field, many), AddConstraint(name, new))

    @rule(pick=picks, what=st.sampled_from(["null", "default", "db_default", "size"]))
    def alter_number(self, pick: int, what: str) -> None:
        found = self.all_fields(lambda _, value: type(value) in (models.IntegerField, models.BigIntegerField))
        if not found:
            return
        name, field = self.pick(pick, of=found)
        value: Any = self.model(name).fields[field]
        small = isinstance(value, models.BigIntegerField)
        changed: dict[str, dict[str, Any]] = {
            "null": {"null": not value.null},
            "default": {"default": models.NOT_PROVIDED if value.has_default() else 5},
            "db_default": {"db_default": models.NOT_PROVIDED if value.has_db_default() else 6},
            "size": {"kind": models.IntegerField if small else models.BigIntegerField},
        }
        self.alter(name, field, **changed[what])

    @rule(pick=picks, what=st.sampled_from(["null", "db_index", "db_constraint", "db_comment", "unique"]))
    def alter_key(self, pick: int, what: str) -> None:
        found = self.all_fields(lambda _, value: isinstance(value, models.ForeignKey))
        name, field = self.pick(pick, of=found)
        value: Any = self.model(name).fields[field]
        if what == "db_comment":
            self.alter(name, field, db_comment=None if value.db_comment else "of others")
        elif what == "unique":
            if isinstance(value, models.OneToOneField):
                self.alter(name, field, kind=models.ForeignKey)
            elif self.is_unique(name, f"{field}_id"):
                self.alter(name, field, kind=models.OneToOneField, db_index=models.NOT_PROVIDED)
        elif what == "db_index" or field not in self.held(name):
            self.alter(name, field, **{what: not getattr(value, what)})

    def is_unique(self, name: str, column: str) -> bool:
        [(unique,)] = seen(f'SELECT count(DISTINCT "{column}") = count("{column}") FROM "{self.table(name)}"')
        return bool(unique)

    @rule(pick=picks)
    def alter_primary_key(self, pick: int) -> None:
        name = self.pick(pick, of=self.names())
        is_small = type(self.model(name).fields["id"]) is models.AutoField
        self.alter(name, "id", kind=models.BigAutoField if is_small else models.AutoField)

    @rule(pick=picks)
    def rename_field(self, pick: int) -> None:
        name, field = self.pick(pick, of=self.all_fields(lambda field, _: field != "id"))
        if field == "store" and self.has_keys_of_same_store():
            return
        new = f"r{next(self.named)}"

        def alter(state: ProjectState) -> None:
            RenameField(name, field, new).state_forwards("salon", state)
            options = state.models["salon", name.lower()].options
            options["constraints"] = [renamed_in(each, field, new) for each in options.get("constraints", [])]
            state.reload_model("salon", name.lower())

        self.run(alter, renamed=(field, new))

    def has_keys_of_same_store(self) -> bool:
        constraints = [each for name in self.names() for each in self.model(name).options.get("constraints", [])]
        return any(isinstance(each, SameStoreForeignKey) for each in constraints)

    @rule(pick=picks)
    def rename_model(self, pick: int) -> None:
        name, new = self.pick(pick, of=self.names()), f"Renamed{next(self.named)}"
        self.run(RenameModel(name, new), renamed=(name, new))

    @rule(pick=picks)
    def move_table(self, pick: int) -> None:
        name, new = self.pick(pick, of=self.names()), f"t{next(numbers)}"
        self.run(AlterModelTable(name, new))

    @rule(pick=picks)
    def remove_field(self, pick: int) -> None:
        # Reversed, Django adds it with its default to the rows that there are.
        found = [
            (name, field)
            for name, field in self.all_fields(
                lambda _, value: value.null or value.many_to_many or not value.remote_field
            )
            if field not in self.held(name)
            and (value := self.model(name).fields[field])
            and (value.null or value.has_default() or value.has_db_default())
        ]
        if found:
            name, field = self.pick(pick, of=found)
            self.run(RemoveField(name, field))

    @rule(pick=picks)
    def toggle_isolation(self, pick: int) -> None:
        found = [each for each in self.names() if "store" in self.model(each).fields and not self.is_parent(each)]
        if not found:
            return
        name = self.pick(pick, of=found)
        present = self.isolation_of(name)
        new = StoreIsolation(field="store", name=f"isolation_{next(numbers)}")
        self.run(AddConstraint(name, new) if present is None else RemoveConstraint(name, present.name))

    @rule(pick=picks)
    def delete_model(self, pick: int) -> None:
        used = {
            value.remote_field.model.lower()
            for name in self.names()
            for value in self.model(name).fields.values()
            if value.remote_field
        }
        found = [name for name in self.names() if f"salon.{name}".lower() not in used]
        if len(self.names()) > 4 and found:
            name = self.pick(pick, of=found)
            self.run(DeleteModel(name))

    def teardown(self) -> None:
        try:
            while self.done:
                before, operations, was = self.done.pop()
                migrate(*operations, state=before.clone(), backwards=True)
                assert snapshot(before) == was
        finally:
            self.stack.close()
            for (table,) in seen("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^t[0-9]+(_|$)'"):
                change(f'DROP TABLE "{table}" CASCADE')


@pytest.mark.parametrize("mode", ["roles", "one user"])
def test_series_of_changes_migrates_both_ways(mode: str, tables: None, stores: list[Any]) -> None:
    machine = type("Series", (Series,), {"mode": mode, "stores": stores})
    run_state_machine_as_test(machine, settings=SETTINGS)
