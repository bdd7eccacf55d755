"""Takes from the worker's role what its tasks do not need, and puts the system-scope tables under policies."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from psycopg import sql

from salon_jobs.conf import settings as conf
from salon_jobs.migration_ops import LocksBriefly

_ADMIN_TABLES = (
    "auth_group",
    "auth_group_permissions",
    "auth_permission",
    "auth_user",
    "auth_user_groups",
    "auth_user_user_permissions",
    "django_admin_log",
    "django_content_type",
    "django_session",
)
_SYSTEM_TABLES = ("operator", "operator_session")


def _restrict(_apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Leave the worker nothing of the admin; of the operators' sessions, deleting by expiry. No roles: do nothing."""
    if conf.roles is None:
        return
    web, worker = sql.Identifier(conf.roles.web), sql.Identifier(conf.roles.worker)
    for table in _ADMIN_TABLES + _SYSTEM_TABLES:
        _execute(schema_editor, sql.SQL("REVOKE ALL ON {} FROM {}").format(sql.Identifier(table), worker))
    for table in _SYSTEM_TABLES:
        name = sql.Identifier(table)
        _execute(
            schema_editor,
            sql.SQL("CREATE POLICY system_scope ON {} FOR ALL TO {} USING (true) WITH CHECK (true)").format(name, web),
            sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(name),
            sql.SQL("ALTER TABLE {} FORCE ROW LEVEL SECURITY").format(name),
        )
    _execute(
        schema_editor,
        sql.SQL("GRANT DELETE, SELECT (id, expires_at) ON operator_session TO {}").format(worker),
        sql.SQL("CREATE POLICY cleanup_select ON operator_session FOR SELECT TO {} USING (true)").format(worker),
        sql.SQL("CREATE POLICY cleanup_delete ON operator_session FOR DELETE TO {} USING (true)").format(worker),
    )


def _restore(_apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Give back what default privileges had given, without policies."""
    if conf.roles is None:
        return
    worker = sql.Identifier(conf.roles.worker)
    _execute(
        schema_editor,
        sql.SQL("DROP POLICY cleanup_delete ON operator_session"),
        sql.SQL("DROP POLICY cleanup_select ON operator_session"),
    )
    for table in _SYSTEM_TABLES:
        name = sql.Identifier(table)
        _execute(
            schema_editor,
            sql.SQL("ALTER TABLE {} NO FORCE ROW LEVEL SECURITY").format(name),
            sql.SQL("ALTER TABLE {} DISABLE ROW LEVEL SECURITY").format(name),
            sql.SQL("DROP POLICY system_scope ON {}").format(name),
        )
    for table in _ADMIN_TABLES + _SYSTEM_TABLES:
        grant = sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}")
        _execute(schema_editor, grant.format(sql.Identifier(table), worker))


def _execute(schema_editor: BaseDatabaseSchemaEditor, *statements: sql.Composable) -> None:
    for statement in statements:
        schema_editor.execute(statement.as_string(), params=None)


class Migration(LocksBriefly):
    """Comes after the last migration of each app whose tables it names; its locks are brief and scan nothing."""

    dependencies = [
        ("salon", "0003_invitation_cleanup_function"),
        ("admin", "0003_logentry_add_action_flag_choices"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("sessions", "0001_initial"),
    ]

    operations = [migrations.RunPython(_restrict, _restore)]
