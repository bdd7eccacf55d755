"""Tests on the live catalogue that the demo's roles may do what their tasks need, and no more."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import manage
from tests.settings import url_for
from tests.support import seen

FUNCTION = "public.delete_expired_operator_invitations(timestamptz)"


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
def test_the_worker_deletes_sessions_and_does_not_read_whose_they_are() -> None:
    with psycopg.connect(url_for("worker_runtime")) as connection:
        connection.execute("DELETE FROM operator_session WHERE expires_at < now()")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT operator_id FROM operator_session")


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
