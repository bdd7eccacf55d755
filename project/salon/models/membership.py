"""Memberships of users in stores."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models

from project.salon.models.store import StoreOwned
from salon_jobs.access import DatabaseForeignKey, MembershipIsolation


class Membership(StoreOwned):
    """Right of one signed-in user to work for one store. Deleted with the user, by the database's own foreign key."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )

    class Meta(StoreOwned.Meta):
        db_table = "membership"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["store", "id"], name="membership_store_id"),
            models.UniqueConstraint(fields=["store", "user"], name="membership_once"),
            DatabaseForeignKey(field="user", on_delete="CASCADE", name="membership_of_user"),
            MembershipIsolation(field="store", user_field="user", name="membership_isolation", worker=()),
        ]
        indexes: ClassVar = [models.Index(fields=["user"], name="membership_user")]

    def __str__(self) -> str:
        return f"membership {self.pk}"
