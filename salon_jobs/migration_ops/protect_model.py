"""Puts a model of somebody else's app under what a constraint declares, and takes it away."""

from __future__ import annotations

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState
from django.db.models import Model

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.migration_ops.base import DatabaseOperation
from salon_jobs.tenancy.constraints import AccessConstraint


class ProtectModel(DatabaseOperation):
    """Give a model, whose ``Meta`` is not yours, the access that a ``StoreIsolation`` or ``SystemScope`` declares.

    ``model`` is "app_label.Model"; the table of a ManyToManyField is "app_label.Model_field". The migration depends on
    the one that creates it. A later one changes what an earlier one declared, which it names: ``instead_of``. Raises
    ConfigurationError when a policy would be left that nothing declares any more.
    """

    def __init__(self, model: str, constraint: AccessConstraint, *, instead_of: AccessConstraint | None = None) -> None:
        self.model = model
        self.constraint = constraint
        self.instead_of = instead_of

    def allowed(self, alias: str, app_label: str, state: ProjectState) -> bool:
        """Ask the routers for the model, as the operation that made its table did."""
        return self.allow_migrate_model(alias, self._model(state))

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Give the access, in place of what was declared before."""
        self._put(schema_editor, self._model(state), self.constraint, self.instead_of)

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Take it away, and give again what was declared before."""
        self._put(schema_editor, self._model(state), self.instead_of, self.constraint)

    def describe(self) -> str:
        """Describe the operation."""
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
        # Those it has itself may be there already: a conversion to roles gives what all migrations declare.
        declared: set[str] = set() if access is None else {policy.name for policy in access.policies}
        left = [] if schema_editor.collect_sql else sorted(_policies(schema_editor, model) - declared)
        if left:
            raise ConfigurationError(
                f"{self.model} has policies of another declaration ({', '.join(left)}): name the one that holds so "
                f'far, ProtectModel("{self.model}", …, instead_of=…)'
            )
        if new is not None:
            schema_editor.add_constraint(model, new)

    def _model(self, state: ProjectState) -> type[Model]:
        return state.apps.get_model(self.model)


class ReleaseModel(ProtectModel):
    """Take away what a ``ProtectModel`` gave, of which ``constraint`` is the same; backwards it is given again.

    It leaves a table without row-level security, with what the default privileges give.
    """

    def __init__(self, model: str, constraint: AccessConstraint) -> None:
        super().__init__(model, constraint)

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Take the access away."""
        super().unapply(app_label, schema_editor, state)

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Give it again."""
        super().apply(app_label, schema_editor, state)

    def describe(self) -> str:
        """Describe the operation."""
        return f"Release {self.model} from {type(self.constraint).__name__}"


def _policies(schema_editor: BaseDatabaseSchemaEditor, model: type[Model]) -> set[str]:
    """Return the policies of declarations that a table has."""
    query = (
        "SELECT polname FROM pg_policy"
        " WHERE polrelid = to_regclass(quote_ident(%s)) AND starts_with(polname, 'salon_jobs_')"
    )
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(query, [model._meta.db_table])
        return {name for (name,) in cursor.fetchall()}
