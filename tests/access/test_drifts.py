"""Breaks the real database by hand: the doctor names each drift, its statements fix it, and nothing is left."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from salon_jobs.access.doctor import declaration
from salon_jobs.access.doctor.drift import Drift
from salon_jobs.access.doctor.examination import examine
from salon_jobs.access.doctor.examination import fix as fix_all
from salon_jobs.access.doctor.policies import same_condition
from salon_jobs.access.operations.models import declarations
from salon_jobs.access.policies import user_condition
from tests.settings import TEST_DATABASE

Superuser = psycopg.Connection[Any]
JOB = 'table "public"."salon_jobs_job"'
STORE = str(uuid4())
OWN = "store_id = (SELECT NULLIF(current_setting('app.current_store_id', true), '')::uuid)"
OTHER_SETTING = "store_id = (SELECT NULLIF(current_setting('app.other', true), '')::uuid)"
OTHER_BODY = (
    "CREATE OR REPLACE FUNCTION salon_jobs_cancel(ids bigint[]) RETURNS SETOF bigint LANGUAGE sql SECURITY DEFINER"
    " SET search_path = pg_catalog, pg_temp AS 'SELECT 1::bigint'"
)
LEAKPROOF = "CREATE FUNCTION peek_at(text) RETURNS boolean LANGUAGE plpgsql LEAKPROOF AS 'BEGIN RETURN true; END'"

# What somebody does by hand; of what kind the drift is, where, and a part of what is found there.
BROKEN: list[tuple[str, str, str, str]] = [
    ("ALTER ROLE app BYPASSRLS", "role attribute", "role app", "BYPASSRLS"),
    ("ALTER ROLE worker_runtime SUPERUSER CREATEDB", "role attribute", "role worker_runtime", "SUPERUSER CREATEDB"),
    ("ALTER ROLE jobs_operator CREATEROLE", "role attribute", "role jobs_operator", "CREATEROLE"),
    ("ALTER ROLE migrator INHERIT", "role attribute", "role migrator", "INHERIT"),
    ("ALTER ROLE worker_fanout_owner LOGIN", "role attribute", "role worker_fanout_owner", "LOGIN"),
    ("ALTER ROLE invitation_cleanup_owner REPLICATION", "role attribute", "role invitation_cleanup_owner", "REPL"),
    ("GRANT migrator TO app", "membership", "role app", "a member of migrator"),
    ("GRANT worker_fanout_owner TO jobs_operator", "membership", "role jobs_operator", "a member of worker_fanout"),
    ("GRANT worker_runtime TO app", "membership", "role app", "a member of worker_runtime"),
    ("GRANT pg_read_all_data TO worker_runtime", "membership", "role worker_runtime", "pg_read_all_data"),
    ("GRANT worker_fanout_owner TO migrator WITH INHERIT TRUE", "membership", "role migrator", "INHERIT TRUE"),
    ("GRANT worker_fanout_owner TO migrator WITH ADMIN TRUE", "membership", "role migrator", "ADMIN TRUE"),
    ("REVOKE worker_fanout_owner FROM migrator", "membership", "role migrator", "none"),
    (f"ALTER ROLE app SET app.current_store_id = '{STORE}'", "setting", "role app", STORE),
    (f"ALTER ROLE ALL SET app.current_store_id = '{STORE}'", "setting", "role all", STORE),
    (f"ALTER DATABASE {TEST_DATABASE} SET app.current_store_id = '{STORE}'", "setting", "database", STORE),
    (f"ALTER ROLE app IN DATABASE {TEST_DATABASE} SET app.current_store_id = 'x'", "setting", "role app in", "x"),
    ("ALTER ROLE app SET app.current_user_id = '7'", "setting", "role app", "app.current_user_id = 7"),
    ("ALTER ROLE app SET session_replication_role = replica", "setting", "role app", "= replica"),
    (f"ALTER DATABASE {TEST_DATABASE} SET session_replication_role = replica", "setting", "database", "= replica"),
    ("GRANT CREATE ON SCHEMA public TO app", "grant", "schema public, role app", "CREATE, USAGE"),
    ("GRANT USAGE ON SCHEMA public TO PUBLIC", "grant", "schema public, role PUBLIC", "USAGE"),
    ("REVOKE USAGE ON SCHEMA public FROM jobs_operator", "grant", "schema public, role jobs_operator", "nothing"),
    ("ALTER SCHEMA public OWNER TO app", "owner", "schema public", "app"),
    (f"GRANT CREATE ON DATABASE {TEST_DATABASE} TO app", "grant", "database", "CONNECT, CREATE"),
    (f"GRANT TEMPORARY ON DATABASE {TEST_DATABASE} TO PUBLIC", "grant", "role PUBLIC", "TEMPORARY"),
    (f"REVOKE CONNECT ON DATABASE {TEST_DATABASE} FROM app", "grant", "role app", "nothing"),
    (f"ALTER DATABASE {TEST_DATABASE} OWNER TO app", "owner", "database", "app"),
    (
        "ALTER DEFAULT PRIVILEGES FOR ROLE migrator GRANT SELECT ON TABLES TO PUBLIC",
        "default privilege",
        "new tables of migrator, role PUBLIC",
        "SELECT",
    ),
    (
        "ALTER DEFAULT PRIVILEGES FOR ROLE migrator IN SCHEMA public GRANT SELECT ON TABLES TO jobs_operator",
        "default privilege",
        "new tables of migrator in schema public, role jobs_operator",
        "SELECT",
    ),
    (
        "ALTER DEFAULT PRIVILEGES FOR ROLE migrator IN SCHEMA public REVOKE INSERT ON TABLES FROM app",
        "default privilege",
        "new tables of migrator in schema public, role app",
        "none",
    ),
    (
        "ALTER DEFAULT PRIVILEGES FOR ROLE migrator GRANT EXECUTE ON FUNCTIONS TO PUBLIC",
        "default privilege",
        "new functions of migrator, role PUBLIC",
        "EXECUTE",
    ),
    (
        "ALTER DEFAULT PRIVILEGES FOR ROLE worker_fanout_owner GRANT EXECUTE ON FUNCTIONS TO PUBLIC",
        "default privilege",
        "new functions of worker_fanout_owner, role PUBLIC",
        "EXECUTE",
    ),
    ("ALTER TABLE salon_jobs_limit OWNER TO app", "owner", "salon_jobs_limit", "app"),
    ("GRANT SELECT ON salon_jobs_process TO app", "grant", 'salon_jobs_process", role app', "SELECT"),
    ("GRANT UPDATE ON salon_jobs_job TO app", "grant", f"{JOB}, role app", "SELECT, UPDATE, INSERT (concurrency_key"),
    ("GRANT UPDATE (lease) ON salon_jobs_job TO app", "grant", f"{JOB}, role app", "finished_at, lease, max_attempts"),
    ("REVOKE UPDATE (payload) ON salon_jobs_job FROM app", "grant", f"{JOB}, role app", "SELECT, INSERT (conc"),
    ("REVOKE DELETE ON salon_jobs_job FROM worker_runtime", "grant", f"{JOB}, role worker_runtime", "INSERT, SELECT"),
    ("GRANT TRUNCATE ON salon_jobs_job TO worker_runtime", "grant", f"{JOB}, role worker_runtime", "TRUNCATE"),
    ("GRANT SELECT ON salon_jobs_job TO PUBLIC", "grant", f"{JOB}, role PUBLIC", "SELECT"),
    (
        "GRANT SELECT ON salon_jobs_job TO jobs_operator WITH GRANT OPTION",
        "grant",
        f"{JOB}, role jobs_operator",
        "SELECT WITH GRANT OPTION",
    ),
    ("GRANT INSERT ON django_migrations TO app", "grant", '"django_migrations", role app', "INSERT, SELECT"),
    (
        "GRANT UPDATE ON SEQUENCE salon_jobs_job_id_seq TO app",
        "grant",
        'sequence "public"."salon_jobs_job_id_seq"',
        "UPDATE",
    ),
    ("ALTER TABLE salon_jobs_job NO FORCE ROW LEVEL SECURITY", "row-level security", JOB, "NO FORCE"),
    ("ALTER TABLE salon_jobs_job DISABLE ROW LEVEL SECURITY", "row-level security", JOB, "DISABLE"),
    ("ALTER TABLE django_migrations ENABLE ROW LEVEL SECURITY", "row-level security", "django_migrations", "ENABLE"),
    ("ALTER TABLE customer NO FORCE ROW LEVEL SECURITY", "row-level security", '"customer"', "NO FORCE"),
    ("ALTER TABLE store DISABLE ROW LEVEL SECURITY", "row-level security", '"store"', "DISABLE"),
    ("ALTER POLICY salon_jobs_store_select ON customer USING (true)", "policy", '"customer"', "USING (true)"),
    ("CREATE POLICY debug ON auth_user TO app USING (true)", "policy", '"auth_user"', "TO app"),
    ("GRANT SELECT ON customer TO jobs_operator", "grant", '"customer", role jobs_operator', "SELECT"),
    ("REVOKE SELECT (id) ON store FROM worker_fanout_owner", "grant", '"store", role worker_fanout_owner', "nothing"),
    ("GRANT SELECT ON store TO worker_fanout_owner", "grant", '"store", role worker_fanout_owner', "SELECT"),
    ("DROP POLICY salon_jobs_web_select ON salon_jobs_job", "policy", "policy salon_jobs_web_select", "none"),
    (
        "ALTER POLICY salon_jobs_web_select ON salon_jobs_job USING (true)",
        "policy",
        "salon_jobs_web_select",
        "USING (true)",
    ),
    (
        f"ALTER POLICY salon_jobs_web_select ON salon_jobs_job USING ({OTHER_SETTING})",
        "policy",
        "salon_jobs_web_select",
        "app.other",
    ),
    (
        f"ALTER POLICY salon_jobs_web_select ON salon_jobs_job USING ({OWN} OR state = 'failed')",
        "policy",
        "salon_jobs_web_select",
        "OR",
    ),
    (
        "ALTER POLICY salon_jobs_web_update ON salon_jobs_job WITH CHECK (state IN ('queued', 'cancelled'))",
        "policy",
        "salon_jobs_web_update",
        "WITH CHECK",
    ),
    ("ALTER POLICY salon_jobs_all ON salon_jobs_job TO PUBLIC", "policy", "policy salon_jobs_all", "TO PUBLIC"),
    (
        "ALTER POLICY salon_jobs_all ON salon_jobs_job TO worker_runtime, app",
        "policy",
        "policy salon_jobs_all",
        "TO app, worker_runtime",
    ),
    ("CREATE POLICY debug ON salon_jobs_job USING (true)", "policy", "policy debug of", "FOR ALL TO PUBLIC"),
    ("CREATE POLICY debug ON salon_jobs_job AS RESTRICTIVE TO app USING (false)", "policy", "debug", "AS RESTRICTIVE"),
    ("GRANT SET ON PARAMETER session_replication_role TO app", "grant", "session_replication_role, role app", "SET"),
    ("ALTER TABLE salon_jobs_job DISABLE TRIGGER salon_jobs_supersede", "trigger", "_supersede of", "DISABLE"),
    ("ALTER TABLE customer_note DISABLE TRIGGER ALL", "trigger", 'table "public"."customer_note"', "DISABLE"),
    ("GRANT EXECUTE ON FUNCTION salon_jobs_cancel TO PUBLIC", "grant", "function public.salon_jobs_cancel", "EXECUTE"),
    ("GRANT EXECUTE ON FUNCTION salon_jobs_finish TO app", "grant", "function public.salon_jobs_finish", "EXECUTE"),
    ("REVOKE EXECUTE ON FUNCTION salon_jobs_claim FROM worker_runtime", "grant", "public.salon_jobs_claim", "nothing"),
    ("ALTER FUNCTION salon_jobs_cancel SECURITY INVOKER", "function", "salon_jobs_cancel", "SECURITY INVOKER"),
    ("ALTER FUNCTION salon_jobs_finish SECURITY DEFINER", "function", "salon_jobs_finish", "SECURITY DEFINER"),
    ("ALTER FUNCTION salon_jobs_cancel RESET search_path", "function", "salon_jobs_cancel", "no settings"),
    ("ALTER FUNCTION salon_jobs_cancel SET search_path = public", "function", "salon_jobs_cancel", "search_path=pub"),
    ("ALTER FUNCTION list_store_ids_for_fan_out VOLATILE", "function", "list_store_ids_for_fan_out", "VOLATILE"),
    ("ALTER FUNCTION list_store_ids_for_fan_out OWNER TO migrator", "owner", "list_store_ids_for_fan_out", "migrator"),
    ("GRANT EXECUTE ON FUNCTION list_store_ids_for_fan_out TO app", "grant", "list_store_ids_for_fan_out", "EXECUTE"),
    ("DROP FUNCTION list_store_ids_for_fan_out", "function", "list_store_ids_for_fan_out", "none"),
    ("DROP FUNCTION salon_jobs_cancel", "function", "salon_jobs_cancel", "none"),
    (OTHER_BODY, "function", "salon_jobs_cancel", "another body"),
    (
        "CREATE FUNCTION salon_jobs_cancel(text) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "function",
        "public.salon_jobs_cancel(text)",
        "one, owned by",
    ),
    (
        "CREATE TABLE left_behind (id int); ALTER TABLE left_behind OWNER TO app",
        "owner",
        'table "public"."left_behind"',
        "app",
    ),
    (
        "CREATE VIEW everything AS SELECT * FROM customer; GRANT SELECT ON everything TO app",
        "undeclared view",
        'view "public"."everything", role app',
        "who bypasses row-level security",
    ),
    (
        "CREATE FUNCTION peek() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT count(*) FROM customer'",
        "undeclared function",
        "function public.peek(), role PUBLIC",
        "SECURITY DEFINER",
    ),
    *(
        (f"GRANT {role} TO {member}", "membership", f"role {member}", f"a member of {role}")
        for role in (
            "pg_read_server_files",
            "pg_write_server_files",
            "pg_execute_server_program",
            "pg_write_all_data",
            "pg_signal_backend",
        )
        for member in ("app", "worker_runtime", "jobs_operator", "migrator")
    ),
    (LEAKPROOF, "leakproof function", "function public.peek_at(text)", "; role PUBLIC may call it"),
    (
        f"{LEAKPROOF}; REVOKE ALL ON FUNCTION peek_at FROM PUBLIC; GRANT EXECUTE ON FUNCTION peek_at TO app",
        "leakproof function",
        "function public.peek_at(text)",
        "; role app may call it",
    ),
    (
        f"{LEAKPROOF}; REVOKE ALL ON FUNCTION peek_at FROM PUBLIC; ALTER FUNCTION peek_at OWNER TO worker_runtime",
        "leakproof function",
        "function public.peek_at(text)",
        "; role worker_runtime may call it",
    ),
    ("ALTER FUNCTION salon_jobs_finish LEAKPROOF", "leakproof function", "salon_jobs_finish", "worker_runtime"),
    *(
        (
            f"CREATE SCHEMA other; GRANT CREATE ON SCHEMA other TO {role}",
            "grant",
            f"schema other, role {role}",
            "CREATE",
        )
        for role in ("app", "worker_runtime", "jobs_operator", "PUBLIC")
    ),
    (
        "CREATE SCHEMA other; GRANT CREATE ON SCHEMA other TO app WITH GRANT OPTION",
        "grant",
        "schema other, role app",
        "CREATE WITH GRANT OPTION",
    ),
    ("GRANT CREATE ON SCHEMA pg_catalog TO app", "grant", "schema pg_catalog, role app", "CREATE"),
    *(
        (f"ALTER {whose} SET {name} = {value}", "setting", where, f"{name} = {value}")
        for whose, where in (
            ("ROLE app", "role app"),
            ("ROLE migrator", "role migrator"),
            ("ROLE ALL", "role all"),
            (f"DATABASE {TEST_DATABASE}", f"database {TEST_DATABASE}"),
            (f"ROLE worker_runtime IN DATABASE {TEST_DATABASE}", "role worker_runtime in database"),
        )
        for name, value in (("search_path", "other"), ("row_security", "off"))
    ),
    *(
        (f"ALTER ROLE app IN DATABASE {TEST_DATABASE} SET {name} = {value}", "setting", "role app in database", name)
        for name, value in (
            ("session_replication_role", "replica"),
            ("role", "migrator"),
            ("session_authorization", "migrator"),
            ("default_transaction_read_only", "on"),
            ("pgtrigger.ignore", "'{public.salon_jobs_job:x}'"),
            ("local_preload_libraries", "''"),
            ("session_preload_libraries", "''"),
            ("dynamic_library_path", "'/tmp'"),
            ("standard_conforming_strings", "off"),
            ("salon_jobs.no_store", f"'{STORE}'"),
            ("app.current_store_id", f"'{STORE}'"),
        )
    ),
    (
        "CREATE RULE copied AS ON INSERT TO customer DO ALSO SELECT set_config('app.found', NEW.name, false)",
        "rule",
        'rule copied of table "public"."customer"',
        "ON INSERT",
    ),
    (
        "CREATE RULE kept AS ON DELETE TO salon_jobs_message DO INSTEAD NOTHING",
        "rule",
        'rule kept of table "public"."salon_jobs_message"',
        "DO INSTEAD NOTHING",
    ),
]
MADE = (
    "DROP SCHEMA IF EXISTS other CASCADE",
    "DROP FUNCTION IF EXISTS peek_at(text)",
    "DROP VIEW IF EXISTS everything",
    "DROP FUNCTION IF EXISTS peek()",
    "DROP TABLE IF EXISTS left_behind",
    "DROP TABLE IF EXISTS noted",
)


def drifts(superuser: Superuser) -> list[Drift]:
    return list(examine(superuser).drifts)


def fix(superuser: Superuser, *found: Drift) -> None:
    """Run the statements one by one, as a person would in psql."""
    for drift in found:
        assert drift.fix, drift
        for statement in drift.fix:
            superuser.execute(statement.encode())


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case[0].split(" USING")[0][:70])
def test_a_drift_is_named_and_its_statements_fix_it(superuser: Superuser, case: tuple[str, str, str, str]) -> None:
    statement, kind, where, seen = case
    try:
        superuser.execute(statement.encode())
        found = drifts(superuser)
        named = [each for each in found if each.kind == kind and where in each.where and seen in each.found]
        assert named, found
        # What follows from it is named, too: a dropped function has no rights either.
        fix(superuser, *found)
        assert drifts(superuser) == []
    finally:
        for each in MADE:
            superuser.execute(each.encode())


def test_a_database_that_was_bootstrapped_and_migrated_is_as_declared(superuser: Superuser) -> None:
    found = examine(superuser)
    assert found.drifts == ()
    assert found.not_checked == ()


def test_who_reaches_an_owner_through_roles_between_is_seen(superuser: Superuser) -> None:
    superuser.execute("CREATE ROLE a_team")
    try:
        superuser.execute("GRANT worker_fanout_owner TO a_team; GRANT a_team TO app")
        found = drifts(superuser)
        assert {(each.where, each.found.split(",")[0]) for each in found} == {
            ("role app", "a member of a_team"),
            ("role a_team", "a member of worker_fanout_owner"),
        }
        fix(superuser, *found)
        assert drifts(superuser) == []
    finally:
        superuser.execute("DROP ROLE a_team")


@pytest.mark.parametrize("granted", ["pg_read_server_files", "a_team"])
def test_what_a_predefined_role_gives_is_said_also_through_roles_between(superuser: Superuser, granted: str) -> None:
    superuser.execute("CREATE ROLE a_team; GRANT pg_read_server_files TO a_team")
    try:
        superuser.execute(f"GRANT {granted} TO app".encode())
        (found,) = drifts(superuser)
        assert (found.kind, found.where) == ("membership", "role app")
        assert "read every file on the server" in found.hint
        assert found.hint.endswith("(through pg_read_server_files)") is (granted == "a_team")
        fix(superuser, found)
        assert drifts(superuser) == []
    finally:
        superuser.execute("DROP ROLE a_team")


def test_a_stored_search_path_is_fixed_by_a_person_alone(superuser: Superuser) -> None:
    superuser.execute("ALTER ROLE app SET search_path = other; ALTER ROLE app SET row_security = off")
    try:
        fix_all(superuser)
        assert [(each.where, each.found) for each in drifts(superuser)] == [("role app", "search_path = other")]
    finally:
        superuser.execute("ALTER ROLE app RESET ALL")


def test_another_name_of_the_stores_setting_is_a_drift_of_what_reads_it(superuser: Superuser, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "STORE_GUC": "app.renamed"}
    found = drifts(superuser)
    assert {each.kind for each in found} == {"policy", "function"}
    names = " ".join(each.where for each in found)
    for name in ("salon_jobs_web_insert", '"customer"', "salon_jobs_add_job(", "salon_jobs_cancel("):
        assert name in names
    fix(superuser, *found)
    assert drifts(superuser) == []


def test_a_role_that_is_missing_is_named_with_what_makes_it(superuser: Superuser) -> None:
    superuser.execute("ALTER ROLE jobs_operator RENAME TO somebody_else")
    try:
        missing = [each for each in drifts(superuser) if each.kind == "role"]
    finally:
        superuser.execute("ALTER ROLE somebody_else RENAME TO jobs_operator")
    assert [(each.where, each.hint) for each in missing] == [
        ("role jobs_operator", "run python manage.py bootstrap_roles")
    ]


def test_a_table_that_nobody_declared_is_a_persons_decision(superuser: Superuser) -> None:
    with superuser.transaction(force_rollback=True):
        superuser.execute("SET LOCAL ROLE migrator; CREATE TABLE noted (id int); RESET ROLE")
        (found,) = drifts(superuser)
        assert (found.kind, found.where, found.needs_decision) == ("undeclared table", 'table "public"."noted"', True)
        rights = "DELETE, INSERT, SELECT, UPDATE"
        assert found.found == f"app {rights}; worker_runtime {rights}, without policies"
        assert "StoreIsolation" in found.hint
        fix(superuser, found)
        assert drifts(superuser) == []


def test_tables_of_django_are_named_but_are_no_drift_while_nobody_has_more_than_the_default_privileges(
    superuser: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraints = {
        model: constraint
        for model, constraint in declarations().items()
        if not model.__module__.startswith("django.contrib.")
    }
    monkeypatch.setattr(declaration, "declarations", lambda: constraints)
    found = examine(superuser)
    assert found.drifts == ()
    (text,) = found.not_checked
    assert text.startswith("Django's own tables, which web and worker use by default privileges: auth_group, auth_gr")
    with superuser.transaction(force_rollback=True):
        superuser.execute("GRANT TRUNCATE ON auth_group TO app")
        (drift,) = drifts(superuser)
        assert (drift.kind, drift.where) == ("undeclared table", 'table "public"."auth_group"')


def test_rows_that_refer_to_nothing_are_found_by_who_sees_them(superuser: Superuser) -> None:
    store, nobody = uuid4(), uuid4()
    superuser.execute("INSERT INTO store (id, name) VALUES (%s, 's')", [store])
    with superuser.transaction():
        superuser.execute("SET LOCAL session_replication_role = replica")
        superuser.execute(
            "INSERT INTO customer_note (id, store_id, customer_id, body) VALUES (gen_random_uuid(), %s, %s, 'n')",
            [store, nobody],
        )
    (orphans,) = drifts(superuser)
    assert (orphans.kind, orphans.found, orphans.needs_decision) == ("orphans", "1 rows", True)
    assert "customer_note" in orphans.where
    (shown,) = superuser.execute(orphans.fix[0].encode()).fetchall()
    assert nobody in shown


def test_a_key_that_was_never_validated_is_validated(superuser: Superuser) -> None:
    superuser.execute(
        "ALTER TABLE customer_note ADD CONSTRAINT unchecked FOREIGN KEY (store_id, customer_id)"
        " REFERENCES customer (store_id, id) NOT VALID"
    )
    try:
        (found,) = drifts(superuser)
        assert (found.kind, found.found) == ("foreign key", "NOT VALID")
        fix(superuser, found)
        assert drifts(superuser) == []
    finally:
        superuser.execute("ALTER TABLE customer_note DROP CONSTRAINT unchecked")


def test_a_view_of_the_migrators_over_jobs_shows_those_of_all_stores(superuser: Superuser) -> None:
    with superuser.transaction(force_rollback=True):
        superuser.execute(
            "SET LOCAL ROLE migrator; CREATE VIEW waiting AS SELECT task, store_id, payload FROM salon_jobs_job;"
            "CREATE VIEW waiting_tasks AS SELECT task FROM waiting; CREATE VIEW customers AS SELECT * FROM customer;"
            "CREATE VIEW asked AS SELECT * FROM salon_jobs_job; ALTER VIEW asked SET (security_invoker = true);"
            "CREATE VIEW users AS SELECT * FROM auth_user; REVOKE ALL ON users FROM worker_runtime; RESET ROLE"
        )
        found = drifts(superuser)
        assert [(each.kind, each.where, each.needs_decision) for each in found] == [
            ("undeclared view", f'view "public"."{view}", role app', True) for view in ("waiting", "waiting_tasks")
        ]
        assert all(each.found == f"the eyes of migrator, who sees all rows of {JOB[6:]}" for each in found)
        fix(superuser, *found)
        assert drifts(superuser) == []


@pytest.mark.parametrize("kind", ["integer", "bigint", "uuid", "text", "varchar(254)", "varchar", "numeric(10, 2)"])
def test_a_membership_policy_is_known_again_whatever_the_users_key_is(superuser: Superuser, kind: str) -> None:
    with superuser.transaction(force_rollback=True):
        condition = user_condition("user", kind).as_string()
        superuser.execute(
            f'CREATE TABLE known ("user" {kind}); CREATE POLICY own ON known USING ({condition})'.encode()
        )
        [(shown,)] = superuser.execute("SELECT qual FROM pg_policies WHERE tablename = 'known'").fetchall()
    assert same_condition(condition, shown)


def test_a_key_of_the_same_store_that_is_gone_or_holds_no_store_is_made_and_validated(superuser: Superuser) -> None:
    name = "customer_note_customer_of_same_store"
    drop = f"ALTER TABLE customer_note DROP CONSTRAINT {name}"
    other = f"ALTER TABLE customer_note ADD CONSTRAINT {name} FOREIGN KEY (customer_id) REFERENCES customer (id)"
    for broken, told in (
        (drop, "none"),
        (f"{drop}; {other}", "FOREIGN KEY (customer_id) REFERENCES public.customer(id)"),
    ):
        superuser.execute(broken.encode())
        (found,) = drifts(superuser)
        assert (found.kind, found.found, name in found.where) == ("foreign key", told, True)
        fix_all(superuser)
        assert drifts(superuser) == []
        [(shown,)] = superuser.execute("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %s", [name])
        assert shown == (
            "FOREIGN KEY (store_id, customer_id) REFERENCES customer(store_id, id) DEFERRABLE INITIALLY DEFERRED"
        )
