"""Breaks the real database by hand: the doctor names each drift, its statements fix it, and nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import psycopg
import pytest

from project.salon.models import Store
from salon_jobs.access import StoreIsolation
from salon_jobs.access.doctor import declaration
from salon_jobs.access.doctor.catalogue import Drift
from salon_jobs.access.doctor.examination import examine
from salon_jobs.access.doctor.examination import fix as fix_all
from salon_jobs.access.doctor.expressions import normal_form
from salon_jobs.access.operations.access import declarations
from salon_jobs.access.policies import user_condition
from salon_jobs.conf.store_key import store_key
from tests.settings import TEST_DATABASE
from tests.support import new_store_id

Superuser = psycopg.Connection[Any]
JOB = 'table "public"."salon_jobs_job"'
Case: TypeAlias = tuple[str, str, str, str]


def cases() -> Iterator[Case]:
    text = Path(__file__).with_name("drifts.txt").read_text(encoding="utf-8")
    for line in text.replace("{database}", TEST_DATABASE).replace("{key}", store_key().sql).splitlines():
        if line and not line.startswith("#"):
            statement, kind, where, part = line.split(" | ")
            yield statement, kind, where, part
    powers = ("read_server_files", "write_server_files", "execute_server_program", "write_all_data", "signal_backend")
    for power, member in product(powers, ("app", "worker_runtime", "jobs_operator", "migrator")):
        yield f"GRANT pg_{power} TO {member}", "membership", f"role {member}", f"a member of pg_{power}"


KINDS = sorted({case[1] for case in cases()})


def find_drifts(superuser: Superuser) -> list[Drift]:
    return list(examine(superuser, using="default").drifts)


def fix(superuser: Superuser, *drifts: Drift) -> None:
    """Run the statements one by one, as a person would in psql; nothing is left then."""
    for drift in drifts:
        assert drift.fix, drift
        for statement in drift.fix:
            superuser.execute(statement.encode())
    assert find_drifts(superuser) == []


def is_done(superuser: Superuser, statement: str) -> bool:
    """Run a statement; return False if it needs what another case has changed."""
    try:
        with superuser.transaction():
            superuser.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege:
        raise
    except psycopg.Error:
        return False
    return True


def is_named(case: Case, drift: Drift) -> bool:
    return drift.kind == case[1] and case[2] in drift.where and case[3] in drift.found


@pytest.mark.parametrize("kind", KINDS)
def test_each_drift_of_a_kind_is_named_and_its_statements_fix_it(trial: Superuser, kind: str) -> None:
    waiting = [case for case in cases() if case[1] == kind]
    if trial.info.server_version < 160000:  # the option came with 16
        waiting = [case for case in waiting if "WITH INHERIT" not in case[0]]
    while waiting:
        at_once: list[Case] = []
        with trial.transaction(force_rollback=True):
            for case in waiting:
                if case[2] not in [each[2] for each in at_once] and is_done(trial, case[0]):
                    at_once.append(case)
            drifts = find_drifts(trial)
            # What is hidden by another case is seen in a later round, in the last one alone.
            seen = [case for case in at_once if any(is_named(case, drift) for drift in drifts)]
            assert seen, (at_once, drifts)
            # What follows from it is named, too: a dropped function has no rights either.
            fix(trial, *drifts)
        waiting = [case for case in waiting if case not in seen]


def test_a_database_that_was_bootstrapped_and_migrated_is_as_declared(trial: Superuser) -> None:
    examination = examine(trial, using="default")
    assert (examination.drifts, examination.not_checked) == ((), ())


def test_who_reaches_an_owner_through_other_roles_is_found(trial: Superuser) -> None:
    trial.execute("CREATE ROLE a_team; GRANT worker_fanout_owner TO a_team; GRANT a_team TO app")
    drifts = find_drifts(trial)
    assert {(each.where, each.found.split(",")[0]) for each in drifts} == {
        ("role app", "a member of a_team"),
        ("role a_team", "a member of worker_fanout_owner"),
    }
    fix(trial, *drifts)


@pytest.mark.parametrize("granted", ["pg_read_server_files", "a_team"])
def test_the_hint_says_what_a_predefined_role_gives_also_through_other_roles(trial: Superuser, granted: str) -> None:
    trial.execute(f"CREATE ROLE a_team; GRANT pg_read_server_files TO a_team; GRANT {granted} TO app".encode())
    (drift,) = find_drifts(trial)
    assert (drift.kind, drift.where) == ("membership", "role app")
    assert "read every file on the server" in drift.hint
    assert drift.hint.endswith("(through pg_read_server_files)") is (granted == "a_team")


def test_a_stored_search_path_is_fixed_by_a_person_alone(trial: Superuser) -> None:
    trial.execute("ALTER ROLE app SET search_path = other; ALTER ROLE app SET row_security = off")
    fix_all(trial, using="default")
    assert [(each.where, each.found) for each in find_drifts(trial)] == [("role app", "search_path = other")]


def test_another_name_of_the_stores_setting_is_a_drift_of_what_reads_it(trial: Superuser, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "STORE_GUC": "app.renamed"}
    drifts = find_drifts(trial)
    assert {each.kind for each in drifts} == {"policy", "function"}
    names = " ".join(each.where for each in drifts)
    for name in ("salon_jobs_web_select", '"customer"', "salon_jobs_add_job(", "salon_jobs_cancel("):
        assert name in names
    fix(trial, *drifts)


def test_a_missing_role_is_named_with_the_command_that_creates_it(trial: Superuser) -> None:
    trial.execute("ALTER ROLE jobs_operator RENAME TO somebody_else")
    missing = [each for each in find_drifts(trial) if each.kind == "role"]
    assert [(each.where, each.hint) for each in missing] == [
        ("role jobs_operator", "run python manage.py bootstrap_roles")
    ]


def test_an_undeclared_table_is_a_persons_decision(trial: Superuser) -> None:
    trial.execute("SET LOCAL ROLE migrator; CREATE TABLE noted (id int); RESET ROLE")
    (drift,) = find_drifts(trial)
    assert (drift.kind, drift.where, drift.needs_decision) == ("undeclared table", 'table "public"."noted"', True)
    rights = "DELETE, INSERT, SELECT, UPDATE"
    assert drift.found == f"app {rights}; worker_runtime {rights}, without policies"
    assert "StoreIsolation" in drift.hint
    fix(trial, drift)


def test_tables_of_django_are_no_drift_while_nobody_has_more_than_the_default_privileges(
    trial: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraints = {
        model: constraint
        for model, constraint in declarations().items()
        if not model.__module__.startswith("django.contrib.")
    }
    monkeypatch.setattr(declaration, "declarations", lambda: constraints)
    examination = examine(trial, using="default")
    assert examination.drifts == ()
    (text,) = examination.not_checked
    assert text.startswith("Django's own tables, which web and worker use by default privileges: auth_group, auth_gr")
    trial.execute("GRANT TRUNCATE ON auth_group TO app; ALTER TABLE auth_permission OWNER TO app")
    assert {(drift.kind, drift.where) for drift in find_drifts(trial)} == {
        ("undeclared table", 'table "public"."auth_group"'),
        ("owner", 'table "public"."auth_permission"'),
    }


def test_rows_that_refer_to_nothing_are_found_by_who_sees_them(trial: Superuser) -> None:
    store, nobody = new_store_id(), uuid4()
    trial.execute("INSERT INTO store (id, name) VALUES (%s, 's')", [store])
    trial.execute("SET LOCAL session_replication_role = replica")
    trial.execute(
        "INSERT INTO customer_note (id, store_id, customer_id, body) VALUES (gen_random_uuid(), %s, %s, 'n')",
        [store, nobody],
    )
    (orphans,) = find_drifts(trial)
    assert (orphans.kind, orphans.found, orphans.needs_decision) == ("orphans", "1 rows", True)
    assert "customer_note" in orphans.where
    (row,) = trial.execute(orphans.fix[0].encode()).fetchall()
    assert nobody in row


def test_a_view_of_the_migrators_over_jobs_shows_those_of_all_stores(trial: Superuser) -> None:
    trial.execute(
        "SET LOCAL ROLE migrator; CREATE VIEW waiting AS SELECT task, store_id, payload FROM salon_jobs_job;"
        "CREATE VIEW waiting_tasks AS SELECT task FROM waiting; CREATE VIEW customers AS SELECT * FROM customer;"
        "CREATE VIEW asked AS SELECT * FROM salon_jobs_job; ALTER VIEW asked SET (security_invoker = true);"
        "CREATE VIEW users AS SELECT * FROM auth_user; REVOKE ALL ON users FROM worker_runtime; RESET ROLE"
    )
    drifts = find_drifts(trial)
    assert [(each.kind, each.where, each.needs_decision) for each in drifts] == [
        ("undeclared view", f'view "public"."{view}", role app', True) for view in ("waiting", "waiting_tasks")
    ]
    assert all(each.found == f"the eyes of migrator, who sees all rows of {JOB[6:]}" for each in drifts)
    fix(trial, *drifts)


def test_the_names_of_stores_for_the_operator_are_compared_like_everything(
    trial: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    [constraint] = [each for each in Store._meta.constraints if isinstance(each, StoreIsolation)]
    monkeypatch.setattr(constraint, "names", ("name",))
    drifts = find_drifts(trial)
    assert {drift.kind for drift in drifts} == {"policy", "grant"}
    fix(trial, *drifts)
    trial.execute("SET ROLE jobs_operator")
    trial.execute("SELECT id, name FROM store")
    trial.execute("RESET ROLE")
    monkeypatch.undo()
    drifts = find_drifts(trial)
    assert drifts
    fix(trial, *drifts)


def test_a_membership_policy_is_the_same_whatever_the_users_key_is(trial: Superuser) -> None:
    for number, kind in enumerate(("integer", "bigint", "uuid", "text", "varchar(254)", "varchar", "numeric(10, 2)")):
        table, condition = f"keyed_{number}", user_condition("user", kind)
        trial.execute(f'CREATE TABLE {table} ("user" {kind})'.encode())
        trial.execute(f"CREATE POLICY own ON {table} USING ({condition})".encode())
        [(shown,)] = trial.execute("SELECT qual FROM pg_policies WHERE tablename = %s", [table]).fetchall()
        assert normal_form(condition) == normal_form(shown), kind


SAME_STORE = (
    "customer_note",
    "customer_note_customer_of_same_store",
    "FOREIGN KEY (store_id, customer_id) REFERENCES customer(store_id, id) DEFERRABLE INITIALLY DEFERRED",
)
OF_USER = (
    "membership",
    "membership_of_user",
    "FOREIGN KEY (user_id) REFERENCES auth_user(id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED",
)


@pytest.mark.parametrize(
    ("declared", "other"),
    [
        (SAME_STORE, None),
        (SAME_STORE, "FOREIGN KEY (customer_id) REFERENCES public.customer(id)"),
        (SAME_STORE, "FOREIGN KEY (store_id, customer_id) REFERENCES public.customer(store_id, id)"),
        (OF_USER, "FOREIGN KEY (user_id) REFERENCES public.auth_user(id) DEFERRABLE INITIALLY DEFERRED"),
    ],
    ids=["gone", "without the store", "checked at once", "that deletes nothing"],
)
def test_a_declared_key_that_is_gone_or_another_is_added_and_validated(
    trial: Superuser, declared: tuple[str, str, str], other: str | None
) -> None:
    table, name, wanted = declared
    trial.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}".encode())
    if other is not None:
        trial.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {other}".encode())
    (drift,) = find_drifts(trial)
    assert (drift.kind, drift.found, name in drift.where) == ("foreign key", other or "none", True)
    fix_all(trial, using="default")
    assert find_drifts(trial) == []
    [(shown,)] = trial.execute("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %s", [name])
    assert shown == wanted
