"""One migrated database a worker, with the real roles, emptied after every test that uses it."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

import hypothesis
import psycopg
import pytest
from asgiref.sync import SyncToAsync
from django.db import connections
from django.test import TransactionTestCase
from psycopg import sql
from pytest_django.plugin import DjangoDbBlocker
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests import settings as test_settings
from tests import tasks as test_tasks
from tests.databases import bootstrapped, empty_url, environment, fresh, owned, preparing
from tests.interpreter import manage, succeed
from tests.support import a_process, new_store_id
from tests.tasks import Hooks

if TYPE_CHECKING:
    from tests.servers.base import Broker

# `make test-all` uses the profile "full"; "hard" is for a night's run, or after a change to a statement.
hypothesis.settings.register_profile("quick", max_examples=25, deadline=None, print_blob=True)
hypothesis.settings.register_profile("full", max_examples=75, deadline=None, print_blob=True)
hypothesis.settings.register_profile("hard", max_examples=2000, deadline=None, print_blob=True)
hypothesis.settings.load_profile("quick")

# A shell has what it starts in the background ignore Ctrl-C, nohup a closed terminal, and so all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

__all__ = [
    "bootstrapped",
    "empty_url",
    "fresh",
    "manage",
    "owned",
    "preparing",
]  # fixtures, and names that tests import from here

# The server may have these roles already, of an earlier run or a parallel one, with other passwords.
BOOTSTRAP = ("bootstrap_roles", "--share-roles", "--change-passwords", "--yes", "--database")

# Emptied after each test.
TABLES = (
    *("salon_jobs_job", "salon_jobs_job_error", "salon_jobs_process", "salon_jobs_cron_entry", "salon_jobs_cron_tick"),
    *(
        "salon_jobs_job_result",
        "salon_jobs_job_progress",
        "salon_jobs_job_step",
        "salon_jobs_superseded",
        "salon_jobs_limit",
        "salon_jobs_rate",
        "salon_jobs_ended_process",
        "salon_jobs_fan_out",
        "salon_jobs_unique",
        "salon_jobs_follow_up",
        "salon_jobs_flow",
        "salon_jobs_flow_member",
        "salon_jobs_flow_edge",
        "salon_jobs_change",
        "salon_jobs_ordered_key",
        "salon_jobs_ordered_job",
        "salon_jobs_task_minute",
    ),
    *("salon_jobs_schedule", "salon_jobs_schedule_tick"),
    *("salon_jobs_queue_minute", "salon_jobs_message", "salon_jobs_blocked_aggregate", "salon_jobs_partition"),
    *("salon_jobs_destination", "salon_jobs_inbox", "salon_jobs_replay"),
    *("sale", "reservation", "customer_note", "customer", "daily_sales", "operator_invitation", "membership"),
    *("parse_task", "source_file", "store", "operator_session", "operator", "django_admin_log"),
)
# TRUNCATE of all of them takes 95 ms; DELETE from empty ones, in one statement whose plan a connection keeps, and new
# sequences take 0.5 ms. Tables that have grown are truncated, so that no test reads another's dead rows.
EMPTY = "WITH {} SELECT".format(
    ", ".join(
        f"of{number} AS (DELETE FROM {rows})"
        for number, rows in enumerate(
            (
                *(*TABLES, "auth_user_user_permissions", "auth_user_groups"),
                "auth_user WHERE username <> 'operator'",  # who is signed in at the admin that tests/system serves
            )
        )
    )
)
RESTART = """
SELECT setval(seqrelid::regclass, 1, false) FROM pg_depend JOIN pg_sequence ON seqrelid = objid
 WHERE refobjid = ANY (%s::regclass[]) AND pg_sequence_last_value(seqrelid) IS NOT NULL
"""
LARGE = (
    "SELECT string_agg(name, ', ') FROM unnest(%s::text[]) AS name WHERE pg_relation_size(name::regclass) > 1024 * 1024"
)


# Files that one worker runs, since they start the same broker, or change the roles of the server or compare them.
SHARED = {
    "tests/brokers/": "brokers",
    "tests/tenancy/test_isolation_kit": "roles",
    "tests/integrations/test_first_mistakes": "roles",
    **{
        f"tests/access/test_{name}": "roles"
        for name in ("any_drift", "command", "drifts", "one_user", "start", "support")
    },
    **{
        f"tests/migrations/test_{name}": "roles" for name in ("late_store", "migrations", "second", "server", "through")
    },
}
KINDS = ("image", "system", "process", "database", "unit")
# What starts processes or databases; other tests that do have the mark.
PROCESS_FIXTURES = {"brokers", "fresh"}
PROCESS_FOLDERS = {"e2e", "demo", "docs", "deployment"}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Mark each test by its kind, and put first what takes longest."""
    for item in items:
        item.add_marker(_kind(item))
    yield
    items.sort(key=lambda item: next(n for n, kind in enumerate(KINDS) if item.get_closest_marker(kind)))


