"""The demo's roles may do on the live catalogue what their tasks need, and no more."""

from __future__ import annotations

import psycopg
import pytest

from tests.settings import url_for
from tests.support import seen

pytestmark = pytest.mark.usefixtures("database")
OWNER = "invitation_cleanup_owner"


def test_cleanup_function_may_only_delete_invitations() -> None:
    """It belongs to a role that cannot log in, and only the worker may call it."""
    query = """
        SELECT o.rolcanlogin, p.prosecdef, p.proconfig, p.proacl::text,
               has_schema_privilege(o.rolname, 'public', 'CREATE')
          FROM pg_proc AS p JOIN pg_roles AS o ON o.oid = p.proowner
         WHERE p.oid = 'public.delete_expired_operator_invitations(timestamptz)'::regprocedure AND o.rolname = %s
    """
    callers = f"{{{OWNER}=X/{OWNER},worker_runtime=X/{OWNER}}}"
    assert seen(query, OWNER) == [(False, True, ["search_path=pg_catalog"], callers, False)]
    granted = """
        SELECT table_name, privilege_type FROM information_schema.role_table_grants WHERE grantee = %s UNION ALL
        SELECT table_name || '.' || column_name, privilege_type FROM information_schema.column_privileges
         WHERE grantee = %s
    """
    with psycopg.connect(url_for(None)) as connection:
        found = set(connection.execute(granted, [OWNER, OWNER]).fetchall())
    assert found == {("operator_invitation", "DELETE"), ("operator_invitation.expires_at", "SELECT")}
