"""Tests on the live catalogue that the demo's roles may do what their tasks need, and no more."""

from __future__ import annotations

from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from tests.conftest import manage
from tests.settings import url_for
from tests.support import seen

FUNCTION = "public.delete_expired_operator_invitations(timestamptz)"
STORE_OWNED = {
    "store",
    "customer",
    "customer_note",
    "reservation",
    "sale",
    "daily_sales",
    "operator_invitation",
    "uploaded_file",
}


@pytest.mark.usefixtures("database")
def test_every_table_has_forced_row_level_security() -> None:
    tables = STORE_OWNED | {"operator", "operator_session"}
    query = "SELECT relname FROM pg_class WHERE relrowsecurity AND relforcerowsecurity AND relname = ANY (%s)"

    assert {row[0] for row in seen(query, list(tables))} == tables


@pytest.mark.usefixtures("database")
def test_the_cleanup_function_belongs_to_a_role_that_may_only_delete_invitations() -> None:
    query = """
        SELECT o.rolname, o.rolcanlogin, p.prosecdef, p.proconfig, p.proacl::text
        FROM pg_proc AS p JOIN pg_roles AS o ON o.oid = p.proowner WHERE p.oid = %s::regprocedure
    """
    owner = "invitation_cleanup_owner"

    assert seen(query, FUNCTION) == [
        (owner, False, True, ["search_path=pg_catalog"], f"{{{owner}=X/{owner},worker_runtime=X/{owner}}}")
    ]
    query = """
        SELECT table_name, privilege_type FROM information_schema.role_table_grants
        WHERE grantee = %(owner)s
        UNION ALL
        SELECT table_name || '.' || column_name, privilege_type FROM information_schema.column_privileges
        WHERE grantee = %(owner)s
    """
    with psycopg.connect(url_for(None)) as connection:
        granted = set(connection.execute(query, {"owner": owner}).fetchall())
        creates = connection.execute("SELECT has_schema_privilege(%s, 'public', 'CREATE')", [owner]).fetchall()
    assert granted == {("operator_invitation", "DELETE"), ("operator_invitation.expires_at", "SELECT")}
    assert creates == [(False,)]


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("table", ["auth_user", "django_session", "django_admin_log", "operator"])
def test_the_worker_can_not_read_the_admins_tables(table: str) -> None:
    with psycopg.connect(url_for("worker_runtime")) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(sql.SQL("SELECT FROM {}").format(sql.Identifier(table)))


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    "statement", ["SELECT operator_id FROM operator_session", "UPDATE operator_session SET expires_at = now()"]
)
def test_the_worker_may_only_delete_sessions(statement: str) -> None:
    with psycopg.connect(url_for("worker_runtime")) as connection:
        connection.execute("DELETE FROM operator_session WHERE expires_at < now()")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement.encode())


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("role", ["app", "jobs_operator"])
def test_nobody_but_the_worker_calls_the_cleanup_function(role: str) -> None:
    with psycopg.connect(url_for(role)) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("SELECT public.delete_expired_operator_invitations(now())")


def test_rows_can_not_refer_to_another_stores_customer(stores: list[UUID]) -> None:
    with psycopg.connect(url_for(None)) as connection:
        connection.execute(
            """
            WITH theirs AS (
                INSERT INTO customer (id, store_id, name, email) VALUES (gen_random_uuid(), %s, 'a', 'a@m.example')
                RETURNING id
            )
            INSERT INTO customer_note (id, store_id, customer_id, body)
            SELECT gen_random_uuid(), %s, id, 'b' FROM theirs
            """,
            stores[:2],
        )
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            connection.commit()


@pytest.mark.usefixtures("database")
def test_the_rights_migrations_go_back_and_forth() -> None:
    before = _rights()

    for target in (["salon", "0002"], []):
        done = manage("migrate", *target, "--verbosity", "0")
        assert done.returncode == 0, done.stderr

    assert _rights() == before


def _rights() -> list[tuple[object, ...]]:
    return seen(
        """
        SELECT c.relname, (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(c.relacl) AS a), c.relrowsecurity,
               (SELECT array_agg(p.policyname || p.cmd || p.roles::text ORDER BY p.policyname) FROM pg_policies AS p
                WHERE p.tablename = c.relname)
        FROM pg_class AS c WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace ORDER BY c.relname
        """
    ) + seen("SELECT proname, proowner::regrole::text, proacl::text FROM pg_proc WHERE prosecdef ORDER BY proname")
