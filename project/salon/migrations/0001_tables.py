"""Creates the tables, with composite foreign keys between rows of one store."""

import uuid

import django.db.models.deletion
from django.db import migrations, models

from salon_jobs.access import SameStoreForeignKey
from salon_jobs.access.operations import LocksBriefly


class Migration(LocksBriefly):
    """Migration of empty tables, so no lock matters. Needs the roles, whose default privileges apply to the tables."""

    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Operator",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("email", models.EmailField(max_length=254, unique=True)),
                ("name", models.CharField(max_length=120)),
            ],
            options={"db_table": "operator"},
        ),
        migrations.CreateModel(
            name="Store",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=120)),
            ],
            options={"db_table": "store"},
        ),
        migrations.CreateModel(
            name="Customer",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=120)),
                ("email", models.EmailField(max_length=254)),
                ("deleted_at", models.DateTimeField(null=True)),
                (
                    "store",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="salon.store",
                    ),
                ),
            ],
            options={"db_table": "customer"},
        ),
        migrations.CreateModel(
            name="OperatorSession",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("expires_at", models.DateTimeField()),
                (
                    "operator",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="salon.operator"
                    ),
                ),
            ],
            options={
                "db_table": "operator_session",
                "indexes": [models.Index(fields=["expires_at"], name="operator_session_expires")],
            },
        ),
        migrations.CreateModel(
            name="Sale",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("sold_at", models.DateTimeField()),
                ("amount", models.PositiveIntegerField(help_text="Yen")),
                (
                    "store",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="salon.store",
                    ),
                ),
            ],
            options={
                "db_table": "sale",
                "indexes": [models.Index(fields=["store", "sold_at"], include=("amount",), name="sale_sold_at")],
                "constraints": [models.UniqueConstraint(fields=("store", "id"), name="sale_store_id")],
            },
        ),
        migrations.CreateModel(
            name="Reservation",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("tentative", "Tentative"),
                            ("confirmed", "Confirmed"),
                            ("cancelled", "Cancelled"),
                            ("expired", "Expired"),
                        ],
                        default="tentative",
                        max_length=16,
                    ),
                ),
                ("starts_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(help_text="When a tentative reservation lapses", null=True)),
                (
                    "customer",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="salon.customer",
                    ),
                ),
                (
                    "store",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="salon.store",
                    ),
                ),
            ],
            options={
                "db_table": "reservation",
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "tentative")),
                        fields=["store", "expires_at"],
                        name="reservation_tentative",
                    ),
                    models.Index(fields=["store", "customer"], name="reservation_customer"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("store", "id"), name="reservation_store_id"),
                    models.CheckConstraint(
                        condition=models.Q(("status__in", ["tentative", "confirmed", "cancelled", "expired"])),
                        name="reservation_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("status", "tentative"), _negated=True),
                            ("expires_at__isnull", False),
                            _connector="OR",
                        ),
                        name="reservation_tentative_expires",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="OperatorInvitation",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("email", models.EmailField(max_length=254)),
                ("token", models.CharField(max_length=64)),
                ("expires_at", models.DateTimeField()),
                ("sent_at", models.DateTimeField(null=True)),
                (
                    "store",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="salon.store",
                    ),
                ),
            ],
            options={
                "db_table": "operator_invitation",
                "indexes": [models.Index(fields=["expires_at"], name="operator_invitation_expires")],
                "constraints": [
                    models.UniqueConstraint(fields=("store", "id"), name="operator_invitation_store_id"),
                    models.UniqueConstraint(fields=("store", "token"), name="operator_invitation_token"),
                ],
            },
        ),
        migrations.CreateModel(
            name="DailySales",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("business_date", models.DateField()),
                ("total", models.PositiveBigIntegerField(help_text="Yen")),
                ("count", models.PositiveIntegerField()),
                (
                    "store",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="salon.store",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "daily sales",
                "db_table": "daily_sales",
                "constraints": [
                    models.UniqueConstraint(fields=("store", "business_date"), name="daily_sales_once_a_day")
                ],
            },
        ),
        migrations.CreateModel(
            name="CustomerNote",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("body", models.TextField()),
                ("deleted_at", models.DateTimeField(null=True)),
                (
                    "customer",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="salon.customer",
                    ),
                ),
                (
                    "store",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="salon.store",
                    ),
                ),
            ],
            options={
                "db_table": "customer_note",
                "indexes": [
                    models.Index(fields=["store", "customer"], name="customer_note_customer"),
                    models.Index(
                        condition=models.Q(("deleted_at__isnull", False)),
                        fields=["store", "deleted_at"],
                        name="customer_note_deleted",
                    ),
                ],
                "constraints": [models.UniqueConstraint(fields=("store", "id"), name="customer_note_store_id")],
            },
        ),
        migrations.AddIndex(
            model_name="customer",
            index=models.Index(
                condition=models.Q(("deleted_at__isnull", False)),
                fields=["store", "deleted_at"],
                name="customer_deleted",
            ),
        ),
        migrations.AddConstraint(
            model_name="customer", constraint=models.UniqueConstraint(fields=("store", "id"), name="customer_store_id")
        ),
        migrations.AddConstraint(
            model_name="customernote",
            constraint=SameStoreForeignKey(field="customer", name="customer_note_customer_of_same_store"),
        ),
        migrations.AddConstraint(
            model_name="reservation",
            constraint=SameStoreForeignKey(field="customer", name="reservation_customer_of_same_store"),
        ),
    ]
