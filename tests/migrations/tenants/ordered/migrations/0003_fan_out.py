from django.db import migrations

from salon_jobs.access import StoreIsolation
from salon_jobs.access.operations import InstallFanOutFunction


class Migration(migrations.Migration):
    """Migration for a project that sets STORE_MODEL after salon_jobs was migrated."""

    dependencies = [("tenants", "0002_store"), ("salon_jobs", "0003_fan_out")]
    operations = [
        migrations.AddConstraint("store", StoreIsolation(field="id", name="store_isolation")),
        InstallFanOutFunction(),
    ]
