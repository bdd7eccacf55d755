"""as_role, as_store and assert_isolated, used as a host project would, on tables that are broken in every way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.db import connections, transaction
from django.test import TestCase, override_settings

from project.salon.models import Customer, Operator, Store
from salon_jobs import current_store_id
from salon_jobs.access import StoreIsolation
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.errors import ConfigurationError, TenantContextError
from salon_jobs.models import Job, Process
from salon_jobs.testing import as_role, as_store, assert_isolated, perform_job
from tests import tasks
from tests.support import new_store_id
from tests.tenancy.probe import ask, execute

OWNER = "owner"


def who(alias: str = OWNER) -> str:
    return str(ask("SELECT current_user", using=alias))


def run(*statements: str) -> None:
    """Run statements as the superuser, on the test's connection."""
    execute(*statements, using=OWNER)


def configured(**options: object) -> override_settings:
    return override_settings(SALON_JOBS={**settings.SALON_JOBS, **options})


def fill(stores: int = 2) -> list[UUID]:
    """Add stores with two customers each, as the superuser, in the test's transaction."""
    ids = [new_store_id() for _ in range(stores)]
    for store in ids:
        Store.objects.using(OWNER).create(id=store, name="Salon")
        for _ in range(2):
            Customer.objects.using(OWNER).create(id=uuid4(), store_id=store, name="x", email="")
    return ids


def stores_of_the_worker() -> list[UUID]:
    ids = [new_store_id(), new_store_id()]
    for store in ids:
        with as_store(store):
            Store.objects.create(id=store, name="Salon")
    return ids


class RolesAndStores(TestCase):
    """Everything happens inside the test's transaction."""

    databases = {"default", "owner"}  # noqa: RUF012 - as Django has it

    def test_role_is_taken_on_and_given_back(self) -> None:
        superuser = who()
        names = {"web": "app", "worker": "worker_runtime", "operator": "jobs_operator", "migrator": "migrator"}
        for role, name in {**names, "worker_fanout_owner": "worker_fanout_owner"}.items():
            with as_role(role, using=OWNER):
                assert who() == name
            assert who() == superuser
        with as_role("web", using=OWNER):
            with as_role("operator", using=OWNER):
                assert who() == "jobs_operator"
            assert who() == "app"
            with pytest.raises(ZeroDivisionError), as_role("worker", using=OWNER):
                raise ZeroDivisionError
            assert who() == "app"
        assert who() == superuser

    def test_rights_are_those_of_role(self) -> None:
        for role, model, table in (("operator", Store, "store"), ("web", Process, "salon_jobs_process")):
            objects: Any = model.objects
            denied = pytest.raises(Exception, match=f"permission denied for table {table}")
            with denied, as_role(role, using=OWNER):
                objects.using(OWNER).count()

    def test_role_that_cannot_be_taken_on(self) -> None:
        refusal = r"'worker_runtime', which may not become 'app'.*GRANT"
        with pytest.raises(ConfigurationError, match=refusal), as_role("web"):
            pass
        with pytest.raises(ConfigurationError, match="nobody"), as_role("nobody", using=OWNER):
            pass
        without_roles = pytest.raises(ConfigurationError, match="ROLES'] is not set")
        with configured(ROLES=None), without_roles, as_role("web", using=OWNER):
            pass
        with as_role("worker"):
            assert who("default") == "worker_runtime", "one may always be oneself"

    def test_store_is_given_as_row_or_id(self) -> None:
        store = Store(id=new_store_id(), name="Salon")
        with as_store(store):
            store.save(using="default")
            assert current_store_id() == store.pk
        with as_store(str(store.pk)):
            assert Store.objects.get() == store
        assert current_store_id() is None
        assert not Store.objects.exists()
        with pytest.raises(TenantContextError), as_store(""):
            pass


class TasksAsTheWorker(TestCase):
    """A host project's tests log in as a superuser, and run a task as the worker."""

    databases = {"owner"}  # noqa: RUF012 - as Django has it

    def test_task_reaches_own_rows_alone(self) -> None:
        own, _ = fill()
        tasks.hooks.store = lambda **_: Customer.objects.using(OWNER).update(name="reached")
        self.addCleanup(tasks.hooks.reset)
        with configured(DATABASE=OWNER), as_role("worker"):
            perform_job(tasks.in_store, store_id=own)
        reached = Customer.objects.using(OWNER).filter(name="reached")
        assert set(reached.values_list("store_id", flat=True)) == {own}


def assert_refused(message: str, model: Any = Customer, *, roles: Sequence[str] | None = None) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_isolated(model, using=OWNER, roles=roles)


