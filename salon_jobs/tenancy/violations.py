"""Errors of row-level security: the row, or one to which it refers, is not the current store's."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import DatabaseError, connections, transaction
from django.db.models import Model
from psycopg.errors import ForeignKeyViolation, InsufficientPrivilege

from salon_jobs.conf.store_key import store_model
from salon_jobs.db.connections import alias_of
from salon_jobs.tenancy.names import store_words

if TYPE_CHECKING:
    from django.forms import BaseForm

# Also StoreIsolation's message for an instance.
OF_ANOTHER_STORE: Final = "This belongs to another %(store)s than the current one."
_IN_USE: Final = "Rows of other %(stores)s refer to this, so it cannot be deleted."
# The server's function that checks new rows against policies. A missing privilege has the same code, and texts are
# translated.
_CHECKS_NEW_ROWS: Final = "ExecWithCheckOptions"


def violation_of(error: BaseException) -> ValidationError | None:
    """Return the ValidationError for a database error of row-level security; None for any other.

    It concerns the model's field, with the text with which ``full_clean`` refuses such an instance: a row of another
    store, or a reference to a row that its store does not have. If other rows still refer to a shared row that is
    deleted, it concerns the whole row.
    """
    cause: Any = error.__cause__
    if isinstance(cause, InsufficientPrivilege) and cause.diag.source_function == _CHECKS_NEW_ROWS:
        for model, constraint in _constraints():
            if hasattr(constraint, "through") and _names(cause, model._meta.db_table):  # StoreIsolation, a layer above
                return _error_of(constraint, constraint.field, *constraint.through)
        return ValidationError(OF_ANOTHER_STORE % store_words())
    if isinstance(cause, ForeignKeyViolation):
        found = cause.diag.table_name, cause.diag.constraint_name
        for model, constraint in _constraints():
            if hasattr(constraint, "reference") and found == (table := model._meta.db_table, constraint.name):
                to_table: str = constraint.reference(model)[1]._meta.db_table
                # Deleting a row that others refer to has the same code; the text of that error names both tables.
                if _names(cause, to_table) == (table == to_table):
                    return _error_of(constraint, constraint.field)
        if _is_in_use(cause):
            return ValidationError(_IN_USE % store_words(), code="in_use")
    return None


def _is_in_use(cause: Any) -> bool:
    """Return whether rows of stores keep a row without a store, or a store itself, from being deleted."""
    isolated = {model._meta.db_table for model, constraint in _constraints() if hasattr(constraint, "through")}
    if (table := cause.diag.table_name) not in isolated:
        return False
    named = {name for model in apps.get_models() if _names(cause, name := model._meta.db_table)} - {table}
    store = store_model()
    return bool(named) and not named & (isolated - {store and store._meta.db_table})


def _constraints() -> Iterator[tuple[type[Model], Any]]:
    return ((model, constraint) for model in apps.get_models() for constraint in model._meta.constraints)


def _names(cause: Any, table: str) -> int:
    """Return how often the text of an error names a table."""
    return len(re.findall(rf"(?<!\w){re.escape(table)}(?!\w)", cause.diag.message_primary))


def _error_of(constraint: Any, *fields: str) -> ValidationError:
    """Return the constraint's error: of its field, or of the whole row if it may concern several."""
    error = ValidationError(constraint.get_violation_error_message(), code=constraint.violation_error_code)
    named = [field for field in fields if field]
    return ValidationError({named[0]: error}) if len(named) == 1 else error


@contextmanager
def form_errors(form: BaseForm, *, using: str | None = None) -> Generator[None]:
    """Turn refusals of row-level security inside into errors of the form, and roll back to the beginning.

    References are checked at the end, instead of at COMMIT. An error of a field that the form does not have becomes one
    of the whole form. Afterwards ``form.is_valid()`` tells whether anything was refused.
    """
    alias = alias_of(using)
    try:
        with transaction.atomic(using=alias):
            yield
            connections[alias].check_constraints()
    except DatabaseError as error:
        if (violation := violation_of(error)) is None:
            raise
        for field, errors in getattr(violation, "error_dict", {"": violation}).items():
            form.add_error(field if field in form.fields else None, errors)


def denial_of(error: BaseException) -> PermissionDenied | None:
    """Return the error as PermissionDenied, which Django answers with 403."""
    violation = violation_of(error)
    return None if violation is None else PermissionDenied(" ".join(violation.messages))


@contextmanager
def denying() -> Generator[None]:
    """Raise PermissionDenied for refusals of row-level security inside."""
    try:
        yield
    except DatabaseError as error:
        if (denied := denial_of(error)) is not None:
            raise denied from error
        raise
