"""Is Django's ``migrate``, which here says what to run when the roles were not bootstrapped."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands.migrate import Command as MigrateCommand

from salon_jobs.access.operations.for_hosts import require_store
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import BootstrapMissing, ConversionMissing
from salon_jobs.process.preflight import require_login


class Command(MigrateCommand):
    """Looks whether the migrator can log in before Django's checks and plans fail on it with a traceback.

    With one database user it demands a store of statements that meet a store's rows; a migrator's policies always do.
    """

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Migrate. Raises CommandError when the login is refused, a role is missing or the tables are another's."""
        try:
            alias = options["database"]
            require_login(alias)
            is_open = conf.roles is None and alias == conf.database
            with require_store(alias) if is_open else nullcontext():
                return super().execute(*args, **options)
        except (BootstrapMissing, ConversionMissing) as error:
            raise CommandError(f"{error.code}: {error}") from error
