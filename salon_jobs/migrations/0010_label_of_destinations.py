"""Label the field that names a destination as the pages do; no statement is run."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("salon_jobs", "0009_run_cron_entries")]
    operations: ClassVar = [
        migrations.AlterField(
            "blockedaggregate", "aggregate_type", models.CharField(max_length=255, verbose_name="destination")
        ),
        migrations.AlterField(
            "destinationstate",
            "aggregate_type",
            models.CharField(max_length=255, primary_key=True, serialize=False, verbose_name="destination"),
        ),
        migrations.AlterField(
            "message",
            "aggregate_type",
            models.CharField(help_text="Destination: an ARN or RN", max_length=255, verbose_name="destination"),
        ),
    ]
