"""Subcommands of ``manage.py salon_jobs``: one file for each group. The command lists them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from django.core.management.base import CommandParser, OutputWrapper


class Subcommand(ABC):
    """Subcommand that parses its own options and calls the function that does the work, on ``conf.reader_database``.

    Its result goes to ``out``, as one JSON document with ``--json``; questions and progress go to ``err``.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    # Whether the role of that alias is checked first: it must be the operator's or the worker's.
    needs_role: ClassVar[bool] = True

    @abstractmethod
    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""

    @abstractmethod
    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Do the work. Raises CommandError; the caller reports SalonJobsError and database errors in one line."""
