"""Every way round a plain SELECT to another store's rows, tried as the web's role inside one store.

What cannot be closed is tested too, so that docs/security.md says no less than what is so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import transaction
from psycopg import errors, sql

from salon_jobs import schedule, tenant_context
from salon_jobs.jobs import control, enqueue
from tests import tasks
from tests.settings import url_for
from tests.support import change, seen
from tests.tenancy.matrix import MATRIX
from tests.waiting import LIMIT_S

Connection: TypeAlias = psycopg.Connection[Any]
SECRET = "secret of another store"
INSERT = "INSERT INTO customer (id, store_id, name, email) VALUES (%s, %s, %s, '')"


@dataclass(frozen=True, slots=True)
class Two:
    """A store and another one, each with customers; the other's are called the secret."""

    own: UUID
    other: UUID
    own_customer: UUID
    other_customer: UUID


@pytest.fixture
def two(stores: list[UUID]) -> Two:
    """Fill the tables as the superuser: ten customers each, the own ones named by numbers."""
    scene = Two(stores[0], stores[1], uuid4(), uuid4())
    for store, customer, name in ((scene.own, scene.own_customer, "1"), (scene.other, scene.other_customer, SECRET)):
        for number in range(10):
            change(INSERT, uuid4() if number else customer, store, name)
    change("ANALYZE customer")
    assert seen("SELECT store_id, count(*) FROM customer GROUP BY 1 ORDER BY 1") == [(scene.own, 10), (scene.other, 10)]
    return scene


@pytest.fixture
def web(two: Two) -> Iterator[Connection]:
    """Log in as the web's role and be the own store for one transaction."""
    with psycopg.connect(url_for("app")) as connection:
        be(connection, two.own)
        yield connection
        connection.rollback()


@pytest.fixture
def superuser(two: Two) -> Iterator[Connection]:
    """Open a transaction as the superuser, which sees everything, and roll it back at the end."""
    with psycopg.connect(url_for(None)) as connection:
        connection.execute("SELECT")  # begins it: otherwise ``ask`` would commit
        yield connection
        connection.rollback()


def be(connection: Connection, store: UUID | str) -> None:
    connection.execute("SELECT set_config('app.current_store_id', %s, true)", [str(store)])


def ask(connection: Connection, statement: Any, *parameters: Any) -> list[tuple[Any, ...]]:
    """Run a statement in a savepoint and return its rows."""
    with connection.transaction():
        cursor = connection.execute(statement.encode() if isinstance(statement, str) else statement, parameters)
        return cursor.fetchall() if cursor.description else []


def error(connection: Connection, statement: Any, *parameters: Any) -> psycopg.Error:
    """Run a statement that must fail, and return the error."""
    with pytest.raises(psycopg.Error) as caught:
        ask(connection, statement, *parameters)
    return caught.value


def text(failure: psycopg.Error) -> str:
    diag = failure.diag
    return " ".join(filter(None, (diag.message_primary, diag.message_detail, diag.message_hint, diag.context)))


def denied(connection: Connection, statement: Any, *parameters: Any) -> str:
    """Run a statement that privileges or policies must refuse, and return the message."""
    failure = error(connection, statement, *parameters)
    assert isinstance(failure, errors.InsufficientPrivilege)
    return text(failure)


# Constraints


def test_unique_violation_shows_no_value(web: Connection, two: Two) -> None:
    taken = error(web, INSERT, two.other_customer, two.own, "")
    assert isinstance(taken, errors.UniqueViolation)
    assert taken.diag.constraint_name == "customer_pkey"
    assert taken.diag.message_detail is None, "under row-level security PostgreSQL leaves the key out"


