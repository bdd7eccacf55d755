import uuid

from django.db import migrations, models


class Migration(migrations.Migration):
    """Creates the store, later than the app's first migration."""

    dependencies = [("tenants", "0001_initial")]
    operations = [
        migrations.CreateModel(
            "Store", [("id", models.UUIDField(primary_key=True, default=uuid.uuid4, serialize=False))]
        )
    ]
