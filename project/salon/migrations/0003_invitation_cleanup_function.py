"""Installs the function that deletes expired invitations of all stores."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from project.salon import invitation_cleanup


def _install(_apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for statement in invitation_cleanup.install():
        schema_editor.execute(statement.as_string(), params=None)


def _uninstall(_apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for statement in invitation_cleanup.uninstall():
        schema_editor.execute(statement.as_string(), params=None)


class Migration(migrations.Migration):
    """Runs in one transaction: the change of role inside it is local."""

    dependencies = [("salon", "0002_row_level_security")]

    operations = [migrations.RunPython(_install, _uninstall)]