def test_unique_indexes_begin_with_store(database: None) -> None:
    of_stores = {name: table.store for name, table in MATRIX.items() if table.store}
    indexes = seen(
        "SELECT i.indexrelid::regclass::text, c.relname, array_agg(a.attname::text ORDER BY k.ord)"
        " FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid"
        " CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (attnum, ord)"
        " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
        " WHERE i.indisunique AND c.relname = ANY (%s) GROUP BY 1, 2",
        list(of_stores),
    )
    others = {name for name, table, columns in indexes if columns[0] != of_stores[table] and columns != ["id"]}
    # Jobs' keys are unique by task, store and key. Message ids and public ids are random, and the web writes no blocked
    # aggregates, no results, no steps, and ticks of its own schedules alone. Flows and ordered jobs get their rows from
    # functions, by the ids of jobs.
    allowed = (
        "flow_member_pkey flow_edge_once job_public_id job_progress_pkey job_result_pkey job_result_public_id_key"
        " job_step_once ordered_job_pkey job_waiting_key message_once blocked_aggregate_one"
        " blocked_aggregate_head_id_key schedule_tick_number"
    )
    assert others == {f"salon_jobs_{name}" for name in allowed.split()}


def test_foreign_key_to_hidden_row(web: Connection, two: Two) -> None:
    web.execute("SET CONSTRAINTS ALL IMMEDIATE")
    insert = "INSERT INTO customer_note (id, store_id, customer_id, body) VALUES (%s, %s, %s, '')"
    missing = uuid4()
    for store, customer in ((two.own, two.other_customer), (two.own, missing)):
        failure = error(web, insert, uuid4(), store, customer)
        assert isinstance(failure, errors.ForeignKeyViolation)
        assert failure.diag.constraint_name == "customer_note_customer_of_same_store"
        message = text(failure).replace(str(customer), "X")
        assert message == text(error(web, insert, uuid4(), store, missing)).replace(str(missing), "X")
    assert ask(web, insert, uuid4(), two.own, two.own_customer) == []


def test_foreign_keys_include_store(database: None) -> None:
    keys = seen(
        "SELECT conname, conrelid::regclass::text, confrelid::regclass::text,"
        " ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = conrelid AND attnum = ANY (conkey)),"
        " ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = confrelid AND attnum = ANY (confkey))"
        " FROM pg_constraint WHERE contype = 'f'"
    )
    between = [key for key in keys if MATRIX[key[1]].store and MATRIX[key[2]].store]
    assert len(between) >= 8
    for name, table, target, columns, referenced in between:
        assert MATRIX[table].store in columns, name
        assert MATRIX[target].store in referenced, name


def test_on_conflict_with_hidden_row(web: Connection, two: Two) -> None:
    insert = f"{INSERT} ON CONFLICT (id) "
    hidden, own = (two.other_customer, two.own, "mine"), (two.own_customer, two.own, "mine")
    assert ask(web, insert + "DO NOTHING RETURNING name", *hidden) == []
    assert ask(web, insert + "DO NOTHING RETURNING name", uuid4(), two.own, "mine") == [("mine",)]
    update = insert + "DO UPDATE SET name = customer.name || '!' RETURNING name"
    assert ask(web, update, *own) == [("1!",)]
    assert SECRET not in denied(web, update, *hidden)
    merge = (
        "MERGE INTO customer c USING (SELECT %s::uuid AS id) AS s ON c.id = s.id"
        " WHEN MATCHED THEN UPDATE SET name = 'taken' WHEN NOT MATCHED THEN DO NOTHING"
    )
    assert web.execute(merge, [two.other_customer]).rowcount == 0
    web.commit()
    assert seen("SELECT name FROM customer WHERE id = %s", two.other_customer) == [(SECRET,)]


# Error texts and functions


def test_failing_conditions_meet_own_rows_alone(web: Connection) -> None:
    """A cast of the other's name to a number would fail and quote it."""
    assert ask(web, "SELECT count(*) FROM customer WHERE name::integer > 0") == [(10,)]
    assert ask(web, "SELECT count(*) FROM customer TABLESAMPLE SYSTEM (100) WHERE name::integer > 0") == [(10,)]
    assert ask(web, "SELECT sum(1 / (CASE name WHEN %s THEN 0 ELSE 1 END)) FROM customer", SECRET) == [(10,)]
    assert ask(web, "SELECT max(name), min(name), array_agg(DISTINCT name) FROM customer") == [("1", "1", ["1"])]


