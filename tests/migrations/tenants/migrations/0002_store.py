from django.db import migrations

from tests.migrations.tenants.models import primary_key


class Migration(migrations.Migration):
    """Migration that creates the store, after the app's first one."""

    dependencies = [("tenants", "0001_initial")]
    operations = [migrations.CreateModel("Store", [("id", primary_key())])]
