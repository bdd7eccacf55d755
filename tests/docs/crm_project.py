"""A project without stores, whose tables the pages on existing tables and on deleting start from."""

from __future__ import annotations

FILES = {
    "manage.py": """
import os, sys
from django.core.management import execute_from_command_line
os.environ["DJANGO_SETTINGS_MODULE"] = "mysite"
execute_from_command_line(sys.argv)
""",
    "mysite.py": """
import environ
SECRET_KEY, USE_TZ, DEFAULT_AUTO_FIELD = "for tests only", True, "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "pgtrigger", "salon_jobs", "accounts", "crm"]
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
SALON_JOBS = {"STORE_MODEL": "accounts.Organization", "ROLES": environ.Env().json("ROLES")}
""",
    "accounts/models.py": """
from django.db import models
class Organization(models.Model):
    name = models.TextField()
""",
    "accounts/migrations/0001_initial.py": """
from django.db import migrations, models
class Migration(migrations.Migration):
    initial, run_before = True, [("salon_jobs", "0003_fan_out")]
    operations = [
        migrations.CreateModel(
            "Organization", [("id", models.BigAutoField("ID", primary_key=True)), ("name", models.TextField())]
        )
    ]
""",
    "crm/models.py": "",
    "crm/migrations/0001_initial.py": """
from django.db import migrations, models
class Migration(migrations.Migration):
    initial, dependencies = True, [("accounts", "0001_initial")]
    key = models.BigAutoField("ID", auto_created=True, primary_key=True, serialize=False)
    text = models.TextField()
    organization = models.ForeignKey("accounts.Organization", models.CASCADE, null=True)
    operations = [
        migrations.CreateModel("Contact", [("id", key), ("organization", organization), ("name", text)]),
        migrations.CreateModel("Activity", [
            ("id", key.clone()), ("contact", models.ForeignKey("crm.Contact", models.CASCADE)), ("text", text.clone())
        ]),
    ]
""",
}
