"""Let a permission say who may run cron entries now."""

from typing import ClassVar

from django.db import migrations


class Migration(migrations.Migration):
    dependencies: ClassVar = [("salon_jobs", "0008_follow_up")]
    operations: ClassVar = [
        migrations.AlterModelOptions(
            name="cronentrystate",
            options={
                "permissions": [("run_cronentrystate", "Can run cron entries now")],
                "verbose_name": "cron entry",
                "verbose_name_plural": "cron entries",
            },
        )
    ]
