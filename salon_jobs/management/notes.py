"""Texts that all commands write to standard error: questions, notes and errors."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, OutputWrapper
from django.db import Error
from psycopg import Error as PsycopgError
from psycopg.errors import UndefinedTable

from salon_jobs.core.errors import ConfigurationError, NotReady, SalonJobsError, SchemaMissing
from salon_jobs.db.read_only import ServerReadOnly, failed_read_only


def ask(question: str, err: OutputWrapper, *, otherwise: str, remedy: str = "pass --yes") -> None:
    """Ask for a yes. Raises CommandError: ``otherwise`` after a no, ``remedy`` without a terminal."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} No terminal to confirm on; {remedy}")
    err.write(f"{question} [y/N] ", ending="")
    err.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError(otherwise)


def warn_of_kept_passwords(names: Iterable[str], err: OutputWrapper) -> None:
    """Name the roles whose password bootstrap kept although the settings have another."""
    for name in names:
        err.write(
            f"kept the password of {name}, which is not the one in ROLE_PASSWORDS; "
            "python manage.py bootstrap_roles --change-passwords changes it"
        )


@contextmanager
def plain_notes(err: OutputWrapper) -> Generator[None]:
    """Write to ``err`` without the colour of errors: a command's output there is a note, unless it raises."""
    colour, err.style_func = err.style_func, None
    try:
        yield
    finally:
        err.style_func = colour


@contextmanager
def as_command_error(returncode: int = 1, remedy: str = "") -> Generator[None]:
    """Turn our errors and those of settings, database and operating system into a CommandError with a code.

    ``remedy`` is added to those that a server, a network or the operating system causes: others have their own.
    """
    try:
        yield
    except SalonJobsError as error:
        text = f"{error.code}: {error}{remedy if isinstance(error, NotReady) else ''}"
        raise CommandError(text, returncode=returncode) from error
    except ImproperlyConfigured as error:
        raise CommandError(f"{ConfigurationError.code}: {error}", returncode=returncode) from error
    except (Error, PsycopgError, OSError) as error:
        if isinstance(error.__cause__, UndefinedTable) and "salon_jobs_" in str(error):
            raise CommandError(
                f"{SchemaMissing.code}: the job tables are missing; run: python manage.py migrate",
                returncode=returncode,
            ) from error
        text = str(ServerReadOnly() if failed_read_only(error) else error).rstrip()
        raise CommandError(f"{NotReady.code}: {text}{remedy}", returncode=returncode) from error
