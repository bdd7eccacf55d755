"""The real database, broken by hand: the doctor names each drift, its statements fix it, and nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import uuid4

import psycopg
import pytest
from django.db.models import Value

from project.local.postgres import EmbeddedPostgres
from project.salon.models import Customer, Store
from salon_jobs.access import StoreIsolation
from salon_jobs.access.doctor import declaration
from salon_jobs.access.doctor.catalogue import Catalogue, Drift
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.doctor.examination import examine
from salon_jobs.access.doctor.examination import fix as fix_all
from salon_jobs.access.doctor.expressions import normal_form
from salon_jobs.access.doctor.session_settings import compare_settings, find_refused
from salon_jobs.access.operations.access import declarations
from salon_jobs.access.policies import user_condition
from salon_jobs.conf.schema import ONE_USER
from salon_jobs.conf.store_key import store_key
from tests.settings import TEST_DATABASE, url_for
from tests.support import new_store_id

# They alter roles, which all databases of the server share, in transactions that are rolled back.
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


def test_drifts_are_named_and_fixed(trial: Superuser) -> None:
    """As many at once as do not concern the same object: what is examined is always the whole database."""
    waiting = [*cases()]
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


def test_migrated_database_is_as_declared(trial: Superuser) -> None:
    examination = examine(trial, using="default")
    assert (examination.drifts, examination.not_checked) == ((), ())


def test_membership_through_other_roles(trial: Superuser) -> None:
    trial.execute("CREATE ROLE a_team; GRANT worker_fanout_owner TO a_team; GRANT a_team TO app")
    drifts = find_drifts(trial)
    assert {(each.where, each.found.split(",")[0]) for each in drifts} == {
        ("role app", "a member of a_team"),
        ("role a_team", "a member of worker_fanout_owner"),
    }
    fix(trial, *drifts)


@pytest.mark.parametrize("granted", ["pg_read_server_files", "a_team"])
def test_hint_of_predefined_role(trial: Superuser, granted: str) -> None:
    trial.execute(f"CREATE ROLE a_team; GRANT pg_read_server_files TO a_team; GRANT {granted} TO app".encode())
    (drift,) = find_drifts(trial)
    assert (drift.kind, drift.where) == ("membership", "role app")
    assert "read every file on the server" in drift.hint
    assert drift.hint.endswith("(through pg_read_server_files)") is (granted == "a_team")


def test_stored_search_path_is_left_to_person(trial: Superuser) -> None:
    trial.execute("ALTER ROLE app SET search_path = other; ALTER ROLE app SET row_security = off")
    fix_all(trial, using="default")
    assert [(each.where, each.found) for each in find_drifts(trial)] == [("role app", "search_path = other")]


def test_renamed_store_setting(trial: Superuser, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "STORE_GUC": "app.renamed"}
    drifts = find_drifts(trial)
    assert {each.kind for each in drifts} == {"policy", "function"}
    names = " ".join(each.where for each in drifts)
    for name in ("salon_jobs_web_select", '"customer"', "salon_jobs_add_job(", "salon_jobs_cancel("):
        assert name in names
    fix(trial, *drifts)


def test_missing_role(trial: Superuser) -> None:
    trial.execute("ALTER ROLE jobs_operator RENAME TO somebody_else")
    missing = [(each.where, each.hint) for each in find_drifts(trial) if each.kind == "role"]
    assert missing == [("role jobs_operator", "run python manage.py bootstrap_roles")]


def test_undeclared_table_is_left_to_person(trial: Superuser) -> None:
    trial.execute("SET LOCAL ROLE migrator; CREATE TABLE noted (id int); RESET ROLE")
    (drift,) = find_drifts(trial)
    assert (drift.kind, drift.where, drift.needs_decision) == ("undeclared table", 'table "public"."noted"', True)
    rights = "DELETE, INSERT, SELECT, UPDATE"
    assert drift.found == f"app {rights}; worker_runtime {rights}, without policies"
    assert "StoreIsolation" in drift.hint
    fix(trial, drift)


def test_tables_of_django(trial: Superuser, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no drift while nobody has more than the default privileges."""
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


def test_orphaned_rows(trial: Superuser) -> None:
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


def test_views_of_migrator_over_jobs(trial: Superuser) -> None:
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


