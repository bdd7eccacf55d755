"""Migrates random series of changes of isolated models, as makemigrations writes them, one by one and back again.

After each step the policies are those that the models declare, every key is valid, and no store has lost a row or
found another's. Backwards, the catalogue is what it was. Many more of them: ``--hypothesis-profile=hard``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Final

import pytest
from django.apps import apps
from django.db import models
from django.db.migrations import AddField, AlterField, AlterModelTable, CreateModel, DeleteModel, RemoveField
from django.db.migrations import RenameField, RenameModel
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.operations.base import Operation
from django.db.migrations.questioner import MigrationQuestioner
from django.db.migrations.state import ModelState, ProjectState
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from salon_jobs.access import ManyToManyIsolation, SameStoreForeignKey, StoreIsolation
from tests.migrations.isolated import assert_as_declared, migrating, rows_of, snapshot
from tests.migrations.operations import migrate
from tests.support import change, seen

DEEP: Final = settings.get_current_profile_name() in ("full", "hard")
SETTINGS: Final = settings(
    settings.get_profile("hard") if settings.get_current_profile_name() == "hard" else settings.get_profile("default"),
    max_examples={"quick": 12, "full": 60}.get(settings.get_current_profile_name(), 1000),
    deadline=None,
    stateful_step_count=10 if not DEEP else 20,
    derandomize=settings.get_current_profile_name() != "hard",
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),  # a failing series names its changes; to shrink it takes minutes
)
numbers: Final = itertools.count(1)
picks: Final = st.integers(0, 10_000)
flags: Final = st.booleans()
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
        self.done: list[tuple[ProjectState, list[Operation], dict[str, Any]]] = []
        self.named = itertools.count(1)

    @initialize()
    def start(self) -> None:
        self.create("Shared", isolated=False, through=None)
        self.create("First", isolated=True, through=None)
        self.create("Second", isolated=True, through=None)
        self.create("Third", isolated=True, through="second")

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

    def free(self, name: str) -> list[tuple[str, str]]:
        return self.fields(name, lambda field, _: field not in self.held(name))

    # How it changes

    def run(self, alter: Change, renamed: tuple[str, str] | None = None) -> None:
        """Make the change of the models, write its operations and run them; half of the time, also back and again."""
        after = self.state.clone()
        alter(after)
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
            if any(isinstance(each, StoreIsolation) for each in model._meta.constraints) and model._meta.label != "salon.Store"
        }
        return {table: [rows_of(store, table) for store in self.stores] for table in isolated}

    def create(self, name: str, *, isolated: bool, through: str | None) -> None:
        table = f"t{next(numbers)}"
        fields: list[tuple[str, Any]] = [("id", models.AutoField(primary_key=True))]
        constraints: list[models.BaseConstraint] = []
        if isolated and through is not None:
            fields.append(("parent", key(through)))
            constraints.append(StoreIsolation(through="parent", name=f"{table}_isolation"))
        elif isolated:
            fields.append(("store", key("Store")))
            constraints.append(StoreIsolation(field="store", name=f"{table}_isolation"))
            constraints.append(models.UniqueConstraint(fields=["store", "id"], name=f"{table}_unique"))
        fields.append(("size", models.IntegerField(null=True)))
        options = {"db_table": table, "constraints": constraints}
        self.run(lambda state: CreateModel(name, fields, options=options).state_forwards("salon", state))
        for number, store in enumerate(self.stores, start=1):
            for size in (None, number):
                if through is not None:
                    change(f'INSERT INTO "{table}" (parent_id, size) VALUES (%s, %s)', number * 2, size)
                elif isolated:
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
            self.run(lambda state: AlterField(name, field, new).state_forwards("salon", state))

    @rule(pick=picks, through=st.one_of(st.none(), picks), isolated=flags)
    def create_model(self, pick: int, through: int | None, isolated: bool) -> None:
        if len(self.names()) < 7:
            parents = [each for each in self.names() if self.isolation_of(each)]
            parent = None if through is None or not isolated else self.pick(through, of=parents)
            if parent is None or self.ids_are_small(parent):
                self.create(f"New{next(self.named)}", isolated=isolated, through=parent)

    def ids_are_small(self, name: str) -> bool:
        [(count,)] = seen(f'SELECT count(*) FROM "{self.model(name).options["db_table"]}" WHERE id <= 6')
        return bool(count == 6)

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
        self.run(lambda state: AddField(name, field, value).state_forwards("salon", state))

    @rule(pick=picks, to=picks, kind=st.sampled_from(["null", "default", "one", "loose", "bare", "one-off"]))
    def add_key(self, pick: int, to: int, kind: str) -> None:
        name, target = self.pick(pick, of=self.names()), self.pick(to, of=self.names())
        options: dict[str, Any] = {
            "null": {"null": True},
            "default": {"default": 1},
            "one": {"null": True, "one": True},
            "loose": {"null": True, "db_constraint": False},
            "bare": {"default": 2, "db_index": False},
            "one-off": {},
        }[kind]
        field = f"k{next(self.named)}"
        self.run(lambda state: AddField(name, field, key(target, **options)).state_forwards("salon", state))

    @rule(pick=picks, to=picks)
    def add_key_of_same_store(self, pick: int, to: int) -> None:
        of_store = [each for each in self.names() if (found := self.isolation_of(each)) and found.field == "store"]
        if not of_store:
            return
        name, target = self.pick(pick, of=of_store), self.pick(to, of=of_store)
        field = f"s{next(self.named)}"
        new = SameStoreForeignKey(field=field, name=f"same_{next(numbers)}")

        def alter(state: ProjectState) -> None:
            AddField(name, field, key(target, null=True, db_constraint=False)).state_forwards("salon", state)
            state.add_constraint("salon", name.lower(), new)

        self.run(alter)
        table, to_table = (self.model(each).options["db_table"] for each in (name, target))
        change(f'UPDATE "{table}" t SET {field}_id = (SELECT min(id) FROM "{to_table}" p WHERE p.store_id = t.store_id)')

    @rule(pick=picks, to=picks)
    def add_many_to_many(self, pick: int, to: int) -> None:
        isolated = [each for each in self.names() if self.isolation_of(each)]
        name, target = self.pick(pick, of=isolated), self.pick(to, of=isolated)
        if name == target:
            return
        field = f"m{next(self.named)}"
        new = ManyToManyIsolation(field=field, name=f"many_{next(numbers)}")

        def alter(state: ProjectState) -> None:
            many: Any = models.ManyToManyField(f"salon.{target}", related_name="+")
            AddField(name, field, many).state_forwards("salon", state)
            state.add_constraint("salon", name.lower(), new)

        self.run(alter)

    @rule(pick=picks, null=flags, default=st.sampled_from([models.NOT_PROVIDED, 5]), big=flags)
    def alter_number(self, pick: int, null: bool, default: Any, big: bool) -> None:
        found = self.all_fields(lambda _, value: type(value) in (models.IntegerField, models.BigIntegerField))
        if found:
            name, field = self.pick(pick, of=found)
            kind = models.BigIntegerField if big else models.IntegerField
            self.alter(name, field, kind=kind, null=null, default=default)

    @rule(pick=picks, null=flags, index=flags, constraint=flags, comment=st.sampled_from([None, "a", "b"]))
    def alter_key(self, pick: int, null: bool, index: bool, constraint: bool, comment: str | None) -> None:
        found = self.all_fields(lambda _, value: type(value) is models.ForeignKey)
        name, field = self.pick(pick, of=found)
        changed: dict[str, Any] = {"db_index": index, "db_comment": comment}
        if field not in self.held(name):
            changed.update(null=null, db_constraint=constraint)
        self.alter(name, field, **changed)

    @rule(pick=picks)
    def make_one_to_one(self, pick: int) -> None:
        found = [
            (name, field)
            for name, field in self.all_fields(lambda _, value: type(value) is models.ForeignKey and value.db_index)
            if seen(f'SELECT count(DISTINCT {field}_id) = count({field}_id) FROM "{self.model(name).options["db_table"]}"')[0][0]
            and field not in self.held(name)
        ]
        if found:
            self.alter(*self.pick(pick, of=found), kind=models.OneToOneField)

    @rule(pick=picks, big=flags)
    def alter_primary_key(self, pick: int, big: bool) -> None:
        name = self.pick(pick, of=self.names())
        self.alter(name, "id", kind=models.BigAutoField if big else models.AutoField)

    @rule(pick=picks)
    def rename_field(self, pick: int) -> None:
        name, field = self.pick(pick, of=self.all_fields(lambda field, _: field not in ("id", "store")))
        new = f"r{next(self.named)}"

        def alter(state: ProjectState) -> None:
            RenameField(name, field, new).state_forwards("salon", state)
            options = state.models["salon", name.lower()].options
            options["constraints"] = [renamed_in(each, field, new) for each in options.get("constraints", [])]
            state.reload_model("salon", name.lower())

        self.run(alter, (field, new))

    @rule(pick=picks)
    def rename_model(self, pick: int) -> None:
        name, new = self.pick(pick, of=self.names()), f"Renamed{next(self.named)}"
        self.run(lambda state: RenameModel(name, new).state_forwards("salon", state), (name, new))

    @rule(pick=picks)
    def move_table(self, pick: int) -> None:
        name, new = self.pick(pick, of=self.names()), f"t{next(numbers)}"
        self.run(lambda state: AlterModelTable(name, new).state_forwards("salon", state))

    @rule(pick=picks)
    def remove_field(self, pick: int) -> None:
        found = [each for name in self.names() for each in self.free(name)]
        if found:
            name, field = self.pick(pick, of=found)
            self.run(lambda state: RemoveField(name, field).state_forwards("salon", state))

    @rule(pick=picks)
    def toggle_isolation(self, pick: int) -> None:
        found = [each for each in self.names() if "store" in self.model(each).fields and not self.is_parent(each)]
        if not found:
            return
        name = self.pick(pick, of=found)
        present = self.isolation_of(name)
        new = StoreIsolation(field="store", name=f"isolation_{next(numbers)}")

        def alter(state: ProjectState) -> None:
            if present is None:
                state.add_constraint("salon", name.lower(), new)
            else:
                state.remove_constraint("salon", name.lower(), present.name)

        self.run(alter)

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
            self.run(lambda state: DeleteModel(name).state_forwards("salon", state))

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
    machine.TestCase.settings = SETTINGS
    run_state_machine_as_test(machine, settings=SETTINGS)
    print("changes", machine.changes)
