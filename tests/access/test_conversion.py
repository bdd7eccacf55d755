"""Conversion of a live database from one database user to roles and back, by the commands, with rows and jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from psycopg import sql

from tests.databases import environment, rows
from tests.interpreter import manage, succeed
from tests.migrations.operations import succeed_together
from tests.settings import url_for
from tests.support import seen

Owned = Callable[[str], dict[str, str]]
ONE_USER = "tests.migrations.one_user_settings"
FILL = (
    "from tests.support import store_id_of; from salon_jobs import enqueue_job, tenant_context\n"
    "from project.salon.models import Customer, Store\n"
    "for n in (1, 2):\n"
    "  store = store_id_of(n); Store.objects.create(id=store, name='s')\n"
    "  with tenant_context(store): Customer.objects.create(store_id=store, name='c', email='')\n"
    "enqueue_job('ping', {})"
)
LOOK = (
    "from tests.support import store_id_of; from salon_jobs import enqueue_job, tenant_context\n"
    "from project.salon.models import Customer, Store\n"
    "with tenant_context(store_id_of(1)):\n"
    "  Customer.objects.create(store_id=store_id_of(1), name='d', email=''); print('seen', Customer.objects.count())\n"
    "print('outside', Customer.objects.count()); enqueue_job('ping', {})"
)
LEFT = """
WITH roles AS (SELECT oid FROM pg_roles WHERE rolname IN (
    'app', 'worker_runtime', 'jobs_operator', 'migrator', 'worker_fanout_owner', 'invitation_cleanup_owner')),
acls AS (
    SELECT 'relation' AS kind, relname AS name, relacl AS acl FROM pg_class
    UNION ALL SELECT 'column', attname, attacl FROM pg_attribute
    UNION ALL SELECT 'function', proname, proacl FROM pg_proc
    UNION ALL SELECT 'schema', nspname, nspacl FROM pg_namespace
    UNION ALL SELECT 'database', datname, datacl FROM pg_database WHERE datname = current_database()
)
SELECT kind, name::text FROM acls CROSS JOIN aclexplode(acl) AS a JOIN roles ON oid = grantee
UNION ALL SELECT 'owned', relname FROM pg_class WHERE relowner IN (SELECT oid FROM roles)
UNION ALL SELECT 'owned', stxname FROM pg_statistic_ext WHERE stxowner IN (SELECT oid FROM roles)
UNION ALL SELECT 'owned', datname FROM pg_database
    WHERE datdba IN (SELECT oid FROM roles) AND datname = current_database()
UNION ALL SELECT 'owned', proname FROM pg_proc WHERE proowner IN (SELECT oid FROM roles)
UNION ALL SELECT 'setting', unnest(setconfig) FROM pg_db_role_setting
    WHERE setrole IN (SELECT oid FROM roles)
      AND setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
