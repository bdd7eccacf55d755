"""Invitation e-mails, and deletion of expired sessions and invitations."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from django.core.mail import EmailMessage
from django.db import connections
from django.db.models.functions import Now

from project.salon.models.operator import OperatorInvitation, OperatorSession
from project.salon.tasks.tick import current_tick
from salon_jobs import Discard, current_job, store_task, task, tenant_context


@task(name="cleanup-expired-operator-sessions", max_attempts=3)
def cleanup_expired_operator_sessions(reason: Literal["cron"]) -> None:
    """Delete sessions that expired before the tick. The table is in system scope, without stores. Idempotent."""
    OperatorSession.objects.filter(expires_at__lt=current_tick()).delete()


@task(name="cleanup-expired-operator-invitations", max_attempts=3)
def cleanup_expired_operator_invitations(reason: Literal["cron"]) -> None:
    """Delete invitations of all stores that expired before the tick. Idempotent.

    Uses the one function that may, because this role sees no store's rows here.
    """
    with connections[OperatorInvitation.objects.db].cursor() as cursor:
        cursor.execute("SELECT public.delete_expired_operator_invitations(%s)", [current_tick()])


@store_task(name="send-operator-invitation-email", atomic=False)
def send_operator_invitation_email(store_id: UUID, invitation_id: UUID) -> None:
    """Send the invitation's e-mail and mark it as sent. Holds no transaction while talking to the mail server.

    Idempotent: an invitation already marked is left alone. Only a crash between the two can repeat the mail, which then
    has the same Message-ID. If the invitation is gone or has expired, the job is discarded.
    """
    with tenant_context(store_id):
        asked = OperatorInvitation.objects.filter(store_id=store_id, pk=invitation_id)
        invitation = asked.select_related("store").first()
        expired = asked.filter(expires_at__lte=Now()).exists()
    if invitation is None:
        raise Discard("the invitation is gone")
    if invitation.sent_at is not None:
        return
    if expired:
        raise Discard("the invitation has expired")
    _mail(invitation).send()
    with tenant_context(store_id):
        OperatorInvitation.objects.filter(store_id=store_id, pk=invitation_id, sent_at=None).update(sent_at=Now())
        current_job().finish()


def _mail(invitation: OperatorInvitation) -> EmailMessage:
    return EmailMessage(
        subject=f"Your invitation to {invitation.store.name}",
        body=(
            f"You are invited to run {invitation.store.name}.\n\n"
            f"https://salon.example/invitations/{invitation.token}\n\n"
            f"The invitation is valid until {invitation.expires_at:%Y-%m-%d %H:%M} UTC.\n"
        ),
        to=[invitation.email],
        headers={"Message-ID": f"<invitation-{invitation.pk}@salon.example>"},
    )
