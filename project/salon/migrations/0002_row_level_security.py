"""Shows each store its own rows alone, in the store table too."""

from salon_jobs.migration_ops import EnableStoreRLS, LocksBriefly


class Migration(LocksBriefly):
    """Enables and forces row-level security on every store-owned table."""

    dependencies = [("salon", "0001_tables")]

    operations = [
        EnableStoreRLS("Store", store_field="id"),
        EnableStoreRLS("Customer", store_field="store_id"),
        EnableStoreRLS("CustomerNote", store_field="store_id"),
        EnableStoreRLS("Reservation", store_field="store_id"),
        EnableStoreRLS("Sale", store_field="store_id"),
        EnableStoreRLS("DailySales", store_field="store_id"),
        EnableStoreRLS("OperatorInvitation", store_field="store_id"),
    ]