@pytest.mark.parametrize("leakproof", [False, True])
def test_cheap_function_is_called_after_policy(superuser: Connection, two: Two, leakproof: bool) -> None:
    """Unless it is declared leakproof."""
    notices: list[str | None] = []
    superuser.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    superuser.execute(
        "CREATE FUNCTION public.talk(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS"
        " $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$"
    )
    if leakproof:
        superuser.execute("ALTER FUNCTION public.talk LEAKPROOF")
    superuser.execute("GRANT EXECUTE ON FUNCTION public.talk TO app")
    superuser.execute("SET LOCAL ROLE app")
    be(superuser, two.own)
    superuser.execute("SET LOCAL enable_indexscan = off")
    superuser.execute("SET LOCAL enable_bitmapscan = off")
    assert len(ask(superuser, "SELECT 1 FROM customer WHERE public.talk(name)")) == 10
    assert (SECRET in notices) == leakproof, "so a function of one's own is never LEAKPROOF"


# The functions that run as their owner, by who may call them.
_OF_BOTH = "add_flow add_flow_members add_follow_up add_jobs cancel change_schedules emit emit_many enqueue get_result"
_DEFINERS = {
    "app": f"{_OF_BOTH} set_schedule skip_messages",
    "worker_runtime": f"{_OF_BOTH} set_schedule enqueue_follow_up gate move_flow_members start_ordered",
    "jobs_operator": "cancel change_schedules gate",
}


def test_functions_of_ours_open_no_way(database: None) -> None:
    """None is leakproof; those that run as their owner fix their search path, and each role may call what it needs."""
    rows = seen(
        "SELECT proname, proleakproof, prosecdef, proconfig::text FROM pg_proc"
        " WHERE pronamespace = 'public'::regnamespace"
    )
    assert not [name for name, leakproof, _, _ in rows if leakproof]
    assert all("search_path=pg_catalog" in (config or "") for _, _, definer, config in rows if definer)
    for role, names in _DEFINERS.items():
        allowed = seen(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosecdef"
            " AND has_function_privilege(%s, oid, 'EXECUTE')",
            role,
        )
        ours = {f"salon_jobs_{name}" for name in names.split()}
        of_project = {"list_store_ids_for_fan_out", "delete_expired_operator_invitations"}
        assert {name for (name,) in allowed} == ours | (of_project if role == "worker_runtime" else set()), role


def test_functions_do_nothing_for_another_store(web: Connection, two: Two) -> None:
    job = tasks.keyed.enqueue(store_id=two.other, number=1)
    assert ask(web, "SELECT * FROM salon_jobs_cancel(ARRAY[%s]::bigint[])", job.id) == []
    add = "SELECT job_id, result FROM salon_jobs_add_job('test-keyed', '{}', %s, job_key => 'k:1', job_key_mode => %s)"
    for mode in ("replace", "preserve_run_at", "unsafe_dedupe"):
        assert "is not the current store" in text(error(web, add, two.other, mode))
        [(own, _)] = ask(web, add, two.own, mode)
        assert own != job.id, "the same key of another store is another key"
    assert seen("SELECT state FROM salon_jobs_job WHERE id = %s", job.id) == [("queued",)]


def test_run_of_schedule_shows_own_job_alone(web: Connection, two: Two) -> None:
    """The history tells nothing of a job whose number somebody has tried, nor of the next one to come."""
    with tenant_context(two.own):
        handle = schedule(tasks.in_store.call(store_id=two.own), every=timedelta(hours=1), key="k")
    jobs = [tasks.in_store.enqueue(store_id=store) for store in (two.other, two.own)]
    change("UPDATE salon_jobs_job SET tick = now() + interval '1 day'")
    ran = "SELECT FROM salon_jobs_change_schedules('ran', ARRAY[%s]::bigint[], '{}', job_id => %s)"
    for job in (*(job.id for job in jobs), jobs[1].id + 1):
        ask(web, ran, handle.id, job)
    web.commit()
    change("UPDATE salon_jobs_job SET state = 'cancelled', reason = 'closed', finished_at = now()")
    change("DELETE FROM salon_jobs_job")
    be(web, two.own)
    later = "tick_at > now() + interval '1 hour'"
    none = (None, "ended", False)
    history = ask(web, f"SELECT job_id, outcome, {later} FROM salon_jobs_schedule_tick ORDER BY number")
    assert history == [none, (jobs[1].id, "cancelled: closed", True), none]


