"""Who may do what with the functions and tables of jobs and messages, as the real roles: code, SQL and triggers.

Which rows of which tables a role reaches is in ``matrix.py``; here are columns, states, functions and keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.db import DataError, IntegrityError, ProgrammingError, connections, transaction
from django.test import override_settings
from psycopg import errors

from salon_jobs import fan_out, tenant_context
from salon_jobs.access import job_tables
from salon_jobs.conf import settings as conf
from salon_jobs.conf.schema import ONE_USER
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.errors import EnqueueRefused
from salon_jobs.core.records import ActionResult
from salon_jobs.jobs import JobHandle, control
from tests import tasks
from tests.outbox.rows import ORDERS, block, blocked, statuses, write
from tests.support import change, claim, finish, new_store_id, seen
from tests.tenancy.canaries import NOW

ADD = "SELECT job_id FROM salon_jobs_add_job('test-store', '{}', %s, job_key => 'k')"
SALE = "INSERT INTO sale (id, store_id, sold_at, amount) VALUES (%s, %s, %s, 1)"
JOBS = "SELECT store_id FROM salon_jobs_job ORDER BY id"
web_and_worker = pytest.mark.parametrize("alias", ["web", "default"])


@pytest.fixture
def jobs(stores: list[UUID]) -> list[JobHandle]:
    """Add a job per store and one of no store; the owner sees all four."""
    handles = [tasks.in_store.enqueue(store_id=store) for store in stores]
    handles.append(tasks.system.enqueue())
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(4,)]
    return handles


@pytest.fixture
def as_web() -> Iterator[None]:
    """Make the web role's connection the one that jobs are enqueued on."""
    with override_settings(SALON_JOBS={**settings.SALON_JOBS, "DATABASE": "web"}):
        assert conf.database == "web"
        yield


def ask(alias: str, statement: str, *parameters: Any, store: UUID | None = None) -> list[tuple[Any, ...]]:
    """Run a statement as a role, in a transaction, as a store or as none."""
    with ExitStack() as stack:
        stack.enter_context(tenant_context(store, using=alias) if store else transaction.atomic(using=alias))
        cursor = stack.enter_context(connections[alias].cursor())
        cursor.execute(statement, parameters)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


def refused(alias: str, statement: str, *parameters: Any, store: UUID | None = None) -> str:
    """Assert that the role lacks a privilege for it, or that a policy forbids it."""
    with pytest.raises(ProgrammingError) as caught:
        ask(alias, statement, *parameters, store=store)
    assert isinstance(caught.value.__cause__, errors.InsufficientPrivilege), caught.value
    return str(caught.value)


# The web role and the job table


def test_web_updates_no_other_columns(jobs: list[JobHandle], stores: list[UUID]) -> None:
    """Than those that cancelling and retrying need."""
    for column in ("store_id", "task", "payload", "trace", "lease", "leased_by", "rescues", "id"):
        refused("web", f"UPDATE salon_jobs_job SET {column} = {column}", store=stores[0])


def test_web_moves_no_running_job(jobs: list[JobHandle], stores: list[UUID], process_id: int) -> None:
    """It moves others as cancelling and retrying do."""
    job_id = jobs[0].id
    with tenant_context(stores[0], using="web"):
        for state in ("running", "succeeded", "failed"):
            with pytest.raises(ProgrammingError, match=r"row-level security|Cannot update"):
                ask("web", "UPDATE salon_jobs_job SET state = %s RETURNING id", state)
        assert control.cancel_jobs([job_id], using="web") == [ActionResult(job_id, True)]
        assert control.retry_jobs([job_id], using="web") == [ActionResult(job_id, True)]
    [running] = [job for job in claim(process_id) if job.id == job_id]
    with tenant_context(stores[0], using="web"):
        assert ask("web", "SELECT state FROM salon_jobs_job") == [("running",)]
        assert ask("web", "SELECT id FROM salon_jobs_job FOR UPDATE") == [], "it cannot even hold up its finish"
        assert ask("web", "UPDATE salon_jobs_job SET priority = 0 RETURNING id") == []
        refused("web", "UPDATE salon_jobs_job SET lease = 1")
    assert finish(running, process_id)


def test_web_enqueues_for_current_store_alone(as_web: None, stores: list[UUID]) -> None:
    with tenant_context(stores[0]):
        for _ in range(2):
            tasks.keyed.enqueue(store_id=stores[0], number=1)
        tasks.keyed.using(job_key_mode="unsafe_dedupe").enqueue(store_id=stores[0], number=1)
        tasks.in_store.enqueue_many([tasks.in_store.call(store_id=stores[0])])
    for enqueue in (
        lambda: tasks.in_store.enqueue(store_id=stores[1]),
        lambda: tasks.keyed.enqueue(store_id=stores[1], number=1),
        lambda: tasks.keyed.using(job_key_mode="unsafe_dedupe").enqueue(store_id=stores[1], number=1),
        lambda: tasks.in_store.enqueue_many([tasks.in_store.call(store_id=stores[1])]),
    ):
        for current in (tenant_context(stores[0]), nullcontext()):
            with pytest.raises(EnqueueRefused, match="store_id is not the current store"), current:
                enqueue()
    with pytest.raises(EnqueueRefused, match="in a transaction"), tenant_context(stores[0], atomic=False):
        tasks.in_store.enqueue(store_id=stores[0])
    assert seen(JOBS) == [(stores[0],)] * 2


