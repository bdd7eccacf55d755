"""Contents of the cash register: sales, and their totals by business day."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from project.salon.models.store import StoreOwned
from salon_jobs.access import StoreIsolation


class Sale(StoreOwned):
    """One sale, in yen."""

    sold_at = models.DateTimeField()
    amount = models.PositiveIntegerField(help_text="Yen")

    class Meta(StoreOwned.Meta):
        db_table = "sale"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["store", "id"], name="sale_store_id"),
            StoreIsolation(field="store", name="sale_isolation"),
        ]
        indexes: ClassVar = [models.Index(fields=["store", "sold_at"], include=["amount"], name="sale_sold_at")]

    def __str__(self) -> str:
        return f"¥{self.amount} at {self.sold_at:%Y-%m-%d %H:%M:%S}"


class DailySales(StoreOwned):
    """The sales of one store on one business day (JST, midnight to midnight); a day without a sale has zeros."""

    business_date = models.DateField()
    total = models.PositiveBigIntegerField(help_text="Yen")
    count = models.PositiveIntegerField()

    class Meta(StoreOwned.Meta):
        db_table = "daily_sales"
        verbose_name_plural = "daily sales"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["store", "business_date"], name="daily_sales_once_a_day"),
            StoreIsolation(field="store", name="daily_sales_isolation"),
        ]

    def __str__(self) -> str:
        return f"¥{self.total} in {self.count} sales on {self.business_date}"
