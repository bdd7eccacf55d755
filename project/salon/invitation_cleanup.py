"""Installation of the one function that may delete invitations of all stores. Used only by migrations."""

from __future__ import annotations

from typing import Final

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState

from salon_jobs.access.declared_objects import identifier, literal
from salon_jobs.access.operations.base import DatabaseOperation, execute
from salon_jobs.conf import settings as conf

OWNER_ROLE: Final = "invitation_cleanup_owner"
_SIGNATURE: Final = "public.delete_expired_operator_invitations(timestamptz)"
_OWNERS_RIGHTS: Final = "DELETE, SELECT (expires_at) ON public.operator_invitation"
_CREATE: Final = (
    "CREATE OR REPLACE FUNCTION public.delete_expired_operator_invitations(cutoff timestamptz) RETURNS bigint"
)
_AS_OWNER_ROLE: Final = """
    LANGUAGE sql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog AS $body$
        WITH deleted AS (
            DELETE FROM public.operator_invitation AS i WHERE i.expires_at < cutoff RETURNING 1
        )
        SELECT count(*) FROM deleted
    $body$
"""
# With a single database user, the function's owner is under forced row-level security, so it goes from store to store.
_AS_ONE_USER: Final = """
    LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog AS $body$
    DECLARE
        store_before text := current_setting({guc}, true);
        store record;
        deleted bigint;
        total bigint := 0;
    BEGIN
        FOR store IN SELECT s.id FROM public.store AS s ORDER BY s.id LOOP
            PERFORM set_config({guc}, store.id::text, true);
            DELETE FROM public.operator_invitation AS i WHERE i.store_id = store.id AND i.expires_at < cutoff;
            GET DIAGNOSTICS deleted = ROW_COUNT;
            total := total + deleted;
        END LOOP;
        PERFORM set_config({guc}, coalesce(store_before, ''), true);
        RETURN total;
    END
    $body$
"""


class InstallInvitationCleanup(DatabaseOperation):
    """Operation that installs the function; its owner role may delete from the table and read one column only."""

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Create the function as its owner, who can then grant EXECUTE on it."""
        execute(schema_editor, *_install())

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Drop the function, and revoke what its owner was granted on the table."""
        execute(schema_editor, *_uninstall())

    def describe(self) -> str:
        return "Install the function that deletes expired invitations"


def _install() -> list[str]:
    revoke = f"REVOKE ALL ON FUNCTION {_SIGNATURE} FROM PUBLIC"
    if conf.roles.one_user:
        return [_CREATE + _AS_ONE_USER.format(guc=literal(conf.store_guc)), revoke]
    owner = identifier(OWNER_ROLE)
    return [
        f"GRANT USAGE, CREATE ON SCHEMA public TO {owner}",
        f"GRANT {_OWNERS_RIGHTS} TO {owner}",
        f"SET LOCAL ROLE {owner}",
        _CREATE + _AS_OWNER_ROLE,
        revoke,
        f"GRANT EXECUTE ON FUNCTION {_SIGNATURE} TO {identifier(conf.roles.worker)}",
        "RESET ROLE",
        f"REVOKE CREATE ON SCHEMA public FROM {owner}",
    ]


def _uninstall() -> list[str]:
    drop = f"DROP FUNCTION IF EXISTS {_SIGNATURE}"
    if conf.roles.one_user:
        return [drop]
    owner = identifier(OWNER_ROLE)
    return [f"SET LOCAL ROLE {owner}", drop, "RESET ROLE", f"REVOKE {_OWNERS_RIGHTS} FROM {owner}"]
