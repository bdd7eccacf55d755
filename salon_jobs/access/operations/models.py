"""Access to models of other apps, declared by migration operations; and what is declared of every model."""

from __future__ import annotations

from django.apps import apps
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.db.models import Model

from salon_jobs.access.constraints import AccessConstraint
from salon_jobs.access.operations.base import DatabaseOperation
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError


class ProtectModel(DatabaseOperation):
    """Operation that gives a model outside your code the access a ``StoreIsolation`` or ``SystemScope`` declares.

    ``model`` is "app_label.Model"; the table of a ManyToManyField is "app_label.Model_field". The migration depends on
    the one that creates it. To change what an earlier migration declared, pass that as ``instead_of``. Raises
    ConfigurationError when a policy would remain that is no longer declared.
    """

    def __init__(self, model: str, constraint: AccessConstraint, *, instead_of: AccessConstraint | None = None) -> None:
        self.model = model
        self.constraint = constraint
        self.instead_of = instead_of

    def allowed(self, alias: str, app_label: str, state: ProjectState) -> bool:
        """Ask the routers for the model, as the operation that created its table did."""
        return self.allow_migrate_model(alias, self._model(state))

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        self._put(schema_editor, self._model(state), self.constraint, self.instead_of)

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        self._put(schema_editor, self._model(state), self.instead_of, self.constraint)

    def describe(self) -> str:
        return f"Protect {self.model} by {type(self.constraint).__name__}"

    def _put(
        self,
        schema_editor: BaseDatabaseSchemaEditor,
        model: type[Model],
        new: AccessConstraint | None,
        old: AccessConstraint | None,
    ) -> None:
        if old is not None:
            schema_editor.remove_constraint(model, old)
        access = None if new is None else new.access(model, conf.roles)
        # Its own may already exist: a conversion to roles sets up what all migrations declare.
        declared: set[str] = set() if access is None else {policy.name for policy in access.policies}
        leftovers = [] if schema_editor.collect_sql else sorted(_policies(schema_editor, model) - declared)
        if leftovers:
            raise ConfigurationError(
                f"{self.model} has policies of another declaration ({', '.join(leftovers)}): name the one so far, "
                f'ProtectModel("{self.model}", …, instead_of=…)'
            )
        if new is not None:
            schema_editor.add_constraint(model, new)

    def _model(self, state: ProjectState) -> type[Model]:
        return state.apps.get_model(self.model)


class ReleaseModel(ProtectModel):
    """Operation that undoes a ``ProtectModel`` with the same ``constraint``; reversing restores it.

    It leaves a table without row-level security, with the default privileges.
    """

    def __init__(self, model: str, constraint: AccessConstraint) -> None:
        super().__init__(model, constraint)

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        super().unapply(schema_editor, state)

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        super().apply(schema_editor, state)

    def describe(self) -> str:
        return f"Release {self.model} from {type(self.constraint).__name__}"


def _policies(schema_editor: BaseDatabaseSchemaEditor, model: type[Model]) -> set[str]:
    """Return the names of the declared policies that a table has."""
    query = (
        "SELECT polname FROM pg_policy"
        " WHERE polrelid = to_regclass(quote_ident(%s)) AND starts_with(polname, 'salon_jobs_')"
    )
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(query, [model._meta.db_table])
        return {name for (name,) in cursor.fetchall()}


def declarations() -> dict[type[Model], AccessConstraint]:
    """Return the constraint that declares access to each model's table; ``Meta`` takes precedence over operations.

    salon_jobs' own tables are declared in ``access.job_tables``. Reads the files of all migrations, not the database.
    """
    return {**declared_by_operations(), **declared_in_meta()}


def declared_in_meta() -> dict[type[Model], AccessConstraint]:
    return {
        model: constraint
        for model in apps.get_models(include_auto_created=True)
        for constraint in model._meta.constraints
        if isinstance(constraint, AccessConstraint) and not model._meta.proxy  # its table is another model's
    }


def declared_by_operations() -> dict[type[Model], AccessConstraint]:
    """Return the constraints given by ``ProtectModel``, and not removed by ``ReleaseModel``, of installed models."""
    graph = MigrationLoader(None, ignore_no_migrations=True).graph
    plan = dict.fromkeys(key for leaf in graph.leaf_nodes() for key in graph.forwards_plan(leaf))
    last = {
        operation.model.lower(): operation
        for key in plan
        for operation in graph.nodes[key].operations
        if isinstance(operation, ProtectModel)
    }
    return {
        model: operation.constraint
        for operation in last.values()
        if not isinstance(operation, ReleaseModel) and (model := _installed(operation.model)) is not None
    }


def _installed(name: str) -> type[Model] | None:
    try:
        return apps.get_model(name)
    except LookupError:
        return None
