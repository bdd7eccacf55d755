"""Migrates projects whose store model is not there from the beginning, with one database user."""

from __future__ import annotations

from collections.abc import Callable

from tests.conftest import manage
from tests.migrations.test_migrations import fresh, owned, rows

__all__ = ["fresh", "owned"]  # fixtures

SETTINGS = "tests.migrations.tenants_settings"
FUNCTION = "SELECT proname FROM pg_proc WHERE proname = 'list_store_ids_for_fan_out'"
Owned = Callable[[str], dict[str, str]]


def test_a_store_that_a_later_migration_creates_is_an_error_that_says_what_to_do(fresh: str, owned: Owned) -> None:
    project = {**owned(SETTINGS), "TENANTS_STORE_MODEL": "tenants.Store"}
    done = manage("migrate", **project)
    assert done.returncode != 0
    assert "'tenants.Store' does not exist yet at this point of the migrations" in done.stderr
    assert "run_before = [('salon_jobs', '0003_fan_out')]" in done.stderr
    done = manage("migrate", **project, TENANTS_MIGRATIONS="ordered.migrations")
    assert done.returncode == 0, done.stderr
    assert len(rows(fresh, FUNCTION)) == 1


def test_a_plain_queue_gets_stores_later(fresh: str, owned: Owned) -> None:
    project = owned(SETTINGS)
    for target in (("salon_jobs",), ("tenants", "0002")):
        done = manage("migrate", *target, **project)
        assert done.returncode == 0, done.stderr
    assert rows(fresh, FUNCTION) == []
    # The case of a model's name means nothing to Django, nor here.
    done = manage("migrate", **project, TENANTS_STORE_MODEL="tenants.store")
    assert done.returncode == 0, done.stderr
    insert = "from tests.migrations.tenants.models import Store; Store.objects.create()"
    assert manage("shell", "-c", insert, **project).returncode == 0
    assert rows(fresh, "SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE relname = 'tenants_store'") == [
        (True, False)
    ]
    look = (
        "from django.db import connection as c; cursor = c.cursor(); "
        "cursor.execute('SELECT count(*) FROM list_store_ids_for_fan_out()'); print('stores', *cursor.fetchone())"
    )
    done = manage("shell", "-c", look, **project, TENANTS_STORE_MODEL="tenants.store")
    assert "stores 1" in done.stdout, done.stderr
