"""Command that adds a user to a store."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import IntegrityError

from project.salon.models import Membership
from salon_jobs import tenant_context
from salon_jobs.core.errors import TenantContextError


class Command(BaseCommand):
    """Command that adds a membership. Connects as the web role (``DATABASE_URL``). Idempotent."""

    help = "Make a user a member of a store."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")
        parser.add_argument("store_id")

    def handle(self, *args: Any, **options: Any) -> None:
        """Find the user, then add the membership in the store's context."""
        try:
            user = User.objects.get(username=options["username"])
        except User.DoesNotExist:
            raise CommandError(f"there is no user {options['username']!r}") from None
        try:
            with tenant_context(options["store_id"]):
                Membership.objects.get_or_create(user=user, store_id=options["store_id"])
        except TenantContextError as error:
            raise CommandError(str(error)) from None
        except IntegrityError:
            raise CommandError(f"there is no store {options['store_id']}") from None
        self.stdout.write(f"{user.username} belongs to {options['store_id']}")
