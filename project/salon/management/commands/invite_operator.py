"""Command that invites operators, as the web role would from a form."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.validators import validate_email

from project.salon.invitations import invite_operator


class Command(BaseCommand):
    """Command that creates invitations and enqueues their e-mails. Connects as the web role (``DATABASE_URL``)."""

    help = "Invite operators: each invitation and the job that mails it are written in one transaction."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--to", nargs=2, action="append", required=True, metavar=("STORE_ID", "EMAIL"), help="may be repeated"
        )
        parser.add_argument("--max-attempts", type=int, help="default: that of the task")

    def handle(self, *args: Any, **options: Any) -> None:
        """Check all input, then invite. Print one line per invitation."""
        for store_id, email in [_checked(store_id, email) for store_id, email in options["to"]]:
            invitation = invite_operator(store_id, email, max_attempts=options["max_attempts"])
            self.stdout.write(f"{invitation.pk} {email}")


def _checked(store_id: str, email: str) -> tuple[UUID, str]:
    try:
        validate_email(email)
        return UUID(store_id), email
    except ValidationError as error:
        raise CommandError(f"{email!r} is not an e-mail address") from error
    except ValueError as error:
        raise CommandError(f"{store_id!r} is not the UUID of a store") from error
