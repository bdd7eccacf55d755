"""Bootstrap of several databases of one server, as several projects do, by the command and by psql."""

from __future__ import annotations

import os
import secrets
import subprocess
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.core.management import CommandError, call_command
from psycopg import sql

from salon_jobs.access import bootstrap as bootstrap_module
from salon_jobs.access.bootstrap import bootstrap, build_scripts, is_password, render_psql
from salon_jobs.conf import Roles
from tests.databases import programs
from tests.settings import url_for
from tests.waiting import LIMIT_S

LOGINS = ("migrator", "worker", "web", "operator")


@dataclass(frozen=True, slots=True)
class Server:
    """Role names that nobody else on the test server uses, and the databases of the projects that share them."""

    settings: Any
    prefix: str
    roles: Roles

    @property
    def names(self) -> list[str]:
        return [script.name for script in build_scripts(self.roles)]

    def database(self, project: str) -> str:
        return f"{self.prefix}_{project}"

    def bootstrap(self, project: str | None, *arguments: str, password: str, role: str = "") -> tuple[str, str]:
        """Run the command as a project with its own passwords; returns standard output and standard error."""
        out, err = StringIO(), StringIO()
        web = {"web": role} if role else {}
        self.settings.SALON_JOBS = {
            **self.settings.SALON_JOBS,
            "ROLES": {name: getattr(self.roles, name) for name in (*LOGINS, "fan_out_owner")}
            | web
            | {"extra_owners": list(self.roles.extra_owners)},
            "ROLE_PASSWORDS": dict.fromkeys(LOGINS, password),
        }
        named = () if project is None else ("--database", self.database(project))
        call_command("bootstrap_roles", *named, *arguments, stdout=out, stderr=err)
        return out.getvalue(), err.getvalue()

    def logs_in(self, project: str, role: str, password: str) -> bool:
        parts = urlsplit(url_for(None, self.database(project)))
        netloc = f"{role}:{password}@{parts.netloc.rpartition('@')[2]}"
        try:
            psycopg.connect(urlunsplit(parts._replace(netloc=netloc))).close()
        except psycopg.OperationalError as error:
            assert "password authentication failed" in str(error)  # noqa: PT017
            return False
        return True

    def all_log_in(self, project: str, password: str) -> bool:
        return all(self.logs_in(project, getattr(self.roles, name), password) for name in LOGINS)

    def execute(self, statement: str, project: str | None = None) -> list[tuple[Any, ...]]:
        url = url_for(None, "postgres" if project is None else self.database(project))
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def state(self) -> list[tuple[Any, ...]]:
        """Return everything of the roles that a sibling could miss."""
        return self.execute(
            "SELECT r.*, ARRAY(SELECT m::text FROM pg_auth_members m WHERE m.member = r.oid),"
            " ARRAY(SELECT s::text FROM pg_db_role_setting s WHERE s.setrole = r.oid AND s.setdatabase = 0)"
            f" FROM pg_authid r WHERE rolname LIKE '{self.prefix}%' ORDER BY rolname"
        )

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """Assert that the roles are the same after the block."""
        before = self.state()
        yield
        assert self.state() == before


def named(settings: Any, prefix: str) -> Server:
    names: dict[str, Any] = {name: f"{prefix}_{name}" for name in (*LOGINS, "fan_out_owner")}
    return Server(settings, prefix, Roles(**names, extra_owners=(f"{prefix}_cleanup",)))


@pytest.fixture
def server(settings: Any) -> Iterator[Server]:
    prefix = f"boot_{secrets.token_hex(4)}"
    yield named(settings, prefix)
    with psycopg.connect(url_for(None, "postgres"), autocommit=True) as connection:
        for query, drop in (
            ("SELECT datname FROM pg_database WHERE datname LIKE %s", "DROP DATABASE {} WITH (FORCE)"),
            ("SELECT rolname FROM pg_roles WHERE rolname LIKE %s", "DROP ROLE {}"),
        ):
            for (name,) in connection.execute(query.encode(), [f"{prefix}%"]).fetchall():
                connection.execute(drop.format(sql.Identifier(name).as_string()).encode())


def test_roles_of_another_project_are_refused(server: Server) -> None:
    server.bootstrap("first", password="one")
    with server.unchanged():
        with pytest.raises(CommandError) as refused:
            server.bootstrap("second", password="two")
        assert str(refused.value) == (
            f"ROLES.TAKEN: other databases use these roles, and {server.database('second')} does not: "
            f"{', '.join(server.names)} (in {server.database('first')}). "
            "Choose other names in SALON_JOBS['ROLES'], or share the roles: --share-roles."
        )
        with pytest.raises(CommandError, match=r"and postgres does not: .* name it: --database NAME\. Choose"):
            server.bootstrap(None, password="two")
    assert server.all_log_in("first", "one")
    made = server.execute(f"SELECT FROM pg_database WHERE datname = '{server.database('second')}'")
    assert made == [], "nothing is made before the refusal"


