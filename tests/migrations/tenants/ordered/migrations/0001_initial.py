from django.db import migrations


class Migration(migrations.Migration):
    """Initial migration, without the store."""

    initial = True
    dependencies = []
    operations = []
