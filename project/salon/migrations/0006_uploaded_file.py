"""Adds the files that stores upload."""

import uuid

import django.db.models.deletion
from django.db import migrations, models

from salon_jobs.access import StoreIsolation
from salon_jobs.access.operations import LocksBriefly


class Migration(LocksBriefly):
    """Migration that creates an empty table; its foreign key briefly locks the stores' table."""

    dependencies = [("salon", "0005_membership")]

    operations = [
        migrations.CreateModel(
            name="UploadedFile",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=120)),
                ("content", models.TextField()),
                ("lines", models.PositiveIntegerField(null=True)),
                ("total", models.PositiveBigIntegerField(help_text="Yen", null=True)),
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
                "db_table": "uploaded_file",
                "abstract": False,
                "constraints": [
                    models.UniqueConstraint(fields=("store", "id"), name="uploaded_file_store_id"),
                    StoreIsolation(field="store", name="uploaded_file_isolation"),
                ],
            },
        )
    ]