def test_errors_of_policies_quote_no_row(web: Connection, two: Two) -> None:
    for statement, parameters in (
        (INSERT, [uuid4(), two.other, "typed"]),
        ("UPDATE customer SET store_id = %s", [two.other]),
    ):
        assert denied(web, statement, *parameters) == 'new row violates row-level security policy for table "customer"'


# Views


def test_view_of_migrator_shows_no_other_store(superuser: Connection, two: Two) -> None:
    """Under FORCE its owner, as whom it reads, is bound as well, and fails without a store."""
    superuser.execute("SET LOCAL ROLE migrator")
    ask(superuser, "CREATE VIEW public.plain AS SELECT store_id, name FROM customer")
    ask(superuser, "CREATE VIEW public.invoker WITH (security_invoker) AS SELECT store_id, name FROM customer")
    stored = "CREATE MATERIALIZED VIEW public.stored AS SELECT store_id, name FROM customer"
    for role, statement in (("migrator", stored), ("app", "SELECT FROM public.plain")):
        ask(superuser, f"SET LOCAL ROLE {role}")
        with pytest.raises(errors.InvalidTextRepresentation, match="no store is set"):
            ask(superuser, statement)
    be(superuser, two.own)
    assert ask(superuser, "SELECT DISTINCT store_id FROM public.invoker") == [(two.own,)]
    assert ask(superuser, "SELECT DISTINCT store_id FROM public.plain") in ([], [(two.own,)])


def test_view_of_superuser_shows_every_store(superuser: Connection, two: Two) -> None:
    """Why the matrix refuses a view that nobody declared."""
    for name, option, expected in (("plain", "", 2), ("invoker", "WITH (security_invoker)", 1)):
        ask(superuser, f"CREATE VIEW {name} {option} AS SELECT store_id FROM customer")
        ask(superuser, f"GRANT SELECT ON {name} TO app")
        superuser.execute("SET LOCAL ROLE app")
        be(superuser, two.own)
        assert len(ask(superuser, f"SELECT DISTINCT store_id FROM {name}")) == expected
        superuser.execute("RESET ROLE")


# What outlives a switch of the store on one connection


def test_server_side_cursor_keeps_its_store(web: Connection, two: Two) -> None:
    web.execute("SET LOCAL cursor_tuple_fraction = 0.01")
    web.execute("DECLARE c CURSOR FOR SELECT store_id FROM customer")
    assert ask(web, "FETCH 1 FROM c") == [(two.own,)]
    be(web, two.other)
    assert ask(web, "FETCH ALL FROM c") == [(two.own,)] * 9
    be(web, two.own)
    with web.cursor(name="django") as cursor:
        cursor.itersize = 1
        cursor.execute("SELECT store_id FROM customer")
        first = cursor.fetchone()
        be(web, two.other)
        assert {first, *cursor.fetchall()} == {(two.own,)}


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
def test_prepared_statement_follows_switch(web: Connection, two: Two, mode: str) -> None:
    web.execute(sql.SQL("SET LOCAL plan_cache_mode = {}").format(sql.Literal(mode)))
    web.execute("PREPARE p AS SELECT DISTINCT store_id FROM customer")
    for store, expected in ((two.own, [(two.own,)]), (two.other, [(two.other,)]), ("", []), (two.own, [(two.own,)])):
        be(web, store)
        assert ask(web, "EXECUTE p") == expected


def test_prepared_statement_follows_role(superuser: Connection, two: Two) -> None:
    superuser.execute("PREPARE p AS SELECT count(*) FROM customer")
    assert ask(superuser, "EXECUTE p") == [(20,)]
    superuser.execute("SET LOCAL ROLE app")
    be(superuser, two.own)
    assert ask(superuser, "EXECUTE p") == [(10,)]


