"""What a process finds wrong before it starts."""

from __future__ import annotations

import pytest

from salon_jobs.core.errors import SchemaMissing
from salon_jobs.process.preflight import check_schema
from tests.support import change, seen


@pytest.mark.parametrize("pending", [1, 4])
def test_pending_migrations_are_counted(database: None, pending: int) -> None:
    """The first three are named; the remedy follows."""
    newest = seen(
        "SELECT id, name FROM django_migrations WHERE app = 'salon_jobs' ORDER BY name DESC LIMIT %s", pending
    )
    named = ", ".join([*(f"salon_jobs.{name}" for _, name in newest[::-1][:3]), *("…" for _ in newest[3:])])
    said = "1 migration is pending" if pending == 1 else f"{pending} migrations are pending"
    ids = [number for number, _ in newest]
    change("UPDATE django_migrations SET app = 'former' WHERE id = ANY (%s)", ids)
    try:
        with pytest.raises(SchemaMissing) as raised:
            check_schema("default")
    finally:
        change("UPDATE django_migrations SET app = 'salon_jobs' WHERE id = ANY (%s)", ids)
    assert str(raised.value) == f"{said} ({named}); run: python manage.py migrate"