# Functions, from SQL


def test_owner_of_fan_out_function(database: None) -> None:
    """It bypasses policies, so nobody may be it, and it makes nothing."""
    owner = "worker_fanout_owner"
    flags = "SELECT rolcanlogin, rolbypassrls, rolsuper, has_schema_privilege(rolname, 'public', 'CREATE')"
    assert seen(f"{flags} FROM pg_roles WHERE rolname = %s", owner) == [(False, True, False, False)]
    runtimes = "unnest(ARRAY['app','worker_runtime','jobs_operator'])"
    assert seen(f"SELECT pg_has_role(r, %s, 'MEMBER') FROM {runtimes} AS r", owner) == [(False,)] * 3


def test_one_user_lets_no_other_list_stores(stores: list[UUID]) -> None:
    """Of a function that its creator may not withhold by default privileges, PUBLIC may execute it unless revoked."""
    declared = job_tables.fan_out_function(table="store", table_schema="public", key="id", roles=ONE_USER)
    with transaction.atomic(using="owner"):
        for statement in (*declared.drop(), *declared.create()):
            change(statement)
        assert ask("owner", "SELECT count(*) FROM list_store_ids_for_fan_out()") == [(3,)]
        may = "SELECT has_function_privilege('app', 'list_store_ids_for_fan_out()', 'EXECUTE')"
        assert seen(may) == [(False,)]
        transaction.set_rollback(True, using="owner")


def test_worker_alone_lists_stores(stores: list[UUID], as_web: None) -> None:
    listing = "SELECT store_id FROM public.list_store_ids_for_fan_out()"
    assert ask("default", listing) == [(store,) for store in stores]
    for alias in ("web", "operator"):
        refused(alias, listing)
    with pytest.raises(EnqueueRefused, match="salon_jobs_fan_out; a fan-out runs as the worker role"):
        fan_out(tasks.in_store)


@web_and_worker
def test_job_is_added_for_current_store_alone(stores: list[UUID], alias: str) -> None:
    own, other, _ = stores
    assert len(ask(alias, ADD, own, store=own)) == 1
    for of, current in ((other, own), (own, None), (new_store_id(), own), (new_store_id(), None)):
        assert "store_id is not the current store" in refused(alias, ADD, of, store=current)
    assert seen(JOBS) == [(own,)]


def test_many_jobs_for_another_store_are_refused(stores: list[UUID]) -> None:
    own, other, _ = stores
    stores_given = f"%s::{store_key().sql}[]"
    many = f"SELECT array_agg(job_id) FROM salon_jobs_add_jobs('test-store', ARRAY['{{}}', '{{}}'], {stores_given})"
    for of, current in (([own, other], own), ([other], own), ([own], None)):
        assert "store_id is not the current store" in refused("web", many, of, store=current)
    for allowed in ([own], [own, None]):  # one for all, or an element for each
        [(ids,)] = ask("web", many, allowed, store=own)
        assert ids == sorted(ids)
    assert seen(JOBS) == [(own,), (own,), (own,), (None,)]


@web_and_worker
def test_job_keys_of_two_stores(stores: list[UUID], alias: str) -> None:
    [first], [second] = (ask(alias, ADD, store, store=store) for store in stores[:2])
    assert first != second
    assert ask(alias, ADD, stores[0], store=stores[0]) == [first]
    assert seen(JOBS) == [(stores[0],), (stores[1],)]


@web_and_worker
def test_malformed_setting_adds_nothing(stores: list[UUID], alias: str) -> None:
    with transaction.atomic(using=alias):
        ask(alias, "SELECT set_config('app.current_store_id', 'all', true)")
        # Of texts, each could be a key: it is not this store's.
        text = "not the current store" if store_key().sql == "text" else "invalid input syntax for type"
        with pytest.raises((DataError, ProgrammingError), match=text):
            ask(alias, ADD, stores[0])
    assert seen(JOBS) == []


@pytest.mark.parametrize(
    "call",
    [
        "salon_jobs_add_job('ping')",
        "salon_jobs_add_jobs('ping', ARRAY['{}'])",
        "salon_jobs_enqueue('ping', '{}', NULL, '{}')",
    ],
)
def test_operator_adds_no_jobs(stores: list[UUID], call: str) -> None:
    assert "permission denied" in refused("operator", f"SELECT {call}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'ping', job_key => 'k', job_key_mode => 'always'", "job_key_mode is unknown"),
        ("'ping', job_key => 'k', job_key_mode => NULL", "job_key_mode is unknown"),
        ("'ping', max_attempts => 0::smallint", "salon_jobs_job_attempts"),
    ],
)
def test_wrong_call_is_refused(database: None, arguments: str, message: str) -> None:
    with pytest.raises((DataError, ProgrammingError, IntegrityError), match=message):
        ask("web", f"SELECT salon_jobs_add_job({arguments})")


