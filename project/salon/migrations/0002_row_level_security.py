"""Shows each store its own rows alone, in the store table too."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from salon_jobs.migration_ops import EnableStoreRLS


class Migration(migrations.Migration):
    """Enables and forces row-level security on every store-owned table."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("salon", "0001_tables")]

    operations: ClassVar[list[Operation]] = [
        EnableStoreRLS("Store", store_field="id"),
        EnableStoreRLS("Customer", store_field="store_id"),
        EnableStoreRLS("CustomerNote", store_field="store_id"),
        EnableStoreRLS("Reservation", store_field="store_id"),
        EnableStoreRLS("Sale", store_field="store_id"),
        EnableStoreRLS("DailySales", store_field="store_id"),
        EnableStoreRLS("OperatorInvitation", store_field="store_id"),
    ]
