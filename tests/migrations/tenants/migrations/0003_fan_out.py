from django.db import migrations

from salon_jobs.migration_ops import EnableStoreRLS, InstallFanOutFunction


class Migration(migrations.Migration):
    """Installs the function for a project that sets STORE_MODEL after salon_jobs was migrated."""

    dependencies = [("tenants", "0002_store"), ("salon_jobs", "0003_fan_out")]
    operations = [EnableStoreRLS("Store", store_field="id"), InstallFanOutFunction()]
