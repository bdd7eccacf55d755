"""Restricts each store to its own rows, including in the store table."""

from django.db import migrations

from salon_jobs.access import StoreIsolation
from salon_jobs.access.operations import LocksBriefly


class Migration(LocksBriefly):
    """Migration that enables and forces row-level security on every store-owned table."""

    dependencies = [("salon", "0001_tables")]

    operations = [
        migrations.AddConstraint("store", StoreIsolation(field="id", name="store_isolation")),
        migrations.AddConstraint("customer", StoreIsolation(field="store", name="customer_isolation")),
        migrations.AddConstraint("customernote", StoreIsolation(field="store", name="customer_note_isolation")),
        migrations.AddConstraint("reservation", StoreIsolation(field="store", name="reservation_isolation")),
        migrations.AddConstraint("sale", StoreIsolation(field="store", name="sale_isolation")),
        migrations.AddConstraint("dailysales", StoreIsolation(field="store", name="daily_sales_isolation")),
        migrations.AddConstraint(
            "operatorinvitation", StoreIsolation(field="store", name="operator_invitation_isolation")
        ),
    ]
