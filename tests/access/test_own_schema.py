"""Schemas other than ``public``: of one user's tables, and of the function of all triggers."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.databases import rows
from tests.interpreter import manage, succeed
from tests.migrations.operations import succeed_together
from tests.settings import url_for

pytestmark = pytest.mark.process
TRIGGERS = "SELECT pronamespace::regnamespace::text FROM pg_proc WHERE proname = '_pgtrigger_should_ignore'"


def test_login_without_rights_in_public(fresh: str, owned: Callable[[str], dict[str, str]]) -> None:
    """The setting that is missing is named; with it, all works, and nothing drifts."""
    environment = owned("tests.migrations.own_schema_settings")
    with psycopg.connect(url_for(None, fresh), autocommit=True) as server:
        for statement in (
            "ALTER SCHEMA public OWNER TO CURRENT_USER",
            f"REVOKE ALL ON SCHEMA public FROM PUBLIC, {fresh}",
            f"CREATE SCHEMA shop AUTHORIZATION {fresh}",
            f"ALTER ROLE {fresh} IN DATABASE {fresh} SET search_path = shop",
        ):
            server.execute(statement.encode())
        refused = manage("migrate", **environment)
        assert refused.returncode == 1
        assert "PGTRIGGER_SCHEMA = 'shop'" in refused.stderr
        environment["TRIGGERS_IN"] = "shop"
        succeed("migrate", "--verbosity", "0", **environment)
    assert rows(fresh, TRIGGERS) == [("shop",)]
    said = succeed_together(
        ("makemigrations", "salon_jobs", "--check", "--dry-run"),
        ("salon_jobs", "doctor"),
        ("check", "--database", "default"),
        ("migrate", "salon_jobs", "zero", "--verbosity", "0"),
        **environment,
    )
    assert "no drift" in said
    assert "no issues" in said
    assert rows(fresh, TRIGGERS) == []
    # The function that lists the stores has its place in public.
    environment |= {"TENANTS_STORE_MODEL": "tenants.Store", "TENANTS_FIRST": "1"}
    refused = manage("migrate", **environment)
    assert (refused.returncode, refused.stdout) == (1, "")
    statement = f'GRANT USAGE, CREATE ON SCHEMA "public" TO "{fresh}"'
    assert statement in refused.stderr
    with psycopg.connect(url_for(None, fresh), autocommit=True) as server:
        server.execute(statement.encode())
    succeed("migrate", "--verbosity", "0", **environment)


def test_triggers_elsewhere_with_roles(fresh: str, bootstrapped: dict[str, str]) -> None:
    """Every role that writes may call the function that triggers share, wherever it is."""
    environment = {**bootstrapped, "DJANGO_SETTINGS_MODULE": "tests.migrations.triggers_elsewhere_settings"}
    with psycopg.connect(url_for(None, fresh), autocommit=True) as server:
        server.execute("CREATE SCHEMA shop AUTHORIZATION migrator")
    succeed("migrate", "--verbosity", "0", **environment)
    assert rows(fresh, TRIGGERS) == [("shop",)]
    roles = "rolname IN ('app', 'worker_runtime', 'jobs_operator')"
    may_use = f"SELECT DISTINCT has_schema_privilege(rolname, 'shop', 'USAGE') FROM pg_roles WHERE {roles}"
    assert rows(fresh, may_use) == [(True,)]
    assert "no drift" in succeed("salon_jobs", "doctor", **environment)