def test_database_of_another_project_is_refused(server: Server, tmp_path: Path) -> None:
    server.bootstrap("first", password="one")
    others = replace(server, roles=named(server.settings, f"{server.prefix}_x").roles)
    text = f"database {server.database('first')} belongs to {server.roles.migrator}, which is none of the roles"
    with server.unchanged():
        with pytest.raises(CommandError, match=f"ROLES.CONVERSION_MISSING: {text} in SALON_JOBS.*--database NAME"):
            others.bootstrap("first", password="two")
        done = run_psql(others, tmp_path, "first", password="two")
        assert (done.returncode, text in done.stderr) == (3, True), done.stderr


def test_database_of_url_is_named(server: Server) -> None:
    name = server.database("first")
    server.execute(f'CREATE DATABASE "{name}"')
    server.settings.SALON_JOBS = {**server.settings.SALON_JOBS, "BOOTSTRAP_URL": url_for(None, name)}
    out, _ = server.bootstrap(None, password="one")
    assert out.startswith(f"database {name}, the one in BOOTSTRAP_URL; --database NAME prepares another\n")


def test_shared_roles_keep_passwords_and_serve_both(server: Server) -> None:
    out, err = server.bootstrap("first", password="one")
    assert out == f"created database {server.database('first')}\nmade: {', '.join(server.names)}\n"
    with server.unchanged():
        out, err = server.bootstrap("second", "--share-roles", password="two")
        kept = [f"created database {server.database('second')}", f"kept: {', '.join(server.names)}"]
        assert out.splitlines()[:2] == kept
        assert f"{server.roles.web} (with {server.database('first')})" in out
        for name in LOGINS:
            role = getattr(server.roles, name)
            assert f"kept the password of {role}, which is not the one in ROLE_PASSWORDS; " in err
        assert server.all_log_in("first", "one")
        assert server.all_log_in("second", "one")
        # Both go on without an option, and a second one with other passwords changes nothing.
        for project, password in (("first", "one"), ("second", "two"), ("second", "one")):
            server.bootstrap(project, password=password)


