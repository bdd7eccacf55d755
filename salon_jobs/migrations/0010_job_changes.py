"""Note in a table what a transaction changes of jobs that others come after, for its commit; no longer in settings."""

from typing import Any, ClassVar

from django.db import migrations, models

from salon_jobs.access.operations.access import InstallDeclared, ReinstallFunctions
from salon_jobs.access.operations.base import JobTablesMigration


class _CreateModel(migrations.CreateModel):
    """Operation whose table stays when it is reversed, as do the functions, which use it."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        with schema_editor.connection.cursor() as cursor:
            cursor.execute("SELECT to_regclass(%s) IS NULL", [self.options["db_table"]])
            [is_new] = cursor.fetchone()
        if is_new:
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Do nothing."""


class Migration(JobTablesMigration):
    """With the job table locked, no transaction is left that has noted something in a setting.

    The functions take the arguments that the release before gives them.
    """

    dependencies: ClassVar = [("salon_jobs", "0009_validate_checks")]
    operations: ClassVar = [
        _CreateModel(
            name="JobChange",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("transaction_id", models.BigIntegerField()),
                ("job_id", models.BigIntegerField()),
                ("of_id", models.BigIntegerField(null=True)),
                ("block", models.BigIntegerField(null=True)),
                ("key_id", models.UUIDField(null=True)),
                ("kind", models.CharField(max_length=4)),
                ("became", models.CharField(max_length=9)),
            ],
            options={
                "db_table": "salon_jobs_change",
                "constraints": [
                    models.UniqueConstraint(fields=("transaction_id", "block"), name="salon_jobs_change_transaction")
                ],
            },
        ),
        migrations.RunSQL("ALTER TABLE salon_jobs_change SET UNLOGGED", reverse_sql=migrations.RunSQL.noop),
        InstallDeclared(tables=("salon_jobs_change",), functions=()),
        migrations.RunSQL(
            "DROP TRIGGER IF EXISTS salon_jobs_moves ON salon_jobs_job;"
            "DROP TRIGGER IF EXISTS salon_jobs_moves_added ON salon_jobs_job;"
            "DROP TRIGGER IF EXISTS salon_jobs_flow_edge_late ON salon_jobs_flow_edge;"
            "DROP FUNCTION IF EXISTS salon_jobs_flow_notes(text[]);"
            "DROP FUNCTION IF EXISTS salon_jobs_flow_last(bigint[]);"
            "DROP FUNCTION IF EXISTS salon_jobs_follow_up(bigint, integer)",
            reverse_sql=migrations.RunSQL.noop,
        ),
        ReinstallFunctions(
            functions=(
                *("salon_jobs_note", "salon_jobs_note_added", "salon_jobs_move", "salon_jobs_move_flow"),
                *("salon_jobs_move_follow_ups", "salon_jobs_move_ordered", "salon_jobs_add_flow_members"),
            )
        ),
        migrations.RunSQL(
            "ALTER TABLE salon_jobs_flow_edge DROP COLUMN late",
            reverse_sql="ALTER TABLE salon_jobs_flow_edge ADD COLUMN late boolean NOT NULL DEFAULT false",
            state_operations=[migrations.RemoveField(model_name="flowedge", name="late")],
        ),
    ]
