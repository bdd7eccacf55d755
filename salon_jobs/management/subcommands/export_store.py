"""Hands out what is held of one store: ``salon_jobs export-store``."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO
from uuid import UUID

from django.core.management.base import CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.management.progress import Progress
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.offboarding.export import export_store


class ExportStore(Subcommand):
    """Writes a store's jobs, errors, messages and inbox rows as JSON lines."""

    name = "export-store"
    help = "Write the jobs, payloads, errors, messages and inbox rows of one store as JSON lines, one for each row."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("store", type=UUID, help="the id of a store")
        parser.add_argument(
            "--output", metavar="FILE", help="write to a new file, for its owner alone; else to standard output"
        )
        parser.add_argument("--unredacted", action="store_true", help="with the values that REDACT hides")
        parser.add_argument("--json", action="store_true", help="with --output: write the counts as JSON")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Write the lines, the progress to standard error, then the counts. A file that is there is refused."""
        file: Any = _new_file(options["output"]) if options["output"] else nullcontext(out)
        with file as lines:
            counts = export_store(
                options["store"], lines, unredacted=options["unredacted"], progress=Progress(err).tell,
                using=conf.reader_database,
            )  # fmt: skip
        told = out if options["output"] else err
        told.write(
            json.dumps(counts)
            if options["json"]
            else "exported: " + ", ".join(f"{count:,} {name}" for name, count in counts.items())
        )


@contextmanager
def _new_file(path: str) -> Generator[TextIO]:
    """Give a new file, which is removed when the export does not get to its end: a part looks like the whole."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            yield file
    except BaseException:
        Path(path).unlink()
        raise
