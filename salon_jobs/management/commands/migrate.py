"""Is Django's ``migrate``, which here says what to run when the roles were not bootstrapped."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands.migrate import Command as MigrateCommand

from salon_jobs.core.errors import BootstrapMissing, ConversionMissing
from salon_jobs.runtime.preflight import require_login


class Command(MigrateCommand):
    """Looks whether the migrator can log in before Django's checks and plans fail on it with a traceback."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Migrate. Raises CommandError when the login is refused, a role is missing or the tables are another's."""
        try:
            require_login(options["database"])
            return super().execute(*args, **options)
        except (BootstrapMissing, ConversionMissing) as error:
            raise CommandError(f"{error.code}: {error}") from error
