"""``salon_jobs export-store`` and ``salon_jobs erase-store``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, TextIO
from uuid import UUID

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.erasure import cancel_store, erase_store, export_store, look_at_store, running_jobs
from salon_jobs.jobs.limits import pause
from salon_jobs.management.arguments import duration
from salon_jobs.management.output import Progress, ask
from salon_jobs.management.subcommands.base import Subcommand

_LOOK_EVERY_S: Final = 0.25
_WAIT_S: Final = 60.0


class EraseStore(Subcommand):
    """Subcommand that deletes a store's jobs, errors, messages, inbox rows and limits, in batches."""

    name = "erase-store"
    help = "Delete the jobs, payloads, errors, messages and inbox rows of one store. Export them first."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("store", type=UUID, help="the id of a store")
        parser.add_argument("--cancel", action="store_true", help="cancel its jobs first; else none may run")
        parser.add_argument(
            "--wait", type=duration, metavar="TIME", help="with --cancel: so long at most for running jobs; default 60s"
        )
        parser.add_argument("--skip-unsent", action="store_true", help="give its messages up that are not sent yet")
        parser.add_argument("--yes", action="store_true", help="do not ask whether to erase")
        parser.add_argument("--json", action="store_true", help="write the counts as JSON")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Ask, pause the store, end its runs, erase. Raises CommandError when something prevents it or is left over."""
        store_id, using = options["store"], conf.reader_database
        state = look_at_store(store_id, using=using)
        if state.running and not options["cancel"]:
            raise CommandError(f"{state.running:,} jobs of the store run: add --cancel, or wait for them")
        if state.unsent and not options["skip_unsent"]:
            ask(
                f"{len(state.unsent):,} messages are not sent yet. Give them up?",
                err,
                otherwise="nothing was erased",
                remedy="add --skip-unsent, or have them sent first",
            )
        if not options["yes"]:
            ask(
                f"Erase everything that is held of store {store_id}?",
                err,
                otherwise="nothing was erased",
                remedy="add --yes",
            )
        pause(store_id=store_id, using=using)
        if options["cancel"]:
            cancel_store(store_id, using=using)
            _await_end(store_id, _WAIT_S if options["wait"] is None else options["wait"].total_seconds(), err)
        # Look again: relays and writers continued meanwhile.
        unsent = look_at_store(store_id, using=using).unsent if options["skip_unsent"] else state.unsent
        counts = erase_store(store_id, unsent, progress=Progress(err).tell, using=using)
        out.write(
            json.dumps(counts)
            if options["json"]
            else "erased: " + ", ".join(f"{count:,} {name}" for name, count in counts.items())
        )
        left = look_at_store(store_id, using=using)
        if left.running or left.waiting or left.unsent:
            raise CommandError(
                f"written meanwhile, and left: {left.running + left.waiting:,} jobs, {len(left.unsent):,} unsent "
                "messages; run it again"
            )


def _await_end(store_id: UUID, wait_s: float, err: OutputWrapper) -> None:
    end = time.monotonic() + wait_s
    progress = Progress(err)
    while running := running_jobs(store_id, using=conf.reader_database):
        if time.monotonic() >= end:
            raise CommandError(
                f"{running:,} jobs of the store still run; nothing was erased, the store is paused: try again later"
            )
        progress.tell("jobs run", running)
        time.sleep(_LOOK_EVERY_S)


class ExportStore(Subcommand):
    """Subcommand that writes a store's jobs, errors, messages and inbox rows as JSON lines."""

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
        """Write the lines, the progress to standard error, then the counts. Refuses to overwrite a file."""
        file: Any = _new_file(options["output"]) if options["output"] else nullcontext(out)
        with file as lines:
            counts = export_store(
                options["store"],
                lines,
                unredacted=options["unredacted"],
                progress=Progress(err).tell,
                using=conf.reader_database,
            )
        told = out if options["output"] else err
        told.write(
            json.dumps(counts)
            if options["json"]
            else "exported: " + ", ".join(f"{count:,} {name}" for name, count in counts.items())
        )


@contextmanager
def _new_file(path: str) -> Generator[TextIO]:
    """Open a new file, which is removed when the export does not complete: a part looks like the whole."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            yield file
    except BaseException:
        Path(path).unlink()
        raise
