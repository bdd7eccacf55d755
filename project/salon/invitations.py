"""Invitations of operators: the row and the job that mails it are written in one transaction."""

from __future__ import annotations

import secrets
from datetime import timedelta
from uuid import UUID

from django.utils import timezone

from project.salon.models.operator import OperatorInvitation
from project.salon.tasks.operator import send_operator_invitation_email
from salon_jobs import tenant_context

VALID_FOR = timedelta(days=7)


def invite_operator(store_id: UUID, email: str, *, max_attempts: int | None = None) -> OperatorInvitation:
    """Create an invitation and enqueue its e-mail, both or neither. Runs as the web role, in the store's context."""
    send = send_operator_invitation_email.using(max_attempts=max_attempts)
    with tenant_context(store_id):
        invitation = OperatorInvitation.objects.create(
            store_id=store_id, email=email, token=secrets.token_urlsafe(32), expires_at=timezone.now() + VALID_FOR
        )
        send.enqueue(store_id=store_id, invitation_id=invitation.pk)
    return invitation