class Isolation(TestCase):
    """Tables of the demo as they are."""

    databases = {"default", "web", "owner"}  # noqa: RUF012 - as Django has it

    def test_isolated_tables_pass_and_keep_rows(self) -> None:
        stores = fill(3)
        for model in (Customer, Store):
            before = set(model.objects.using(OWNER).values_list("pk", flat=True))
            assert_isolated(model, using=OWNER)
            assert set(model.objects.using(OWNER).values_list("pk", flat=True)) == before
        for store in stores:
            tasks.in_store.enqueue(store_id=store)
        assert who() not in ("app", "worker_runtime")

    def test_job_table_is_isolated_for_web_alone(self) -> None:
        for store in fill():
            run(f"INSERT INTO salon_jobs_job (task, store_id) VALUES ('test-store', '{store}')")
        run("INSERT INTO salon_jobs_job (task) VALUES ('test-system')")
        assert_isolated(Job, using=OWNER, roles=["web"])
        assert_refused("'worker_runtime' sees, as store", Job, roles=["worker"])

    def test_too_few_rows_do_not_pass(self) -> None:
        assert_refused("table 'customer' has no row: an empty table")
        fill(1)
        assert_refused("only one store has rows")

    def test_connection_of_runtime_needs_stores(self) -> None:
        ids = stores_of_the_worker()
        assert_isolated(Store, roles=["worker"], stores=ids)
        for stores, message in ((None, "stores="), ([ids[0], new_store_id()], r"sees, as store .*, 0 of its own rows")):
            with pytest.raises(AssertionError, match=message):
                assert_isolated(Store, roles=["worker"], stores=stores)
        with pytest.raises(ConfigurationError, match="may not become 'app'"):
            assert_isolated(Store, stores=ids)

    def test_superuser_proves_nothing(self) -> None:
        ids = stores_of_the_worker()
        fill()
        with configured(ROLES=None):
            assert_isolated(Store, stores=ids)
            assert_refused("it is a superuser or has BYPASSRLS")

    def test_field_is_declared_or_named(self) -> None:
        fill()
        declared, other = StoreIsolation(field="store", name="x"), StoreIsolation(field="id", name="x")
        for constraint, field in ((declared, None), (other, "store"), (other, "store_id")):
            with patch.object(Customer._meta, "constraints", [constraint]):
                assert_isolated(Customer, using=OWNER, field=field)

    @pytest.mark.uuid_keys
    def test_wrong_field_of_same_type(self) -> None:
        fill()
        with patch.object(Customer._meta, "constraints", [StoreIsolation(field="id", name="x")]):
            assert_refused(r"sees, as store .*, 0 of its 1 rows")

    def test_model_without_store_and_unsuitable_roles(self) -> None:
        fill()
        with pytest.raises(ConfigurationError, match="0 fields of its own table"):
            assert_isolated(Operator, using=OWNER)
        assert_refused("'jobs_operator' may not read 'store_id'", roles=["operator"])
        assert_refused("it is a superuser", roles=[who()])


OWN = f"store_id = (SELECT NULLIF(current_setting('app.current_store_id', true), '')::{store_key().sql})"
OWN_BY_ID = "id::text = (SELECT NULLIF(current_setting('app.current_store_id', true), ''))"
NO_STORE = "coalesce(current_setting('app.current_store_id', true), '') = ''"
_COMMANDS = {
    "SELECT": f"USING ({OWN})",
    "INSERT": f"WITH CHECK ({OWN})",
    "UPDATE": f"USING ({OWN}) WITH CHECK ({OWN})",
    "DELETE": f"USING ({OWN})",
}


def drop_policies() -> None:
    with connections[OWNER].cursor() as cursor:
        cursor.execute("SELECT policyname FROM pg_policies WHERE tablename = 'customer'")
        for (name,) in cursor.fetchall():
            cursor.execute(f'DROP POLICY "{name}" ON customer')


def policies(*texts: str) -> list[str]:
    return [f"CREATE POLICY p{number} ON customer {text}" for number, text in enumerate(texts)]


def all_but(command: str, text: str) -> list[str]:
    """Return right policies per command, save one."""
    each = {**_COMMANDS, command: text}
    return policies(*(f"FOR {command} TO app, worker_runtime {text}" for command, text in each.items()))


