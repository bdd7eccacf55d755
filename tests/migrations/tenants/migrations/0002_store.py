from django.conf import settings
from django.db import migrations

from tests.migrations.tenants.models import primary_key


class Migration(migrations.Migration):
    """Migration that creates the store, after the app's first one; before what needs it, if the settings say so."""

    dependencies = [("tenants", "0001_initial")]
    run_before = [("salon_jobs", "0003_fan_out")] if getattr(settings, "TENANTS_FIRST", False) else []
    operations = [migrations.CreateModel("Store", [("id", primary_key())])]
