"""Declares what a subcommand of ``manage.py salon_jobs`` is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from django.core.management.base import CommandParser, OutputWrapper


class Subcommand(ABC):
    """Parses its own options and calls what does the work, on ``conf.reader_database``.

    Its result goes to ``out``, as one JSON document where ``--json`` asks for it; questions and progress go to ``err``.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    # Whether the role of that alias is looked at before: it must be the operator's, or the worker's.
    needs_role: ClassVar[bool] = True

    @abstractmethod
    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""

    @abstractmethod
    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Do the work. Raises CommandError; SalonJobsError and database errors are told in one line by the caller."""
