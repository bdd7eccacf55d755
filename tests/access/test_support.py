"""The role that reads the rows of all stores and changes nothing: bootstrapped beside tables that were there before."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import RequestFactory, override_settings
from django.urls import path

from project.salon.models import Customer
from salon_jobs.access.bootstrap import bootstrap
from salon_jobs.access.doctor.examination import examine, fix
from salon_jobs.conf import settings as conf
from tests.docs.markdown import blocks, read
from tests.interpreter import ROOT
from tests.settings import PASSWORD, TEST_DATABASE, url_for
from tests.support import row

Superuser = psycopg.Connection[Any]


@pytest.fixture
def support(superuser: Superuser, stores: list[UUID], settings: Any) -> Iterator[str]:
    """Name the role in the settings, with a customer in each store; take it away at the end."""
    role, before = f"support_{secrets.token_hex(4)}", settings.SALON_JOBS
    settings.SALON_JOBS = {
        **before,
        "ROLES": {**before["ROLES"], "support": role},
        "ROLE_PASSWORDS": {**before["ROLE_PASSWORDS"], "support": PASSWORD},
    }
    done = bootstrap(
        url_for(None), roles=conf.roles, passwords=conf.role_passwords, database=TEST_DATABASE, share_roles=True
    )
    assert done.made == (role,)
    for number, store in enumerate(stores):
        row("customer", store_id=store, name=f"customer {number}", email="")
    fixed = fix(superuser, using="default")
    assert {drift.kind for drift in fixed} == {"grant", "policy"}
    yield role
    settings.SALON_JOBS = before
    fixed = fix(superuser, using="default")
    assert any("policy salon_jobs_support of table" in drift.where for drift in fixed), "nobody declares them any more"
    superuser.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_support_reads_all_stores_and_changes_nothing(superuser: Superuser, support: str) -> None:
    assert examine(superuser, using="default").drifts == ()
    with psycopg.connect(url_for(support), autocommit=True) as connection:
        for store in ("", "(SELECT min(id::text) FROM store)"):
            if store:
                connection.execute(f"SELECT set_config('app.current_store_id', {store}, false)".encode())
            assert connection.execute("SELECT count(DISTINCT store_id) FROM customer").fetchall() == [(3,)]
        for refused in (
            "INSERT INTO customer SELECT * FROM customer",
            "UPDATE customer SET name = ''",
            "DELETE FROM customer",
            "TRUNCATE customer",
            "SELECT FROM customer FOR UPDATE",
            "SELECT FROM salon_jobs_job",
            "SELECT FROM auth_user",
            "SELECT list_store_ids_for_fan_out()",
            "SET ROLE migrator",
            "CREATE TABLE public.mine (id int)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(refused.encode())
    query = "SELECT rolcanlogin, rolbypassrls, rolsuper FROM pg_roles WHERE rolname = %s"
    assert superuser.execute(query, [support]).fetchall() == [(True, False, False)]
    with psycopg.connect(url_for("app")) as connection:
        assert connection.execute("SELECT FROM customer").fetchall() == []


def test_drifts_of_rights_of_support(superuser: Superuser, support: str) -> None:
    superuser.execute(f"GRANT UPDATE ON customer TO {support}; ALTER ROLE {support} BYPASSRLS".encode())
    superuser.execute("DROP POLICY salon_jobs_support ON store")
    assert {(drift.kind, drift.where) for drift in fix(superuser, using="default")} == {
        ("role attribute", f"role {support}"),
        ("grant", f'table "public"."customer", role {support}'),
        ("policy", 'policy salon_jobs_support of table "public"."store"'),
    }


def test_admin_site_of_all_stores(support: str) -> None:
    guide = blocks(read(ROOT / "docs" / "how-to" / "staff-across-stores.md"))
    page: dict[str, Any] = {}
    exec(next(block.text for block in guide if block.action == "all stores"), page)
    site = page["all_stores"]
    site.register(Customer, page["ReadOnlyAdmin"])
    urls: Any = ModuleType("urls_of_all_stores")
    urls.urlpatterns = [path("all-stores/", site.urls)]
    connections.settings["support"] = {**connections.settings["default"], "USER": support, "PASSWORD": PASSWORD}
    try:
        with override_settings(ROOT_URLCONF=urls):
            request = RequestFactory().get("/all-stores/salon/customer/")
            request.user = User(username="support", is_staff=True, is_superuser=True)
            assert site.has_permission(request)
            listed = site.get_model_admin(Customer).changelist_view(request).render().content.decode()
        assert "3 customers" in listed
        assert "Add customer" not in listed
        request.user = User(username="other", is_staff=True, is_active=False)
        assert not site.has_permission(request)
    finally:
        connections["support"].close()
        del connections.settings["support"], connections["support"]
