"""Command that creates the login for the demo's admin."""

from __future__ import annotations

import sys
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser


class Command(BaseCommand):
    """Command that creates an admin superuser or resets its password. Connects as the migrator. Idempotent."""

    help = "Create the demo's login for the admin, or change its password; reads the password from standard input."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")

    def handle(self, *args: Any, **options: Any) -> None:
        password = sys.stdin.readline().strip()
        if not password:
            raise CommandError("give the password on standard input")
        user, _ = User.objects.get_or_create(username=options["username"])
        user.is_staff = user.is_superuser = True
        user.set_password(password)
        user.save()
        self.stdout.write(f"login {user.username} is ready")