def test_two_first_databases_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each makes its database before the other has the roles of its own; both set the passwords."""
    together = threading.Barrier(2, timeout=LIMIT_S)
    ensure = bootstrap_module._ensure_database

    def ensure_together(*arguments: Any, **options: Any) -> bool:
        created = ensure(*arguments, **options)
        together.wait()
        return created

    monkeypatch.setattr(bootstrap_module, "_ensure_database", ensure_together)
    passwords: dict[str, str] = dict.fromkeys(LOGINS, "one")
    url = url_for(None, "postgres")
    start = partial(bootstrap, url, roles=server.roles, passwords=passwords, share_roles=True)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(start, database=server.database(project)) for project in ("first", "second")]
        assert [each.result(LIMIT_S).created_database for each in both] == [True, True]
    assert server.all_log_in("first", "one")


def test_second_run_changes_nothing(server: Server) -> None:
    server.bootstrap("first", password="one")
    kept = f"kept: {', '.join(server.names)}\n"
    with server.unchanged():
        found = server.bootstrap("first", password="one")
    assert found == (f"database {server.database('first')}\n{kept}", "")
    # Nor does it after the database was dropped, as before a restore: nobody else uses the roles.
    server.execute(f'DROP DATABASE "{server.database("first")}"')
    out, _ = server.bootstrap("first", password="one")
    assert out == f"created database {server.database('first')}\n{kept}"
    assert server.all_log_in("first", "one")


def test_other_names_need_no_option(server: Server) -> None:
    server.bootstrap("first", password="one")
    with pytest.raises(CommandError, match=f"does not: {server.roles.migrator},"):
        server.bootstrap("second", password="two", role=f"{server.prefix}_other")
    others = named(server.settings, f"{server.prefix}_x")
    out, _ = others.bootstrap("second", password="two")
    assert out == f"created database {others.database('second')}\nmade: {', '.join(others.names)}\n"
    assert server.all_log_in("first", "one")
    assert others.all_log_in("second", "two")


def test_altered_role_is_changed_back(server: Server) -> None:
    server.bootstrap("first", password="one")
    web, operator = server.roles.web, server.roles.operator
    server.execute(f"ALTER ROLE {web} BYPASSRLS; GRANT {server.roles.migrator} TO {web}")
    server.execute(f"ALTER ROLE {operator} PASSWORD NULL")
    out, err = server.bootstrap("first", password="one")
    assert out.splitlines()[-1] == f"changed: {web} (NOBYPASSRLS, memberships), {operator} (password)"
    assert err == ""
    assert server.all_log_in("first", "one")


def test_role_of_another_database_is_never_altered(server: Server) -> None:
    server.bootstrap("first", password="one")
    server.bootstrap("second", "--share-roles", password="one")
    web, migrator = server.roles.web, server.roles.migrator
    for alter, restore in (
        (f"ALTER ROLE {web} CREATEDB", f"ALTER ROLE {web} NOCREATEDB"),
        (f"GRANT {migrator} TO {web}", f"REVOKE {migrator} FROM {web}"),
    ):
        server.execute(alter)
        for arguments in ((), ("--share-roles",), ("--share-roles", "--change-passwords", "--yes")):
            taken = f"ROLES.TAKEN: role {web} is also used in {server.database('first')}"
            with server.unchanged(), pytest.raises(CommandError, match=taken):
                server.bootstrap("second", *arguments, password="two")
        server.execute(restore)


def test_role_used_through_another_is_in_use(server: Server) -> None:
    web, team = server.roles.web, f"{server.prefix}_team"
    server.execute(f"CREATE ROLE {web} LOGIN PASSWORD 'shop'; CREATE ROLE {team}; GRANT {team} TO {web}")
    server.execute(f'CREATE DATABASE "{server.database("shop")}"')
    server.execute(f"CREATE TABLE goods (id int); GRANT SELECT ON goods TO {team}", "shop")
    taken = rf"{server.database('first')} does not: {web} \(in {server.database('shop')}\)"
    with pytest.raises(CommandError, match=taken):
        server.bootstrap("first", password="one")
    assert server.logs_in("shop", web, "shop")


def test_passwords_change_when_asked_and_confirmed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.bootstrap("first", password="one")
    server.bootstrap("second", "--share-roles", password="one")
    logins = [getattr(server.roles, name) for name in LOGINS]

    def change(answer: str | None, *arguments: str, password: str) -> tuple[str, str]:
        terminal = StringIO(f"{answer}\n")
        terminal.isatty = lambda: answer is not None  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stdin", terminal)
        return server.bootstrap("second", "--change-passwords", *arguments, password=password)

    for answer, words in (("n", "nothing was changed"), (None, "No terminal to confirm on; pass --yes")):
        with pytest.raises(CommandError, match=words):
            change(answer, password="two")
    assert server.all_log_in("second", "one")
    for answer, arguments, password in (("y", (), "two"), (None, ("--yes",), "three"), (None, ("--no-input",), "four")):
        out, err = change(answer, *arguments, password=password)
        assert f"changed: {', '.join(f'{name} (password)' for name in logins)}\n" in out
        asked = (
            f"Change the passwords of {', '.join(logins)}? "
            f"Used in {server.database('first')}, too: {', '.join(logins)}. [y/N] "
        )
        assert err.startswith(asked) is (answer == "y")
        assert server.all_log_in("second", password)
    # The same passwords again are no change, and nobody is asked.
    assert "changed" not in change(None, password="four")[0]


def test_first_role_of_server_is_refused(server: Server) -> None:
    with pytest.raises(CommandError, match="role postgres is the server's own"):
        server.bootstrap("first", password="one", role="postgres")


@pytest.mark.parametrize("password", ["secret", "pässword ½"])
def test_password_matches_its_verifier(password: str) -> None:
    with psycopg.connect(url_for(None, "postgres")) as connection:
        verifier = connection.pgconn.encrypt_password(password.encode(), b"app", b"scram-sha-256").decode()
        md5 = connection.pgconn.encrypt_password(password.encode(), b"app", b"md5").decode()
    for each in (verifier, md5):
        assert is_password(password, each, "app")
        assert not is_password(f"{password}x", each, "app")


def run_psql(
    server: Server, folder: Path, project: str, *variables: str, password: str
) -> subprocess.CompletedProcess[str]:
    """Run the printed script by psql."""
    script = folder / "roles.sql"
    script.write_text(render_psql(build_scripts(server.roles)), encoding="utf-8")
    passwords = ("MIGRATOR_PASSWORD", "APP_PASSWORD", "WORKER_RUNTIME_PASSWORD", "JOBS_OPERATOR_PASSWORD")
    flags = [word for variable in variables for word in ("-v", variable)]
    return subprocess.run(
        [programs() / "psql", "-X", "-q", *flags, "-d", url_for(None, server.database(project)), "-f", script],
        env={**os.environ, **dict.fromkeys(passwords, password)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_psql_scripts_are_guarded_likewise(server: Server, tmp_path: Path) -> None:
    psql = partial(run_psql, server, tmp_path)
    for project in ("first", "second"):
        server.execute(f'CREATE DATABASE "{server.database(project)}"')
    done = psql("first", password="one")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with server.unchanged():
        done = psql("second", password="two")
        taken = f"role {server.roles.migrator} is already used in another database: {server.database('first')}"
        assert (done.returncode, taken in done.stderr) == (3, True)
        assert "share it: -v share_roles=on" in done.stderr

        done = psql("second", "share_roles=on", password="")
        unset = "MIGRATOR_PASSWORD is not set: give the password in the environment or by -v migrator_pass"
        assert (done.returncode, unset in done.stderr) == (3, True)

        done = psql("second", "share_roles=on", password="two")
        assert done.returncode == 0, done.stderr
        assert f"kept the password of role {server.roles.web}; -v change_passwords=on changes it" in done.stdout
        for project in ("first", "second"):
            assert server.all_log_in(project, "one")
            assert psql(project, password="two").returncode == 0
    assert psql("second", "change_passwords=on", password="two").returncode == 0
    assert server.all_log_in("second", "two")
    # The command finds what psql made.
    assert "changed" not in server.bootstrap("second", password="two")[0]