UNION ALL SELECT 'default', defaclrole::regrole::text FROM pg_default_acl
UNION ALL SELECT 'policy', policyname FROM pg_policies WHERE roles <> '{public}'
"""


def run(database: str, statement: sql.Composed) -> None:
    with psycopg.connect(url_for(None, database), autocommit=True) as connection:
        connection.execute(statement)


def refused(*arguments: str, **variables: str) -> str:
    result = manage(*arguments, **variables)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.usefixtures("migrated")
def test_one_user_to_roles_and_back(fresh: str, owned: Owned) -> None:
    one_user, roles = owned(ONE_USER), environment(fresh)
    doctor, back = ("salon_jobs", "doctor", "--superuser", "--fail"), ("migrate", "salon", "0002", "-v", "0")
    # The last is what the project does by ROLES itself.
    succeed_together(("migrate", "-v", "0"), ("shell", "-c", FILL), doctor, back, **one_user)
    before = rows(fresh, "SELECT id, store_id FROM customer ORDER BY 1")
    statistics = "CREATE STATISTICS names ON store_id, name FROM customer; ALTER STATISTICS names OWNER TO {}"
    run(fresh, sql.SQL(statistics).format(sql.Identifier(fresh)))

    assert "ROLES.CONVERSION_MISSING: the job tables belong to" in refused("migrate", **roles)
    assert "ROLES.TAKEN: other databases use these roles, and" in refused("salon_jobs", "convert", "--yes", **roles)
    converted = manage("salon_jobs", "convert", "--yes", "--share-roles", **roles, APP_PASSWORD="another")
    assert converted.returncode == 0, converted.stderr
    assert converted.stderr == (
        "kept the password of app, which is not the one in ROLE_PASSWORDS; "
        "python manage.py bootstrap_roles --change-passwords changes it\n"
    )
    assert rows(fresh, "SELECT id, store_id FROM customer ORDER BY 1") == before
    assert rows(fresh, "SELECT stxowner::regrole::text FROM pg_statistic_ext WHERE stxname = 'names'") == [
        ("migrator",)
    ]
    succeed("migrate", "-v", "0", **roles)
    output = succeed_together(doctor, ("shell", "-c", LOOK), **roles)
    assert "no drift\n" in output
    assert "seen 2\noutside 0" in output
    output = succeed("runworker", "--burst", "--health-addr", "127.0.0.1:0", **roles)
    assert output.count("job_succeeded") == 2
    assert "drift" not in output
    assert "nothing to convert" in refused("salon_jobs", "convert", "--yes", **roles)

    succeed(*back, **roles)
    assert "ROLES.CONVERSION_MISSING: the job tables belong to 'migrator'" in refused("migrate", **one_user)
    run(fresh, sql.SQL("ALTER DATABASE {} OWNER TO migrator").format(sql.Identifier(fresh)))
    done = json.loads(succeed("salon_jobs", "convert", "--yes", "--json", **one_user))
    assert (done["database"], done["to_roles"], done["undeclared_policies"]) == (fresh, False, [])
    assert "migrator" in done["former"]
    assert len(rows(fresh, "SELECT FROM customer")) == 3
    output = succeed_together(("migrate", "-v", "0"), doctor, ("shell", "-c", LOOK), **one_user)
    assert "no drift\n" in output
    assert "seen 3\noutside 0" in output
    assert rows(fresh, LEFT) == []
    assert "job_succeeded" in succeed("runworker", "--burst", "--health-addr", "127.0.0.1:0", **one_user)


def convert(*arguments: str) -> str:
    err = StringIO()
    call_command("salon_jobs", "convert", *arguments, stdout=StringIO(), stderr=err)
    return err.getvalue()


def test_convert_asks_before(database: None, settings: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.stdin", StringIO())
    with pytest.raises(CommandError, match="nothing to convert: the database is what SALON_JOBS"):
        convert()
    settings.SALON_JOBS = {**settings.SALON_JOBS, "ROLES": None}
    with pytest.raises(CommandError, match=r"from app, .*, worker_fanout_owner to the one user worker_runtime\?"):
        convert()
    monkeypatch.setitem(settings.DATABASES["default"], "USER", "nobody_at_all")
    with pytest.raises(CommandError, match=r"SETTINGS\.INVALID: DATABASES\['default'\]\['USER'\] .* 'nobody_at_all'"):
        convert()
    assert seen("SELECT relowner::regrole::text FROM pg_class WHERE relname = 'salon_jobs_job'") == [("migrator",)]


def test_missing_password_changes_nothing(database: None, settings: Any, superuser: Any) -> None:
    superuser.execute("ALTER TABLE salon_jobs_job OWNER TO postgres")
    settings.SALON_JOBS = {**settings.SALON_JOBS, "ROLE_PASSWORDS": {}}
    with pytest.raises(CommandError, match="the password of a role is missing; set MIGRATOR_PASSWORD"):
        convert("--yes")
    assert seen("SELECT relowner::regrole::text FROM pg_class WHERE relname = 'salon_jobs_job'") == [("postgres",)]
