"""Breaks the real database by hand: the doctor names each drift, its statements fix it, and nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import psycopg
import pytest

from salon_jobs.access.doctor import declaration
from salon_jobs.access.doctor.catalogue import Drift, as_superuser
from salon_jobs.access.doctor.examination import examine
from salon_jobs.access.doctor.examination import fix as fix_all
from salon_jobs.access.doctor.expressions import normal_form
from salon_jobs.access.operations.access import declarations
from salon_jobs.access.policies import user_condition
from tests.settings import TEST_DATABASE

Superuser = psycopg.Connection[Any]
JOB = 'table "public"."salon_jobs_job"'
Case: TypeAlias = tuple[str, str, str, str]


def cases() -> Iterator[Case]:
    text = Path(__file__).with_name("drifts.txt").read_text(encoding="utf-8")
    for line in text.replace("{database}", TEST_DATABASE).splitlines():
        if line and not line.startswith("#"):
            statement, kind, where, part = line.split(" | ")
            yield statement, kind, where, part


def more_cases() -> Iterator[Case]:
    """Generate each predefined role with each member."""
    for role in (
        "read_server_files",
        "write_server_files",
        "execute_server_program",
        "write_all_data",
        "signal_backend",
    ):
        for member in ("app", "worker_runtime", "jobs_operator", "migrator"):
            yield f"GRANT pg_{role} TO {member}", "membership", f"role {member}", f"a member of pg_{role}"
    for role in ("worker_runtime", "jobs_operator"):
        yield f"CREATE SCHEMA other; GRANT CREATE ON SCHEMA other TO {role}", "grant", f"other, role {role}", "CREATE"


@pytest.fixture
def superuser(database: None) -> Iterator[Superuser]:
    """Connect as the superuser; whatever the test breaks is rolled back."""
    with as_superuser(using="default") as connection, connection.transaction(force_rollback=True):
        yield connection


def find_drifts(superuser: Superuser) -> list[Drift]:
    return list(examine(superuser, using="default").drifts)


def fix(superuser: Superuser, *drifts: Drift) -> None:
    """Run the statements one by one, as a person would in psql; nothing is left then."""
    for drift in drifts:
        assert drift.fix, drift
        for statement in drift.fix:
            superuser.execute(statement.encode())
    assert find_drifts(superuser) == []


@pytest.mark.parametrize(
    "case",
    [*cases(), *(pytest.param(case, marks=pytest.mark.slow) for case in more_cases())],
    ids=lambda case: case[0].split(" USING")[0][:70],
)
def test_a_drift_is_named_and_its_statements_fix_it(superuser: Superuser, case: Case) -> None:
    statement, kind, where, part = case
    if "WITH INHERIT" in statement and superuser.info.server_version < 160000:
        with pytest.raises(psycopg.errors.SyntaxError):  # this drift cannot be made: the option came with 16
            superuser.execute(statement.encode())
        return
    superuser.execute(statement.encode())
    drifts = find_drifts(superuser)
    assert [each for each in drifts if each.kind == kind and where in each.where and part in each.found], drifts
    # What follows from it is named, too: a dropped function has no rights either.
    fix(superuser, *drifts)


def test_a_database_that_was_bootstrapped_and_migrated_is_as_declared(superuser: Superuser) -> None:
    examination = examine(superuser, using="default")
    assert (examination.drifts, examination.not_checked) == ((), ())


def test_who_reaches_an_owner_through_other_roles_is_found(superuser: Superuser) -> None:
    superuser.execute("CREATE ROLE a_team; GRANT worker_fanout_owner TO a_team; GRANT a_team TO app")
    drifts = find_drifts(superuser)
    assert {(each.where, each.found.split(",")[0]) for each in drifts} == {
        ("role app", "a member of a_team"),
        ("role a_team", "a member of worker_fanout_owner"),
    }
    fix(superuser, *drifts)


@pytest.mark.parametrize("granted", ["pg_read_server_files", "a_team"])
def test_the_hint_says_what_a_predefined_role_gives_also_through_other_roles(
    superuser: Superuser, granted: str
) -> None:
    superuser.execute(f"CREATE ROLE a_team; GRANT pg_read_server_files TO a_team; GRANT {granted} TO app".encode())
    (drift,) = find_drifts(superuser)
    assert (drift.kind, drift.where) == ("membership", "role app")
    assert "read every file on the server" in drift.hint
    assert drift.hint.endswith("(through pg_read_server_files)") is (granted == "a_team")


def test_a_stored_search_path_is_fixed_by_a_person_alone(superuser: Superuser) -> None:
    superuser.execute("ALTER ROLE app SET search_path = other; ALTER ROLE app SET row_security = off")
    fix_all(superuser, using="default")
    assert [(each.where, each.found) for each in find_drifts(superuser)] == [("role app", "search_path = other")]


def test_another_name_of_the_stores_setting_is_a_drift_of_what_reads_it(superuser: Superuser, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "STORE_GUC": "app.renamed"}
    drifts = find_drifts(superuser)
    assert {each.kind for each in drifts} == {"policy", "function"}
    names = " ".join(each.where for each in drifts)
    for name in ("salon_jobs_web_select", '"customer"', "salon_jobs_add_job(", "salon_jobs_cancel("):
        assert name in names
    fix(superuser, *drifts)


def test_a_missing_role_is_named_with_the_command_that_creates_it(superuser: Superuser) -> None:
    superuser.execute("ALTER ROLE jobs_operator RENAME TO somebody_else")
    missing = [each for each in find_drifts(superuser) if each.kind == "role"]
    assert [(each.where, each.hint) for each in missing] == [
        ("role jobs_operator", "run python manage.py bootstrap_roles")
    ]


def test_an_undeclared_table_is_a_persons_decision(superuser: Superuser) -> None:
    superuser.execute("SET LOCAL ROLE migrator; CREATE TABLE noted (id int); RESET ROLE")
    (drift,) = find_drifts(superuser)
    assert (drift.kind, drift.where, drift.needs_decision) == ("undeclared table", 'table "public"."noted"', True)
    rights = "DELETE, INSERT, SELECT, UPDATE"
    assert drift.found == f"app {rights}; worker_runtime {rights}, without policies"
    assert "StoreIsolation" in drift.hint
    fix(superuser, drift)


def test_tables_of_django_are_no_drift_while_nobody_has_more_than_the_default_privileges(
    superuser: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraints = {
        model: constraint
        for model, constraint in declarations().items()
        if not model.__module__.startswith("django.contrib.")
    }
    monkeypatch.setattr(declaration, "declarations", lambda: constraints)
    examination = examine(superuser, using="default")
    assert examination.drifts == ()
    (text,) = examination.not_checked
    assert text.startswith("Django's own tables, which web and worker use by default privileges: auth_group, auth_gr")
    superuser.execute("GRANT TRUNCATE ON auth_group TO app; ALTER TABLE auth_permission OWNER TO app")
    assert {(drift.kind, drift.where) for drift in find_drifts(superuser)} == {
        ("undeclared table", 'table "public"."auth_group"'),
        ("owner", 'table "public"."auth_permission"'),
    }


def test_rows_that_refer_to_nothing_are_found_by_who_sees_them(superuser: Superuser) -> None:
    store, nobody = uuid4(), uuid4()
    superuser.execute("INSERT INTO store (id, name) VALUES (%s, 's')", [store])
    superuser.execute("SET LOCAL session_replication_role = replica")
    superuser.execute(
        "INSERT INTO customer_note (id, store_id, customer_id, body) VALUES (gen_random_uuid(), %s, %s, 'n')",
        [store, nobody],
    )
    (orphans,) = find_drifts(superuser)
    assert (orphans.kind, orphans.found, orphans.needs_decision) == ("orphans", "1 rows", True)
    assert "customer_note" in orphans.where
    (row,) = superuser.execute(orphans.fix[0].encode()).fetchall()
    assert nobody in row


def test_a_view_of_the_migrators_over_jobs_shows_those_of_all_stores(superuser: Superuser) -> None:
    superuser.execute(
        "SET LOCAL ROLE migrator; CREATE VIEW waiting AS SELECT task, store_id, payload FROM salon_jobs_job;"
        "CREATE VIEW waiting_tasks AS SELECT task FROM waiting; CREATE VIEW customers AS SELECT * FROM customer;"
        "CREATE VIEW asked AS SELECT * FROM salon_jobs_job; ALTER VIEW asked SET (security_invoker = true);"
        "CREATE VIEW users AS SELECT * FROM auth_user; REVOKE ALL ON users FROM worker_runtime; RESET ROLE"
    )
    drifts = find_drifts(superuser)
    assert [(each.kind, each.where, each.needs_decision) for each in drifts] == [
        ("undeclared view", f'view "public"."{view}", role app', True) for view in ("waiting", "waiting_tasks")
    ]
    assert all(each.found == f"the eyes of migrator, who sees all rows of {JOB[6:]}" for each in drifts)
    fix(superuser, *drifts)


@pytest.mark.parametrize("kind", ["integer", "bigint", "uuid", "text", "varchar(254)", "varchar", "numeric(10, 2)"])
def test_a_membership_policy_is_the_same_whatever_the_users_key_is(superuser: Superuser, kind: str) -> None:
    condition = user_condition("user", kind)
    superuser.execute(f'CREATE TABLE keyed ("user" {kind}); CREATE POLICY own ON keyed USING ({condition})'.encode())
    [(shown,)] = superuser.execute("SELECT qual FROM pg_policies WHERE tablename = 'keyed'").fetchall()
    assert normal_form(condition) == normal_form(shown)


@pytest.mark.parametrize(
    "other",
    [
        None,
        "FOREIGN KEY (customer_id) REFERENCES public.customer(id)",
        "FOREIGN KEY (store_id, customer_id) REFERENCES public.customer(store_id, id)",
    ],
    ids=["gone", "without the store", "checked at once"],
)
def test_a_key_of_the_same_store_that_is_gone_or_another_is_added_and_validated(
    superuser: Superuser, other: str | None
) -> None:
    name = "customer_note_customer_of_same_store"
    superuser.execute(f"ALTER TABLE customer_note DROP CONSTRAINT {name}".encode())
    if other is not None:
        superuser.execute(f"ALTER TABLE customer_note ADD CONSTRAINT {name} {other}".encode())
    (drift,) = find_drifts(superuser)
    assert (drift.kind, drift.found, name in drift.where) == ("foreign key", other or "none", True)
    fix_all(superuser, using="default")
    assert find_drifts(superuser) == []
    [(shown,)] = superuser.execute("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %s", [name])
    assert shown == (
        "FOREIGN KEY (store_id, customer_id) REFERENCES customer(store_id, id) DEFERRABLE INITIALLY DEFERRED"
    )
