"""``salon_jobs export-store`` and ``salon_jobs erase-store``."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser

from salon_jobs.core.units import with_noun
from salon_jobs.erasure import cancel_store, erase_store, export_store, running_jobs, store_state
from salon_jobs.jobs.limits import scope_named
from salon_jobs.management.arguments import add_options, duration, os_user, store
from salon_jobs.management.output import Console, listed_counts
from salon_jobs.management.subcommands import Subcommand
from salon_jobs.models import Limit
from salon_jobs.verbs import verbs_of

_POLL_S: Final = 0.25
_WAIT_S: Final = 60.0


class EraseStore(Subcommand):
    """Subcommand that deletes a store's jobs, errors, messages, inbox rows and limits, in batches."""

    name = "erase-store"
    help = "Delete the jobs, payloads, errors, messages and inbox rows of a store. Export them first."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("store", type=store, help="the ID of a store")
        parser.add_argument(
            "--cancel", action="store_true", help="cancel its jobs first; otherwise none may be running"
        )
        parser.add_argument(
            "--wait", type=duration, metavar="TIME", help="with --cancel: longest wait for running jobs (default 60s)"
        )
        parser.add_argument("--skip-unsent", action="store_true", help="give up its unsent messages")
        add_options(parser, "--yes", "--json")

    def run(self, console: Console) -> None:
        """Ask, pause the store, end its runs, erase. Raises CommandError if this is impossible or rows remain."""
        store_id, using = console["store"], console.using
        state = store_state(store_id, using=using)
        if state.running and not console["cancel"]:
            jobs = with_noun(state.running, "running job")
            raise CommandError(f"the store has {jobs}: pass --cancel, or wait")
        otherwise = "nothing was erased"
        if state.unsent:
            question = f"Give up {with_noun(len(state.unsent), 'unsent message')}?"
            remedy = "pass --skip-unsent, or wait until they are sent"
            console.confirm(question, unless="skip_unsent", otherwise=otherwise, remedy=remedy)
        console.confirm(f"Erase all data held for store {store_id}?", otherwise=otherwise)
        verbs_of(Limit)["pause"].apply([scope_named(store_id=store_id)], by=os_user(), using=using)
        if console["cancel"]:
            cancel_store(store_id, using=using)
            end = time.monotonic() + (_WAIT_S if console["wait"] is None else console["wait"].total_seconds())
            with console.progress() as progress:
                while running := running_jobs(store_id, using=using):
                    if time.monotonic() >= end:
                        raise CommandError(
                            f"{with_noun(running, 'job')} of the store still running; nothing was erased, the store is"
                            " paused: try again later"
                        )
                    progress("jobs are running", running)
                    time.sleep(_POLL_S)
        # Read again, since relays and writers have continued.
        unsent = store_state(store_id, using=using).unsent if console["skip_unsent"] else state.unsent
        with console.progress() as progress:
            counts = erase_store(store_id, unsent, progress=progress, using=using)
        console.result(counts, f"erased: {listed_counts(counts)}")
        remaining = store_state(store_id, using=using)
        if remaining.running or remaining.waiting or remaining.unsent:
            raise CommandError(
                f"{with_noun(remaining.running + remaining.waiting, 'job')} and "
                f"{with_noun(len(remaining.unsent), 'unsent message')} were added meanwhile; run the command again"
            )


class ExportStore(Subcommand):
    """Subcommand that writes a store's jobs, errors, messages and inbox rows as JSON lines."""

    name = "export-store"
    help = "Write the jobs, payloads, errors, messages and inbox rows of a store as JSON lines, one for each row."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("store", type=store, help="the ID of a store")
        parser.add_argument(
            "--output", metavar="FILE", help="write to a new file that only its owner can read; default standard output"
        )
        parser.add_argument("--unredacted", action="store_true", help="include the values that REDACT hides")
        add_options(parser, "--json")

    def run(self, console: Console) -> None:
        """Write the lines, the progress to standard error, and then the counts. Never overwrites a file."""
        path, store, unredacted = console["output"], console["store"], console["unredacted"]
        with console.progress() as progress:
            export = partial(export_store, store, unredacted=unredacted, progress=progress, using=console.using)
            if path is None:
                out: Any = console.out
                counts = export(out)
                report = Console(console.options, console.err, console.err)
            else:
                number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                try:
                    with os.fdopen(number, "w", encoding="utf-8") as lines:
                        counts = export(lines)
                except BaseException:
                    Path(path).unlink()  # a partial export looks complete
                    raise
                report = console
        report.result(counts, f"exported: {listed_counts(counts)}")
