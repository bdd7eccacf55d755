"""Migrates projects whose store model is not there from the beginning, with one database user."""

from __future__ import annotations

from collections.abc import Callable

from tests.databases import rows
from tests.interpreter import manage, succeed
from tests.migrations.operations import succeed_together

SETTINGS = "tests.migrations.tenants_settings"
FUNCTION = "SELECT proname FROM pg_proc WHERE proname = 'list_store_ids_for_fan_out'"
Owned = Callable[[str], dict[str, str]]


def test_late_store_model_is_explained(fresh: str, owned: Owned) -> None:
    project = {**owned(SETTINGS), "TENANTS_STORE_MODEL": "tenants.Store"}
    done = manage("migrate", **project)
    assert done.returncode != 0
    assert "'tenants.Store' does not exist yet at this point of the migrations" in done.stderr
    assert "run_before = [('salon_jobs', '0003_fan_out')]" in done.stderr
    succeed("migrate", **project, TENANTS_FIRST="on")
    assert len(rows(fresh, FUNCTION)) == 1


def test_plain_queue_gets_stores_later(fresh: str, owned: Owned) -> None:
    project = owned(SETTINGS)
    succeed_together(("migrate", "salon_jobs"), ("migrate", "tenants", "0002"), **project)
    assert rows(fresh, FUNCTION) == []
    insert = "from tests.migrations.tenants.models import Store; Store.objects.create()"
    look = (
        "from django.db import connection as c; cursor = c.cursor(); "
        "cursor.execute('SELECT count(*) FROM list_store_ids_for_fan_out()'); print('stores', *cursor.fetchone())"
    )
    # The case of a model's name means nothing to Django, nor here.
    commands = (("migrate",), ("shell", "-c", insert), ("shell", "-c", look))
    assert "stores 1" in succeed_together(*commands, **project, TENANTS_STORE_MODEL="tenants.store")
    assert rows(fresh, "SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE relname = 'tenants_store'") == [
        (True, False)
    ]


def test_plain_queue_gets_numbered_stores(fresh: str, owned: Owned) -> None:
    project = {**owned(SETTINGS), "TENANTS_KEY": "bigint"}
    enqueue = ("shell", "-c", "from salon_jobs import enqueue_job; enqueue_job('ping', {})")
    succeed_together(("migrate", "salon_jobs"), ("migrate", "tenants", "0002"), enqueue, **project)
    numbers = {**project, "TENANTS_STORE_MODEL": "tenants.Store"}
    succeed("migrate", **numbers)
    checked, examined = manage("check", "--database", "default", **numbers), manage("salon_jobs", "doctor", **numbers)
    for said in (checked.stderr, examined.stdout):
        assert "store keys: store_id of salon_jobs_blocked_aggregate, salon_jobs_flow" in said
        assert "bigint, as the primary key of tenants.Store is" in said
    assert "stop the workers and run salon_jobs doctor --fix" in examined.stdout
    fix = ("salon_jobs", "doctor", "--fix", "--yes", "--database", "default")
    of_store = ("shell", "-c", "from salon_jobs.models import Job; Job.objects.create(task='ping', store_id=7)")
    succeed_together(fix, ("salon_jobs", "doctor", "--fail"), enqueue, of_store, **numbers)
    added = "SELECT store_id FROM salon_jobs_job ORDER BY id"
    assert rows(fresh, added) == [(None,), (None,), (7,)]
    signs_up = "from salon_jobs.tenancy import create_store; print('keys', *(create_store().pk for _ in range(2)))"
    assert "keys 1 2" in succeed("shell", "-c", signs_up, **numbers)
    refused = manage(*fix, **project)
    assert refused.returncode == 1
    assert 'invalid input syntax for type uuid: "7"' in refused.stderr
    assert rows(fresh, added) == [(None,), (None,), (7,)], "nothing was changed"