def test_last_id_of_another_request(web: Connection, two: Two) -> None:
    web.execute("SELECT salon_jobs_add_job('test-store', store_id => %s)", [two.own])
    for function in ("lastval()", "currval('salon_jobs_job_id_seq')", "nextval('salon_jobs_job_id_seq')"):
        denied(web, f"SELECT {function}")


# Statistics, plans, sequences: sums over all stores


def test_column_statistics_are_hidden(web: Connection, superuser: Connection) -> None:
    superuser.execute("CREATE STATISTICS public.together ON name, store_id FROM customer")
    superuser.execute("ANALYZE customer")
    superuser.commit()
    for view in ("pg_stats", "pg_stats_ext"):
        query = f"SELECT count(*) FROM {view} WHERE tablename = 'customer'"
        [(all_of_it,)] = ask(superuser, query)
        assert all_of_it > 0
        assert ask(web, query) == [(0,)]
    for catalogue in ("pg_statistic", "pg_statistic_ext_data"):
        denied(web, f"SELECT * FROM {catalogue}")
    superuser.execute("DROP STATISTICS public.together")
    superuser.commit()


def test_counts_over_all_stores_are_visible(web: Connection) -> None:
    """A documented limit: who may run SQL of their own learns how many rows the tables hold, of all stores."""
    assert ask(web, "SELECT reltuples FROM pg_class WHERE relname = 'customer'") == [(20,)]
    web.execute("SET LOCAL enable_indexscan = off")
    web.execute("SET LOCAL enable_bitmapscan = off")
    plan = "\n".join(line for (line,) in ask(web, "EXPLAIN (ANALYZE, VERBOSE) SELECT * FROM customer"))
    assert "Rows Removed by Filter: 10" in plan
    assert SECRET not in plan


def test_estimates_come_from_values_of_all_stores(web: Connection) -> None:
    """A documented limit: EXPLAIN with a guessed value tells whether it is a frequent one, in whatever store."""

    def estimate(name: str) -> int:
        query = "EXPLAIN (FORMAT JSON) SELECT * FROM customer WHERE name = %s"
        with psycopg.ClientCursor(web) as cursor:
            [(plan,)] = cursor.execute(query, [name]).fetchall()
        return int(plan[0]["Plan"]["Plan Rows"])

    assert estimate(SECRET) > estimate("what nobody is called")


def test_ids_of_jobs_count_all_stores(web: Connection, two: Two) -> None:
    """A documented limit: the ids of a store's own jobs grow with everybody's."""
    denied(web, "SELECT last_value FROM salon_jobs_job_id_seq")
    visible = "SELECT last_value FROM pg_sequences WHERE sequencename = 'salon_jobs_job_id_seq'"
    assert ask(web, visible) == [(None,)]
    first, _, third = (tasks.in_store.enqueue(store_id=store) for store in (two.own, two.other, two.own))
    assert third.id - first.id == 2


# Between sessions


