"""Subcommands of ``manage.py salon_jobs``, one file for each group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from django.core.management.base import CommandParser, OutputWrapper


class Subcommand(ABC):
    """Subcommand that declares its options and calls the functions that do the work, on ``conf.reader_database``.

    Its result goes to ``out``, with ``--json`` as one JSON document; questions and progress go to ``err``.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    # Whether that alias must connect as the operator or the worker.
    needs_role: ClassVar[bool] = True

    @abstractmethod
    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""

    @abstractmethod
    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Do the work. Raises CommandError; the caller reports SalonJobsError and database errors in one line."""
