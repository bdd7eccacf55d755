"""Adds the files that stores upload, and the tasks of parsing them."""

import uuid

import django.db.models.deletion
from django.db import migrations, models

from salon_jobs.access import SameStoreForeignKey, StoreIsolation
from salon_jobs.access.operations import LocksBriefly


class Migration(LocksBriefly):
    """Migration that creates empty tables; their foreign keys briefly lock the stores' table."""

    dependencies = [("salon", "0005_membership")]

    operations = [
        migrations.CreateModel(
            name="SourceFile",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=120)),
                ("content", models.TextField()),
                (
                    "store",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="salon.store",
                    ),
                ),
            ],
            options={
                "db_table": "source_file",
                "abstract": False,
                "constraints": [
                    models.UniqueConstraint(fields=("store", "id"), name="source_file_store_id"),
                    StoreIsolation(field="store", name="source_file_isolation"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ParseTask",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("PENDING", "Pending"),
                            ("RUNNING", "Running"),
                            ("SUCCEEDED", "Succeeded"),
                            ("FAILED", "Failed"),
                        ],
                        default="PENDING",
                        max_length=16,
                    ),
                ),
                ("lines", models.PositiveIntegerField(null=True)),
                ("total", models.PositiveBigIntegerField(help_text="Yen", null=True)),
                ("error", models.TextField(default="")),
                (
                    "source_file",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="salon.sourcefile",
                    ),
                ),
                (
                    "store",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="salon.store",
                    ),
                ),
            ],
            options={
                "db_table": "parse_task",
                "abstract": False,
                "indexes": [models.Index(fields=["store", "source_file"], name="parse_task_source_file")],
                "constraints": [
                    models.UniqueConstraint(fields=("store", "id"), name="parse_task_store_id"),
                    SameStoreForeignKey(field="source_file", name="parse_task_source_file_of_same_store"),
                    StoreIsolation(field="store", name="parse_task_isolation"),
                    models.CheckConstraint(
                        condition=models.Q(("status__in", ["PENDING", "RUNNING", "SUCCEEDED", "FAILED"])),
                        name="parse_task_status_known",
                    ),
                ],
            },
        ),
    ]