def test_wake_ups_carry_neither_store_nor_payload(web: Connection, two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    web.rollback()
    web.execute("LISTEN salon_jobs_job")
    web.commit()
    enqueue.wake_ups.reset()
    job = tasks.keyed.enqueue(store_id=two.other, number=7, note=SECRET)
    control.cancel_jobs([job.id])
    change("SELECT pg_notify('salon_jobs_job', 'end')")
    notices: list[tuple[str, str]] = []
    for notify in web.notifies(timeout=LIMIT_S):
        notices.append((notify.channel, notify.payload))
        if notify.payload == "end":
            break
    assert set(notices) <= {("salon_jobs_job", payload) for payload in ("", "more", "cancel", "end")}
    assert len(notices) >= 2


def test_advisory_locks_can_be_felt(web: Connection, two: Two) -> None:
    """A documented limit: who may run SQL of their own can wait for, or hold up, a key it can guess."""
    with transaction.atomic():
        tasks.keyed.using(job_key_mode="unsafe_dedupe").enqueue(store_id=two.other, number=7)
        rows = ask(web, "SELECT * FROM pg_locks WHERE locktype = 'advisory' AND granted")
        assert len(rows) >= 2
        assert str(two.other) not in str(rows)
        parts = "concat_ws(E'\\x1f', 'test-keyed', %s::text, 'k:7')"
        felt = f"SELECT pg_try_advisory_xact_lock(hashtextextended({parts}, 0))"
        assert ask(web, felt, str(two.other)) == [(False,)]
        assert ask(web, felt, str(two.own)) == [(True,)]


def test_query_texts_of_other_sessions(web: Connection, two: Two) -> None:
    """A documented limit: sessions of one role see each other's text, so literals in it are readable."""

    def text_of(connection: Connection) -> str:
        ask(web, "SELECT pg_stat_clear_snapshot()")
        [(query,)] = ask(web, "SELECT query FROM pg_stat_activity WHERE pid = %s", connection.info.backend_pid)
        return str(query)

    with psycopg.connect(url_for("worker_runtime")) as worker, psycopg.connect(url_for("app")) as another:
        worker.execute("SELECT 1")
        assert text_of(worker) == "<insufficient privilege>"
        another.execute("SELECT %s::text", [SECRET])
        assert text_of(another) == "SELECT $1::text"
        psycopg.ClientCursor(another).execute("SELECT %s::text", [SECRET])
        assert text_of(another) == f"SELECT '{SECRET}'::text"


def test_large_objects_know_no_store(web: Connection, two: Two) -> None:
    """A documented limit: they belong to the role, so no tenant's data goes there; none of ours does."""
    assert seen("SELECT count(*) FROM pg_largeobject_metadata") == [(0,)]
    [(oid,)] = ask(web, "SELECT lo_from_bytea(0, %s)", SECRET.encode())
    be(web, two.other)
    assert ask(web, "SELECT lo_get(%s)", oid) == [(SECRET.encode(),)]


# What a runtime role cannot make


@pytest.mark.parametrize("role", ["app", "worker_runtime", "jobs_operator"])
def test_runtime_role_cannot_make_itself_a_way(two: Two, role: str) -> None:
    statements = (
        "CREATE TEMP TABLE kept AS SELECT 1",
        "CREATE TABLE public.kept (id integer)",
        "CREATE SCHEMA kept",
        "CREATE FUNCTION public.kept() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "CREATE FUNCTION pg_temp.kept() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "CREATE OPERATOR public.=== (FUNCTION = texteq, LEFTARG = text, RIGHTARG = text)",
        "CREATE VIEW public.kept AS SELECT 1",
        "CREATE POLICY open ON customer USING (true)",
        "ALTER TABLE customer DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE customer NO FORCE ROW LEVEL SECURITY",
        "SET session_replication_role = replica",
        "SET ROLE migrator",
        "SET ROLE worker_fanout_owner",
        "SET SESSION AUTHORIZATION migrator",
        "COPY (SELECT 1) TO PROGRAM 'cat'",
        "SELECT pg_read_file('postgresql.conf')",
    )
    with psycopg.connect(url_for(role)) as connection:
        be(connection, two.own)
        for statement in statements:
            denied(connection, statement)


@pytest.mark.contrib
@pytest.mark.parametrize("role", ["app", "worker_runtime", "jobs_operator"])
def test_runtime_role_creates_no_extension(database: None, role: str) -> None:
    with psycopg.connect(url_for(role)) as connection:
        denied(connection, "CREATE EXTENSION postgres_fdw")


def test_switching_row_security_off_is_error(web: Connection) -> None:
    web.execute("SET LOCAL row_security = off")
    assert "would be affected by row-level security" in denied(web, "SELECT * FROM customer")


def test_any_store_can_be_named_but_not_listed(web: Connection, two: Two) -> None:
    """A documented limit: the setting is not a password. Ids are random, and the web cannot look them up."""
    be(web, two.other)
    assert ask(web, "SELECT DISTINCT name FROM customer") == [(SECRET,)]
    be(web, two.own)
    assert ask(web, "SELECT id FROM store") == [(two.own,)]
    for listing in ("list_store_ids_for_fan_out()", "delete_expired_operator_invitations(now())"):
        denied(web, f"SELECT * FROM public.{listing}")
