"""Tells in one line what keeps a command from its work."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError
from psycopg import Error as PsycopgError

from salon_jobs.core.errors import ConfigurationError, NotReady, SalonJobsError


@contextmanager
def told_in_one_line() -> Generator[None]:
    """Turn refusals of ours, of Django's settings, of the database and of the machine into a CommandError with code."""
    try:
        yield
    except SalonJobsError as error:
        raise CommandError(f"{error.code}: {error}") from error
    except ImproperlyConfigured as error:
        raise CommandError(f"{ConfigurationError.code}: {error}") from error
    except (DatabaseError, InterfaceError, PsycopgError, OSError) as error:
        raise CommandError(f"{NotReady.code}: {error}") from error