# Each replaces the policies of the customers.
DRIFTS: dict[str, tuple[list[str], str]] = {
    "dropped": ([], "0 of its 2 rows: no policy shows them"),
    "wrong column": (policies(f"TO app, worker_runtime USING ({OWN_BY_ID})"), "0 of its 2 rows"),
    "to the wrong role": (policies(f"TO jobs_operator USING ({OWN})"), "'app' sees, as store .* 0 of its 2 rows"),
    "to the web alone": (policies(f"TO app USING ({OWN})"), "'worker_runtime' sees, as store .* 0 of its 2 rows"),
    "an extra permissive one": (
        policies(f"USING ({OWN})", "FOR SELECT TO app USING (true)"),
        "'app' sees, as store .* rows of",
    ),
    "an extra one when no store is set": (policies(f"USING ({OWN})", f"USING ({NO_STORE})"), "sees without a store"),
    "what is no key opens it": (
        policies(
            "USING (CASE WHEN current_setting('app.current_store_id', true) ~ '^[a-z0-9-]+$'"
            f" OR {NO_STORE} THEN {OWN} ELSE true END)"
        ),
        "sees with 'no key' as the store",
    ),
    "inserts unchecked": (all_but("INSERT", "WITH CHECK (true)"), "inserts as store .* and no policy stopped it: "),
    "updates unchecked": (all_but("UPDATE", f"USING ({OWN}) WITH CHECK (true)"), "moves, as store .* rows to store"),
    "updates of everybody's": (
        all_but("UPDATE", "USING (true) WITH CHECK (true)"),
        "changes, as store .* more than those",
    ),
    "deletes everybody's": (all_but("DELETE", "USING (true)"), "deletes, as store .* others than those: 4 rows"),
    "deletes what is another's": (
        all_but("DELETE", f"USING ({OWN.replace('=', '<>', 1)})"),
        "deletes, as store .* others than those: 2 rows",
    ),
}


class Drift(TestCase):
    """The customers' table, broken in the test's transaction; each time it no longer passes."""

    databases = {"owner"}  # noqa: RUF012 - as Django has it

    def setUp(self) -> None:
        fill()
        run("SET CONSTRAINTS ALL IMMEDIATE")

    def assert_noticed(self, name: str, statements: list[str], message: str) -> None:
        with self.subTest(name), transaction.atomic(using=OWNER):
            drop_policies()
            run(*statements)
            assert_refused(message)
            transaction.set_rollback(True, using=OWNER)

    def test_drift_of_policies_is_noticed(self) -> None:
        for name, (statements, message) in DRIFTS.items():
            self.assert_noticed(name, statements, message)
        drop_policies()
        run(*all_but("DELETE", f"USING ({OWN})"))
        assert_isolated(Customer, using=OWNER)

    def test_rows_of_no_store_are_noticed(self) -> None:
        run("ALTER TABLE customer ALTER store_id DROP NOT NULL")
        assert_isolated(Customer, using=OWNER)
        form = f"WITH CHECK ({OWN} OR store_id IS NULL)"
        # Otherwise its own SELECT policy refuses a row that it would not see again.
        shared = "CREATE POLICY shared ON customer FOR SELECT USING (store_id IS NULL)"
        for command, text, message in (
            ("INSERT", form, "inserts as store .* a row of no store, and no policy stopped it"),
            ("UPDATE", f"USING ({OWN}) {form}", "moves, as store .*, rows to no store"),
        ):
            self.assert_noticed(command, [*all_but(command, text), shared], message)

    def test_reachable_parts_of_table_are_noticed(self) -> None:
        run("CREATE TABLE customer_2026 () INHERITS (customer)")
        assert_isolated(Customer, using=OWNER)
        run("GRANT SELECT (name) ON customer_2026 TO app")
        assert_refused(r"'app' reaches its partitions or children .*: customer_2026")

    def test_drift_of_table_is_noticed(self) -> None:
        for statement, message in (
            ("ALTER TABLE customer NO FORCE ROW LEVEL SECURITY", "not forced on table 'customer'"),
            ("ALTER TABLE customer FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY", "not enabled on table"),
            ("ALTER TABLE customer ENABLE ROW LEVEL SECURITY; GRANT TRUNCATE ON customer TO app", "may TRUNCATE it"),
            ("REVOKE TRUNCATE ON customer FROM app; ALTER ROLE worker_runtime BYPASSRLS", "not under its policies"),
        ):
            run(statement)
            assert_refused(message)

    def test_role_without_rights_needs_no_policy(self) -> None:
        run("REVOKE ALL ON customer FROM worker_runtime")
        assert_isolated(Customer, using=OWNER)
        assert_refused("'worker_runtime' may not read", roles=["web", "worker"])
        run("REVOKE ALL ON customer FROM app")
        assert_refused("neither the web's nor the worker's role")
