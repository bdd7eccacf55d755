"""Declares the table, which the measure creates."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Row(models.Model):
    """Row with a number."""

    number = models.IntegerField()

    objects: ClassVar[models.Manager[Row]] = models.Manager()

    class Meta:
        app_label = "rows"
        managed = False
        db_table = "bench_row"

    def __str__(self) -> str:
        return str(self.number)
