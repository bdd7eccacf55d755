"""Tests the demo's migrations with one database user: no roles, and the clean-up function still reaches all stores."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from tests.conftest import manage
from tests.settings import PASSWORD, url_for

EACH_STORE = """
from django.apps import apps
from django.db import connection
from django.db.migrations.state import ProjectState
from salon_jobs.access.operations import RunForEachStore
def count(apps, editor, store_id):
    print(store_id, 'has', apps.get_model('salon', 'OperatorInvitation').objects.count())
state = ProjectState.from_apps(apps)
with connection.schema_editor() as editor:
    RunForEachStore(count).database_forwards('salon', editor, state, state)
"""
NAME = f"salon_one_user_{secrets.token_hex(4)}"


@pytest.fixture
def one_user_url() -> Iterator[str]:
    """Give a database owned by an ordinary login, and drop both."""
    name = sql.Identifier(NAME)
    with psycopg.connect(url_for(None, "postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(PASSWORD)))
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, name))
        yield url_for(NAME, NAME)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
        connection.execute(sql.SQL("DROP ROLE {}").format(name))


@pytest.mark.slow
def test_migrations_and_the_cleanup_function_work(one_user_url: str) -> None:
    environment = {"DJANGO_SETTINGS_MODULE": "tests.demo.one_user_settings", "DATABASE_URL_MIGRATOR": one_user_url}
    done = manage("migrate", "--verbosity", "0", **environment)
    assert done.returncode == 0, done.stderr

    stores = [uuid4(), uuid4()]
    with psycopg.connect(url_for(None, NAME)) as owner:
        for store in stores:
            owner.execute("INSERT INTO store (id, name) VALUES (%s, 'Salon')", [store])
            for days in (-1, 1):
                insert = """
                    INSERT INTO operator_invitation (id, store_id, email, token, expires_at)
                    VALUES (
                        gen_random_uuid(), %s, 'a@chain.example', gen_random_uuid(), now() + make_interval(days => %s)
                    )
                """
                owner.execute(insert, [store, days])
    with psycopg.connect(one_user_url) as connection:
        connection.execute("SELECT set_config('app.current_store_id', %s, true)", [str(stores[0])])
        assert connection.execute("SELECT count(*) FROM operator_invitation").fetchall() == [(2,)]
        assert connection.execute("SELECT delete_expired_operator_invitations(now())").fetchall() == [(2,)]
        assert connection.execute("SELECT count(*) FROM operator_invitation").fetchall() == [(1,)]

    done = manage("shell", "-v", "0", "-c", EACH_STORE, **environment, DATABASE_URL=one_user_url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{store} has 1" for store in sorted(stores)]

    done = manage("migrate", "salon", "zero", "--verbosity", "0", **environment)
    assert done.returncode == 0, done.stderr
