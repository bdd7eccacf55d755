"""Adds memberships (which user works for which store), and lets the web role find a user's stores without a context."""

import uuid

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from salon_jobs.access import DatabaseForeignKey, MembershipIsolation
from salon_jobs.access.operations import LocksBriefly


class Migration(LocksBriefly):
    """Migration that creates an empty table; its foreign key briefly locks the users' table."""

    dependencies = [("salon", "0004_least_privilege"), migrations.swappable_dependency(settings.AUTH_USER_MODEL)]

    operations = [
        migrations.CreateModel(
            name="Membership",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                (
                    "store",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="salon.store",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "db_table": "membership",
                "indexes": [models.Index(fields=["user"], name="membership_user")],
                "constraints": [
                    models.UniqueConstraint(fields=("store", "id"), name="membership_store_id"),
                    models.UniqueConstraint(fields=("store", "user"), name="membership_once"),
                    DatabaseForeignKey(field="user", on_delete="CASCADE", name="membership_of_user"),
                    MembershipIsolation(field="store", user_field="user", name="membership_isolation", worker=()),
                ],
            },
        )
    ]
