from django.db import migrations


class Migration(migrations.Migration):
    """Creates nothing that matters here."""

    initial = True
    dependencies = []
    operations = []
