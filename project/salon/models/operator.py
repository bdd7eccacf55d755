"""People who run the chain: operators and their sessions (no store), and invitations (store-owned)."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models

from project.salon.models.store import StoreOwned
from salon_jobs.access import StoreIsolation, SystemScope


class Operator(models.Model):
    """One person who may run stores. System scope: operators belong to the chain."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    email = models.EmailField(unique=True)
    name = models.CharField(max_length=120)

    class Meta:
        db_table = "operator"
        constraints: ClassVar = [SystemScope(name="operator_scope", worker=())]

    def __str__(self) -> str:
        return self.name


class OperatorSession(models.Model):
    """One sign-in of an operator. System scope; useless once expired."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    operator = models.ForeignKey(Operator, on_delete=models.CASCADE, related_name="+")
    expires_at = models.DateTimeField()

    class Meta:
        db_table = "operator_session"
        constraints: ClassVar = [
            SystemScope(name="operator_session_scope", worker={"SELECT": ("id", "expires_at"), "DELETE": ()})
        ]
        indexes: ClassVar = [models.Index(fields=["expires_at"], name="operator_session_expires")]

    def __str__(self) -> str:
        return f"session until {self.expires_at:%Y-%m-%d %H:%M:%S}"


class OperatorInvitation(StoreOwned):
    """One invitation to run a store. ``sent_at`` is set once its e-mail was sent, so that it is sent only once."""

    email = models.EmailField()
    token = models.CharField(max_length=64)
    expires_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)

    class Meta(StoreOwned.Meta):
        db_table = "operator_invitation"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["store", "id"], name="operator_invitation_store_id"),
            models.UniqueConstraint(fields=["store", "token"], name="operator_invitation_token"),
            StoreIsolation(field="store", name="operator_invitation_isolation"),
        ]
        indexes: ClassVar = [models.Index(fields=["expires_at"], name="operator_invitation_expires")]

    def __str__(self) -> str:
        return f"invitation of {self.email}"