class ByFile(LoadScopeScheduling):
    """Keeps the tests of a file on one worker, and those of files that share a server of their own.

    pytest-xdist's ``loadgroup`` would do it by marks, but pytest 9.2 no longer shows it the names that it extends.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((group for place, group in SHARED.items() if file.startswith(place)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def _kind(item: pytest.Item) -> str:
    for kind in KINDS[:3]:
        if item.get_closest_marker(kind):
            return kind
    if PROCESS_FOLDERS.intersection(item.nodeid.split("/")):
        return "process"
    fixtures = set(getattr(item, "fixturenames", ()))
    if PROCESS_FIXTURES & fixtures:
        return "process"
    is_case = issubclass(getattr(item, "cls", None) or object, TransactionTestCase)
    return "database" if is_case or {"migrated", "django_db_setup"} & fixtures else "unit"


def pytest_configure(config: pytest.Config) -> None:
    """Let several runs at once delete the folders of earlier ones: pytest warns of what another has deleted."""
    config.addinivalue_line("filterwarnings", r"ignore:\(rm_rf\) error removing:pytest.PytestWarning")


def pytest_collection_finish() -> None:
    """Exclude what was imported and collected from every later garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _make_template(server: psycopg.Connection[Any]) -> None:
    """Bootstrap and migrate the template by the commands, as their roles, unless another worker has done so.

    Nobody may connect to it. The session's lock lasts until the connection is closed.
    """
    server.execute("SELECT pg_advisory_lock(hashtext(%s))", [test_settings.TEMPLATE])
    if server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [test_settings.TEMPLATE]).fetchone():
        return
    name = f"{test_settings.TEMPLATE}_new"
    urls = environment(name)
    succeed(*BOOTSTRAP, name, **urls)
    succeed("migrate", "--verbosity", "0", **urls)
    new, template = sql.Identifier(name), sql.Identifier(test_settings.TEMPLATE)
    server.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(new, template))
    server.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(template))


@contextmanager
def migrated_database() -> Generator[None]:
    """Copy the template for this worker, and drop the copy at the end."""
    database, template = (sql.Identifier(name) for name in (test_settings.TEST_DATABASE, test_settings.TEMPLATE))
    with psycopg.connect(os.environ["DATABASE_URL_BOOTSTRAP"], autocommit=True) as server:
        _make_template(server)
        server.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(database, template))
        # A copy has no rights on the database itself. The roles exist, with this run's passwords.
        succeed(*BOOTSTRAP, test_settings.TEST_DATABASE)
    yield
    connections.close_all()
    with psycopg.connect(os.environ["DATABASE_URL_BOOTSTRAP"], autocommit=True) as server:
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(database))


@pytest.fixture(scope="session")
def migrated(django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Connect Django to this worker's migrated database, once for all tests."""
    with migrated_database(), django_db_blocker.unblock():
        yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Drop the template, after the workers have ended; an embedded server goes with all it has."""
    if hasattr(session.config, "workerinput") or "DATABASE_URL_BOOTSTRAP" not in os.environ:
        return
    with psycopg.connect(os.environ["DATABASE_URL_BOOTSTRAP"], autocommit=True) as server:
        server.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(test_settings.TEMPLATE)))


def _forget_connections() -> None:
    for connection in connections.all(initialized_only=True):
        connection.close()
        del connections[connection.alias]


@pytest.fixture
def database(migrated: None) -> Iterator[None]:
    """Provide the empty, migrated database; ``default`` is the worker role, ``owner`` sees everything."""
    connections["owner"].ensure_connection()  # afterwards, a test's wrong settings may still apply
    # Rows that a test before has rolled back have taken numbers all the same.
    psycopg.Cursor[Any](connections["owner"].connection).execute(RESTART, [list(TABLES)])
    yield
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block or connection.needs_rollback:
            connection.close()
    # Coroutines of all tests use the ORM in one thread, whose connection may be another role's, or lost.
    SyncToAsync.single_thread_executor.submit(_forget_connections).result()
    connections["owner"].ensure_connection()
    connection = connections["owner"].connection
    connection.prepare_threshold = 0  # at once; Django's own cursors prepare nothing
    owner = psycopg.Cursor[Any](connection)
    owner.execute(EMPTY.encode())
    [(large,)] = owner.execute(LARGE, [list(TABLES)]).fetchall()
    if large:
        owner.execute(f"TRUNCATE {large} CASCADE".encode())


@pytest.fixture
def stores(database: None) -> list[UUID]:
    """Create three stores, in the order of their ids."""
    ids = sorted(new_store_id() for _ in range(3))
    with connections["owner"].cursor() as cursor:
        for number, store_id in enumerate(ids):
            cursor.execute("INSERT INTO store (id, name) VALUES (%s, %s)", [store_id, f"Salon {number}"])
    return ids


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    """Let a test replace the bodies of ``tests.tasks``; reset them afterwards."""
    yield test_tasks.hooks
    test_tasks.hooks.reset()


@pytest.fixture
def process_id(database: None) -> int:
    """Register a process row, as a worker would."""
    return a_process(pid=1)


@pytest.fixture(scope="session")
def brokers() -> Iterator[Callable[[str], Broker]]:
    """Return a broker of the registry by its name, running; each is started once for all tests."""
    from tests.servers.registry import BROKERS  # with the SDKs of all, which few tests need

    with ExitStack() as started:

        @cache
        def running(name: str) -> Broker:
            broker = BROKERS[name]()
            started.callback(broker.close)
            broker.start()
            return broker

        yield running


@pytest.fixture(scope="session")
def django_db_setup(migrated: None) -> None:
    """Let Django's TestCase use the migrated database, because the worker role may not create one."""