def test_names_of_stores_for_operator(trial: Superuser, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_membership_policy_of_any_user_key(trial: Superuser) -> None:
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
def test_wrong_foreign_key_is_replaced_and_validated(
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


def test_other_columns_are_the_projects_own(trial: Superuser) -> None:
    trial.execute(
        "ALTER TABLE customer ALTER COLUMN name DROP NOT NULL, ALTER COLUMN name SET DEFAULT 'x', "
        "ALTER COLUMN id SET DEFAULT gen_random_uuid(), ADD COLUMN added int; "
        "ALTER TABLE store ALTER COLUMN id SET DEFAULT NULL"
    )
    assert find_drifts(trial) == []


def test_default_that_model_declares(trial: Superuser, monkeypatch: pytest.MonkeyPatch) -> None:
    field: Any = Customer._meta.get_field("store")
    store = new_store_id()
    monkeypatch.setattr(field, "db_default", store)
    monkeypatch.setattr(field, "_db_default_expression", Value(store, field), raising=False)
    (drift,) = find_drifts(trial)
    assert (drift.kind, drift.found, "DEFAULT" in drift.expected) == ("column", f"{store_key().sql} NOT NULL", True)
    fix(trial, drift)


# What no session may start with, wherever it can get it from

REFUSED: Final = {
    "app.current_store_id": "00000000-0000-0000-0000-000000000001",
    "app.current_user_id": "1",
    "pgtrigger.ignore": "{public.salon_jobs_job:x}",
    "row_security": "off",
    "salon_jobs.no_store": "x",
    "session_replication_role": "replica",
    "standard_conforming_strings": "off",
}
OTHERS: Final = {"default_transaction_read_only": "on", "search_path": "elsewhere"}
# What is a drift only where it is stored.
STORED: Final = {
    "role": "migrator",
    "session_authorization": "migrator",
    "local_preload_libraries": "auto_explain",
    "session_preload_libraries": "auto_explain",
    "dynamic_library_path": "/tmp",
}


def test_configuration_of_server() -> None:
    with (
        EmbeddedPostgres(fsync=False, options=REFUSED | OTHERS) as server,
        psycopg.connect(server.url, autocommit=True) as connection,
    ):
        catalogue = Catalogue(connection, using="default")
        nothing = Declaration(roles=ONE_USER, named=(), owner="nobody", tables=())
        drifts = list(compare_settings(catalogue, nothing))
        assert {each.expected.removeprefix("no ") for each in drifts} == {*REFUSED, *OTHERS}
        assert {each.where for each in drifts} == {"server"}
        assert [text.partition(" = ")[0] for text in find_refused(catalogue)] == sorted(REFUSED)


def drifts_of(connection: Superuser) -> set[tuple[str, str]]:
    return {(each.where, each.found) for each in examine(connection, using="default", with_orphans=False).drifts}


def test_stored_settings_are_found_and_removed(trial: Superuser) -> None:
    scopes = ("ROLE ALL", "ROLE app", f"DATABASE {TEST_DATABASE}", f"ROLE app IN DATABASE {TEST_DATABASE}")
    dangerous = [(whose, *each) for whose in scopes for each in (REFUSED | OTHERS | STORED).items()]
    for whose, name, value in dangerous:
        trial.execute(f"ALTER {whose} SET {name} = '{value}'".encode())
    assert drifts_of(trial) == {(whose.lower(), f"{name} = {value}") for whose, name, value in dangerous}
    for each in examine(trial, using="default", with_orphans=False).drifts:
        trial.execute(each.fix[0].encode())
    assert drifts_of(trial) == set()


def test_harmless_values_are_no_drift(trial: Superuser) -> None:
    for role, setting in (
        ("app", "row_security = on"),
        ("worker_runtime", "row_security = 'true'"),
        ("jobs_operator", "row_security = 1"),
        ("app", "default_transaction_read_only = NO"),
        ("app", "session_replication_role = 'ORIGIN'"),
    ):
        trial.execute(f"ALTER ROLE {role} SET {setting}".encode())
    assert drifts_of(trial) == set()


def test_options_of_connection(database: None) -> None:
    given = {name: value for name, value in REFUSED.items() if name != "session_replication_role"}
    options = " ".join(f"-c {name}={value}" for name, value in given.items())
    with psycopg.connect(url_for("app", TEST_DATABASE), options=options, autocommit=True) as connection:
        assert {found for _, found in drifts_of(connection)} == {f"{name} = {value}" for name, value in given.items()}
        refused = find_refused(Catalogue(connection, using="default"))
        assert [text.partition(" = ")[0] for text in refused] == sorted(given)
