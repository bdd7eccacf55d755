"""Create the table of fan-outs and grant it to the worker and the operator."""

from typing import ClassVar

import django.db.models.functions.datetime
from django.db import migrations, models

from salon_jobs.access.operations import LocksBriefly, ProtectTables


class Migration(LocksBriefly):
    """After the job tables are protected."""

    dependencies: ClassVar = [("salon_jobs", "0003_fan_out")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="FanOutRecord",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("task", models.CharField(max_length=255)),
                ("tick", models.DateTimeField(help_text="The cron tick it stems from", null=True)),
                ("digest", models.CharField(help_text="Hash of the arguments and the label", max_length=64)),
                ("label", models.CharField(db_default="", max_length=255)),
                ("inserted", models.IntegerField(db_default=0, help_text="Jobs it added")),
                ("kept", models.IntegerField(db_default=0, help_text="Stores whose job it met by its key")),
                ("paused", models.IntegerField(db_default=0, help_text="Stores it left out because they are paused")),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "verbose_name": "fan-out",
                "db_table": "salon_jobs_fan_out",
                "indexes": [models.Index(fields=["created_at"], name="salon_jobs_fan_out_created")],
                "constraints": [
                    models.UniqueConstraint(fields=("task", "tick", "digest"), name="salon_jobs_fan_out_once")
                ],
            },
        ),
        ProtectTables("salon_jobs_fan_out"),
    ]
