"""Django's ``migrate``, which also names the command to run if the roles have not been bootstrapped."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands.migrate import Command as MigrateCommand
from django.db import DataError, IntegrityError

from salon_jobs.access.constraints import rows_that_violate
from salon_jobs.access.operations.stores import require_store
from salon_jobs.access.policies import NO_STORE
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import BootstrapMissing, ConversionMissing, NotReady
from salon_jobs.db.connections import holds_job_tables, is_of_jobs
from salon_jobs.process.preflight import require_login


class Command(MigrateCommand):
    """Command that checks the migrator's login, before Django's checks fail on it with a traceback.

    With one database user, statements that touch stores' rows fail without a store, as they do for a migrator.
    """

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Migrate.

        Raises CommandError if the login is refused, a role is missing, another role owns the tables, or it is unknown
        whether the alias leads to them.

        An error of a foreign key that the project's SQL adds gets a note with the SQL to write instead, and an error of
        rows that violate a SameStoreForeignKey the query that finds them.
        """
        try:
            alias = options["database"]
            if has_jobs := is_of_jobs(alias) or holds_job_tables(alias):
                require_login(alias)
            with require_store(alias) if has_jobs and conf.roles.one_user else nullcontext():
                return super().execute(*args, **options)
        except (BootstrapMissing, ConversionMissing, NotReady) as error:
            raise CommandError(f"{error.code}: {error}") from error
        except IntegrityError as error:
            if (query := rows_that_violate(error)) is not None:
                error.add_note(
                    f"Rows refer to another store's row, or to none. A superuser finds them with: {query}. Correct or"
                    " delete them; if the key exists already, drop it; then migrate again"
                )
            raise
        except DataError as error:
            # PostgreSQL's query that validates a foreign key, whatever language introduces it.
            context = getattr(getattr(error.__cause__, "diag", None), "context", None)
            if NO_STORE in str(error) and "SELECT fk." in (context or ""):
                error.add_note(
                    "A foreign key from or to an isolated table that a statement of your own adds is checked without a"
                    " store. Declare it in the model, whose migration checks all rows: a ForeignKey with its"
                    " constraint; between rows of one store SameStoreForeignKey; and for a key by which the database"
                    " deletes rows DatabaseForeignKey"
                )
            raise
