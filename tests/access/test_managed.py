"""Bootstrap, migration, doctor and conversion by an administrator who is no superuser, on a server of its own."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from project.local.postgres import EmbeddedPostgres
from salon_jobs.access.bootstrap import bootstrap
from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from tests.databases import URLS, programs
from tests.interpreter import ROOT, manage, run_command, succeed
from tests.migrations.operations import succeed_together
from tests.settings import PASSWORD, url_for
from tests.support import new_store_id
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.process
OWNERS = "invitation_cleanup_owner, worker_fanout_owner"
DOCTOR = ("salon_jobs", "doctor", "--superuser", "--fail")
LOGINS = {"app", "jobs_operator", "migrator", "worker_runtime"}


@dataclass(frozen=True, slots=True)
class Managed:
    """A server on which ``admin`` has CREATEROLE and CREATEDB, and owns the database ``salon``."""

    superuser: str
    programs: Path

    def url(self, role: str, database: str = "salon") -> str:
        return url_for(role, database, server=self.superuser)

    def environment(self, database: str = "salon") -> dict[str, str]:
        urls = {variable: self.url(role, database) for variable, role in URLS.items()}
        return {**urls, "DATABASE_URL_BOOTSTRAP": self.url("admin", database)}

    def run(self, statement: str, role: str | None = None, database: str = "salon") -> list[tuple[Any, ...]]:
        """Run a statement as a role that logs in, or else as the superuser."""
        url = self.url(role, database) if role else urlunsplit(urlsplit(self.superuser)._replace(path=f"/{database}"))
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def server() -> Iterator[Managed]:
    with EmbeddedPostgres(fsync=False, programs=programs()) as running:
        managed = Managed(running.url, programs())
        managed.run(f"CREATE ROLE admin LOGIN CREATEROLE CREATEDB PASSWORD '{PASSWORD}'", database="postgres")
        managed.run("CREATE DATABASE salon", "admin", "postgres")
        yield managed


@pytest.fixture(scope="module")
def managed(server: Managed) -> Managed:
    """Bootstrap as the administrator, and migrate as the migrator."""
    output = succeed("bootstrap_roles", **server.environment())
    assert output.splitlines()[1].startswith("made: migrator, worker_runtime, worker_fanout_owner, app, ")
    succeed("migrate", "-v", "0", **server.environment())
    return server


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("CREATEDB", "logs in as other, which can create no roles"),
        ("CREATEROLE", "logs in as other: database postgres belongs to postgres: connect as its owner, or run: ALTER"),
    ],
)
def test_role_that_cannot_bootstrap(server: Managed, option: str, words: str) -> None:
    server.run(f"CREATE ROLE other LOGIN {option} PASSWORD '{PASSWORD}'")
    # Of names that no role has, whichever test runs first.
    new = Roles("new_migrator", "new_web", "new_worker", "new_operator", "new_owner")
    with pytest.raises(ConfigurationError, match=words):
        bootstrap(server.url("other", "postgres"), roles=new, passwords=conf.role_passwords)
    server.run("DROP ROLE other")


def test_no_drift_and_nobody_bypasses_policies(managed: Managed) -> None:
    done = manage(*DOCTOR, **managed.environment())
    assert (done.returncode, done.stdout) == (0, "salon, as admin: no drift\n"), done.stdout
    assert f"without BYPASSRLS, so that policies show them all rows: {OWNERS}\n" in done.stderr
    assert "not checked: orphans across foreign keys: admin does not see all rows" in done.stderr
    assert managed.run("SELECT rolname FROM pg_roles WHERE rolbypassrls") == [("postgres",)]
    for role in (*LOGINS, *OWNERS.split(", ")):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied to set role"):
            managed.run(f"SET ROLE {role}", "admin")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        managed.run("SELECT FROM public.customer", "admin")
    roles = "SELECT r::text FROM pg_roles r UNION ALL SELECT m::text FROM pg_auth_members m ORDER BY 1"
    before = managed.run(roles)
    assert bootstrap(managed.url("admin"), roles=conf.roles, passwords=conf.role_passwords).changed == {}
    assert managed.run(roles) == before


def test_only_functions_of_owners_reach_all_stores(managed: Managed) -> None:
    stores = sorted(new_store_id() for _ in range(3))
    for store in stores:
        managed.run(f"INSERT INTO store (id, name) VALUES ('{store}', 'Salon')")
        for day in ("yesterday", "tomorrow"):
            values = f"gen_random_uuid(), '{store}', 'a@chain.example', gen_random_uuid(), '{day}'"
            managed.run(f"INSERT INTO operator_invitation (id, store_id, email, token, expires_at) VALUES ({values})")
    own = f"SELECT set_config('app.current_store_id', '{stores[0]}', false)"
    for role in ("app", "worker_runtime", "migrator"):
        with psycopg.connect(managed.url(role), autocommit=True) as connection:
            if role != "migrator":  # for whom a store is demanded
                assert connection.execute("SELECT id FROM store").fetchall() == [], role
            connection.execute(own.encode())
            assert connection.execute("SELECT id FROM store").fetchall() == [(stores[0],)], role
            assert connection.execute("SELECT count(*) FROM operator_invitation").fetchall() == [(2,)], role
            assert connection.execute("UPDATE store SET name = 'x'").rowcount == 1, role
    listing = "SELECT store_id FROM list_store_ids_for_fan_out()"
    assert managed.run(listing, "worker_runtime") == [(store,) for store in stores]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        managed.run(listing, "app")
    assert managed.run("SELECT delete_expired_operator_invitations(now())", "worker_runtime") == [(3,)]
    for owner, refused in (
        ("worker_fanout_owner", "SELECT name FROM store"),
        ("worker_fanout_owner", "DELETE FROM store"),
        ("invitation_cleanup_owner", "SELECT FROM store"),
        ("invitation_cleanup_owner", "UPDATE operator_invitation SET email = ''"),
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            managed.run(f"SET ROLE {owner}; {refused}")
    managed.run("DELETE FROM operator_invitation; DELETE FROM store")


def test_administrator_fixes_drifts(managed: Managed) -> None:
    managed.run(
        "DROP POLICY salon_jobs_fan_out ON store; DROP POLICY salon_jobs_owners ON customer;"
        "ALTER TABLE customer NO FORCE ROW LEVEL SECURITY; GRANT SELECT ON salon_jobs_process TO app;"
        "ALTER DEFAULT PRIVILEGES FOR ROLE migrator GRANT SELECT ON TABLES TO PUBLIC;"
        "GRANT CREATE ON SCHEMA public TO app; GRANT TEMPORARY ON DATABASE salon TO PUBLIC;"
        "ALTER ROLE app CREATEDB; DROP FUNCTION list_store_ids_for_fan_out();"
        "CREATE FUNCTION leak() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT count(*) FROM public.customer';"
        "ALTER FUNCTION leak OWNER TO worker_fanout_owner"
    )
    managed.run("GRANT worker_fanout_owner TO admin", "admin")
    done = manage("salon_jobs", "doctor", "--superuser", "--fix", "--yes", "--fail", **managed.environment())
    assert (done.returncode, "fixed: 11\n" in done.stderr) == (0, True), done.stdout + done.stderr
    assert "policy salon_jobs_fan_out of table" in done.stdout
    assert "role admin\n  expected  not a member of worker_fanout_owner" in done.stdout
    assert "function public.leak(), role PUBLIC" in done.stdout, "its owner sees all rows, without BYPASSRLS too"
    managed.run("DROP FUNCTION leak()")
    succeed(*DOCTOR, **managed.environment())


def test_passwords_change_when_asked_for(managed: Managed) -> None:
    url, given = managed.url("admin"), conf.role_passwords
    others = dict.fromkeys(given, "another")
    done = bootstrap(url, roles=conf.roles, passwords=others)
    assert (done.changed, done.other_passwords) == ({}, ()), "whether they differ is unknown"
    assert managed.run("SELECT 1", "app") == [(1,)]
    done = bootstrap(url, roles=conf.roles, passwords=others, change_passwords=lambda *_: None)
    assert done.changed == dict.fromkeys(LOGINS, ("password",))
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        managed.run("SELECT 1", "app")
    bootstrap(url, roles=conf.roles, passwords=given, change_passwords=lambda *_: None)
    assert managed.run("SELECT 1", "app") == [(1,)]


def test_psql_bootstraps_likewise(managed: Managed) -> None:
    managed.run("CREATE DATABASE second", "admin", "postgres")
    passwords = dict.fromkeys(("MIGRATOR_PASSWORD", "APP_PASSWORD", "WORKER_RUNTIME_PASSWORD"), "another")
    options = ("-X", "-q", "-v", "share_roles=on", "-f", ROOT / "bootstrap_sql" / "roles.sql")
    done = subprocess.run(
        [managed.programs / "psql", *options, "-d", managed.url("admin", "second")],
        env={**os.environ, **passwords, "JOBS_OPERATOR_PASSWORD": "another"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("kept the password of role") == len(LOGINS)
    rights = (
        "SELECT unnest(nspacl)::text FROM pg_namespace WHERE nspname = 'public'"
        " UNION ALL SELECT concat(defaclrole, defaclobjtype, defaclacl) FROM pg_default_acl ORDER BY 1"
    )
    assert managed.run(rights, database="second") == managed.run(rights)
    managed.run("DROP DATABASE second", database="postgres")


def test_owner_dumps_rows_without_forced_policies(managed: Managed) -> None:
    page = (ROOT / "docs" / "how-to" / "managed-postgresql.md").read_text(encoding="utf-8")
    [suspend] = re.findall(r"^```sql\n(.+?)^```", page, re.DOTALL | re.MULTILINE)
    managed.run(f"INSERT INTO store (id, name) VALUES ('{new_store_id()}', 'Everybody''s')")

    def dump(*options: str) -> subprocess.CompletedProcess[str]:
        return run_command(str(managed.programs / "pg_dump"), *options, managed.url("migrator"))

    assert "would be affected by row-level security policy" in dump().stderr
    assert "no store is set" in dump("--enable-row-security").stderr
    managed.run(suspend, "migrator")
    done = dump()
    assert (done.returncode, "Everybody's" in done.stdout) == (0, True), done.stderr
    assert managed.run("SELECT FROM store", "app") == []
    managed.run("DELETE FROM store")
    fixed(managed)
    assert "would be affected" in dump().stderr


@pytest.mark.slow
def test_one_user_to_roles_and_back(managed: Managed) -> None:
    managed.run(f"CREATE ROLE shop LOGIN PASSWORD '{PASSWORD}'", "admin", "postgres")
    managed.run("CREATE DATABASE shop", "admin", "postgres")
    managed.run("ALTER SCHEMA public OWNER TO shop", database="shop")
    roles = managed.environment("shop")
    one_user = {
        "DJANGO_SETTINGS_MODULE": "tests.migrations.one_user_settings",
        "ONE_USER_URL": managed.url("shop", "shop"),
        "DATABASE_URL_BOOTSTRAP": managed.url("admin", "shop"),
    }
    succeed_together(("migrate", "-v", "0"), DOCTOR, ("migrate", "salon", "0002", "-v", "0"), **one_user)
    succeed("salon_jobs", "convert", "--yes", "--share-roles", **roles)
    succeed("migrate", "-v", "0", **roles)
    assert "no drift\n" in succeed(*DOCTOR, **roles)
    succeed("migrate", "salon", "0002", "-v", "0", **roles)
    succeed("salon_jobs", "convert", "--yes", **one_user)
    assert "no drift\n" in succeed_together(("migrate", "-v", "0"), DOCTOR, **one_user)
    assert managed.run("SELECT FROM pg_policies WHERE roles <> '{public}'", database="shop") == []
    managed.run("DROP DATABASE shop WITH (FORCE)", database="postgres")


def test_administrator_that_bypasses_policies(managed: Managed) -> None:
    """Once it no longer does, owners need their policies again."""
    managed.run("ALTER ROLE admin BYPASSRLS")
    output = succeed("bootstrap_roles", **managed.environment())
    if managed.run("SHOW server_version_num") < [("160000",)]:
        assert "kept: migrator, " in output, "before 16, only a superuser can give it"
    else:
        assert "changed: worker_fanout_owner (BYPASSRLS), invitation_cleanup_owner (BYPASSRLS)\n" in output
        assert "policy salon_jobs_fan_out of table" in fixed(managed)
        done = manage(*DOCTOR, **managed.environment())
        assert (done.returncode, "BYPASSRLS" in done.stderr) == (0, False), done.stdout
        assert "orphans across foreign keys: admin does not see all rows" in done.stderr, "for want of rights"
        assert managed.run("SELECT FROM list_store_ids_for_fan_out()", "worker_runtime") == []
    for role in ("admin", *OWNERS.split(", ")):
        managed.run(f"ALTER ROLE {role} NOBYPASSRLS")
    fixed(managed)


def fixed(managed: Managed) -> str:
    """Have the administrator fix all drifts; return what was said of them."""
    return succeed("salon_jobs", "doctor", "--superuser", "--fix", "--yes", "--fail", **managed.environment())
