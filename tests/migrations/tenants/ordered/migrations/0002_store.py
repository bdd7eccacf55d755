import uuid

from django.db import migrations, models


class Migration(migrations.Migration):
    """Migration that creates the store, after the app's first one."""

    run_before = [("salon_jobs", "0003_fan_out")]
    dependencies = [("tenants", "0001_initial")]
    operations = [
        migrations.CreateModel(
            "Store", [("id", models.UUIDField(primary_key=True, default=uuid.uuid4, serialize=False))]
        )
    ]