def test_any_store_adds_and_replaces_system_jobs(as_web: None, stores: list[UUID]) -> None:
    """A documented limit: it is how the web enqueues them, whatever store is current."""
    handle = tasks.system.enqueue(note="from the web")
    assert seen("SELECT id, payload->>'note' FROM salon_jobs_job") == [(handle.id, "from the web")]
    add = "SELECT job_id, result FROM salon_jobs_add_job('test-keyed-system', %s, job_key => 'k:x')"
    [(job_id, result)] = ask("web", add, '{"note": "x"}', store=stores[0])
    assert result == "inserted"
    assert ask("web", add, '{"note": "y"}', store=stores[1]) == [(job_id, "replaced")]
    for current in (stores[0], None):
        assert ask("web", "SELECT * FROM salon_jobs_job", store=current) == [], "and nobody's to see"


# Triggers


@pytest.fixture
def trigger(stores: list[UUID]) -> Iterator[None]:
    """Add a job with every sale, for the store in the sale's row or, where the amount says so, for the second store."""
    change(
        "CREATE FUNCTION public.job_per_sale() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM public.salon_jobs_add_job('test-store', jsonb_build_object('number', NEW.amount),"
        f"  CASE NEW.amount WHEN 2 THEN (SELECT current_setting('test.other')::{store_key().sql})"
        "  ELSE NEW.store_id END);"
        " RETURN NULL; END $$"
    )
    change("GRANT EXECUTE ON FUNCTION public.job_per_sale() TO app, worker_runtime")
    change("CREATE TRIGGER job_per_sale AFTER INSERT OR UPDATE ON sale FOR EACH ROW EXECUTE FUNCTION job_per_sale()")
    yield
    change("DROP TRIGGER job_per_sale ON sale")
    change("DROP FUNCTION public.job_per_sale")


@web_and_worker
def test_trigger_adds_job_of_its_store(stores: list[UUID], trigger: None, alias: str) -> None:
    own, other, _ = stores
    ask(alias, SALE, uuid4(), own, NOW, store=own)
    assert seen(JOBS) == [(own,)]
    assert "row-level security" in refused(alias, SALE, uuid4(), other, NOW, store=own)
    ask(alias, "UPDATE sale SET amount = 1", store=other)
    assert seen(JOBS) == [(own,)], "another store's update reaches no row, so it fires nothing"
    with tenant_context(own, using=alias):
        ask(alias, SALE, uuid4(), own, NOW)
        transaction.set_rollback(True, using=alias)
    assert seen(JOBS) == [(own,)], "rolled back with the sale"


@web_and_worker
def test_trigger_for_another_store_fails(stores: list[UUID], trigger: None, alias: str) -> None:
    """It takes its statement along."""
    own, other, _ = stores
    ask(alias, SALE, uuid4(), own, NOW, store=own)
    sneak = "WITH setting AS (SELECT set_config('test.other', %s, true)) UPDATE sale SET amount = 2 FROM setting"
    assert "store_id is not the current store" in refused(alias, sneak, str(other), store=own)
    assert seen(JOBS) == [(own,)]
    assert seen("SELECT amount FROM sale") == [(1,)]


# Messages

EMIT = "SELECT salon_jobs_emit(%s, '7', 'made', '{}')"
EMIT_MANY = (
    "SELECT salon_jobs_emit_many(ARRAY[gen_random_uuid()], ARRAY[%s], ARRAY['7'], ARRAY['made'], ARRAY['{}'],"
    " ARRAY['{}'], 'till')::text"
)


@pytest.fixture
def messages(stores: list[UUID]) -> list[int]:
    """Write a failed message of each store that holds back its aggregate, and one of no store."""
    ids = [write("failed", aggregate=str(number), store=store) for number, store in enumerate(stores)]
    for head in ids:
        block(head, "parked")
    return [*ids, write()]


@pytest.mark.parametrize("statement", [EMIT, EMIT_MANY])
def test_web_emits_for_current_store(messages: list[int], stores: list[UUID], statement: str) -> None:
    for current in (stores[1], None):
        ask("web", statement, ORDERS, store=current)
    written = seen("SELECT store_id FROM salon_jobs_message WHERE id > %s ORDER BY id", messages[-1])
    assert written == [(stores[1],), (None,)]
    refused("operator", statement, ORDERS)


def test_web_skips_messages_of_current_store(messages: list[int], stores: list[UUID]) -> None:
    skip = "SELECT salon_jobs_skip_messages(%s)"
    assert ask("web", skip, messages) == []
    assert ask("web", skip, messages, store=stores[1]) == [(messages[1],)]
    assert statuses() == dict(zip(messages, ("failed", "skipped", "failed", "pending"), strict=True))
    assert [row[0] for row in blocked()] == [messages[0], messages[2]]


def test_web_reads_neither_gate_nor_sequence(stores: list[UUID]) -> None:
    for call in ("salon_jobs_gate()", "nextval('salon_jobs_message_id_seq')"):
        refused("web", f"SELECT {call}", store=stores[0])
