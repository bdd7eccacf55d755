"""``salon_jobs top``."""

from __future__ import annotations

import importlib
import os
import select
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import islice
from types import TracebackType
from typing import Any, Final, TextIO, TypeAlias

from django.core.management.base import CommandParser
from django.db import Error
from django.utils import timezone
from rich.console import Console as Screen
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from salon_jobs.core.errors import NotReady
from salon_jobs.core.text import visible
from salon_jobs.core.units import about, duration, estimated, number, with_noun
from salon_jobs.dashboard.facts import Facts
from salon_jobs.dashboard.processes import ProcessAtWork
from salon_jobs.dashboard.queues import Waiting
from salon_jobs.dashboard.verdict import Problem, problems
from salon_jobs.db.clock import now, one_instant
from salon_jobs.jobs.search import FailureKind
from salon_jobs.jobs.statistics import TaskTotals, totals
from salon_jobs.management.arguments import duration as duration_option
from salon_jobs.management.output import Console, Listing, printable_lines, screen_of
from salon_jobs.management.subcommands import Subcommand
from salon_jobs.management.subcommands.statistics import described
from salon_jobs.process.probe import Probe
from salon_jobs.tenancy.names import store_names


class Keys:
    """Context manager that reads keys from a terminal as they are pressed, without echo. Ctrl-C still works.

    Reads none if the stream is not a terminal, or on Windows.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._before: list[Any] | None = None

    def __enter__(self) -> Keys:
        if os.name == "posix" and self._stream.isatty():
            self._termios: Any = importlib.import_module("termios")  # missing on Windows
            self._before = self._termios.tcgetattr(self._stream)
            importlib.import_module("tty").setcbreak(self._stream)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before is not None:
            self._termios.tcsetattr(self._stream, self._termios.TCSADRAIN, self._before)

    def pressed(self, key: str, *, within_s: float) -> bool:
        """Wait up to ``within_s`` for this key; return whether it was pressed or the terminal is gone.

        Other keys are dropped.
        """
        end = time.monotonic() + within_s
        while (remaining_s := end - time.monotonic()) > 0:
            if self._before is None:
                time.sleep(remaining_s)
            elif select.select([self._stream], [], [], remaining_s)[0]:
                # Not through the stream, which reads ahead: select does not see its buffer.
                keys = os.read(self._stream.fileno(), 64)
                if key.encode() in keys or not keys:
                    return True
        return False


_LAST: Final = timedelta(minutes=5)
# Rows of each table, and names in a line of the summary. A page has five tables; a terminal of few lines shows the
# first two and most of the third.
_MOST_ROWS: Final = 8
_FEWEST_ROWS: Final = 3
_TABLES: Final = 5
_BESIDES: Final = 18
_NAMED: Final = 8
_PROBLEMS: Final = 3
Section: TypeAlias = tuple[Sequence[str], Iterable[Sequence[object]]]
# With a busy database a page can take this long; Ctrl-C works in the meantime.
_PATIENCE_S: Final = 10.0


class Top(Subcommand):
    """Subcommand that shows queues, slow and failing tasks, running jobs and failures until q is pressed."""

    name = "top"
    help = "Show queues, rates, running jobs, slow and failing tasks, refreshed until q or Ctrl-C is pressed."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="write one page and exit, as without a terminal")
        parser.add_argument("--json", action="store_true", help="write one page as JSON, times in seconds")
        parser.add_argument(
            "--every",
            type=duration_option,
            default=timedelta(seconds=2),
            metavar="TIME",
            help="how often to refresh (default 2s)",
        )

    def run(self, console: Console) -> None:
        """Write one page without a terminal; otherwise refresh it, even while the database does not respond."""
        options, using = console.options, console.using
        if options["json"]:
            console.result(_described(using), "")
            return
        if options["once"] or not console.out.isatty():
            console.write(_page(using))
            return
        # Not through Django's wrapper, which appends line ends.
        screen = screen_of(sys.stdout, options)
        page = Probe(lambda: _page(using, screen), patience_s=_PATIENCE_S)
        with (
            suppress(KeyboardInterrupt),
            Keys(sys.stdin) as keys,
            Live(console=screen, screen=True, auto_refresh=False) as live,
        ):
            while True:
                live.update(_shown(page), refresh=True)
                if keys.pressed("q", within_s=options["every"].total_seconds()):
                    return


def _shown(page: Probe[Group]) -> RenderableType:
    try:
        return page.answer()
    except (Error, NotReady) as error:
        return f"{_clock(datetime.now(UTC))}  the database is not responding:\n{printable_lines(str(error).strip())}"


def _clock(at: datetime) -> str:
    return f"{timezone.localtime(at):%H:%M:%S}"


def _rows_that_fit(lines: int) -> int:
    """Return how many rows of each table to show, so that failures and running jobs fit on so many lines."""
    return min(_MOST_ROWS, max(_FEWEST_ROWS, (lines - _BESIDES) // _TABLES))


def _described(using: str) -> dict[str, Any]:
    """Return what a page shows, with all rows that were read."""
    facts = Facts(using=using)
    queued = facts.waiting
    return {
        "problems": [each.as_json() for each in problems(facts)],
        "exact": queued.exact,
        "paused": queued.paused,
        "failures": [asdict(kind) for kind in facts.failures],
        "processes": [{**asdict(each), "silent": each.silent} for each in facts.processes],
        "queues": [asdict(each) for each in queued.queues],
        "tasks": [described(each) for each in totals(_LAST, using=using)],
    }


def _page(using: str, screen: Screen | None = None) -> Group:
    """Return a page, the problems first, with as many rows of each table as fit on a screen. A row is a line."""
    with one_instant(using):
        return Group(*_parts(using, screen))


def _parts(using: str, screen: Screen | None) -> Iterator[RenderableType]:
    facts = Facts(using=using)
    queued, live = facts.waiting, facts.processes
    tasks = totals(_LAST, using=using)
    failures = {each.task: each.outcomes["failed"] + each.outcomes["retried"] for each in tasks}
    failing = sorted((each for each in tasks if failures[each.task]), key=lambda each: -failures[each.task])
    slowest = sorted((each for each in tasks if each.runs), key=lambda each: -(each.duration(0.95) or 0))
    summary, most = [*_summary(queued, live, problems(facts))], _MOST_ROWS
    if screen is not None:
        folds = sum(len(line.wrap(screen, screen.width)) - 1 for line in summary)
        most = _rows_that_fit(screen.height - folds)
    sections = (
        _errors(facts.failures),
        _running(live, most),
        _queues(queued),
        _tasks("failing", failing),
        _tasks("slowest", slowest),
    )
    yield from summary
    for head, rows in sections:
        if shown := list(islice(rows, most)):
            yield from ("", Listing([head, *shown], on_one_line=True))


def _summary(queued: Waiting, live: tuple[ProcessAtWork, ...], found: Sequence[Problem]) -> Iterator[Text]:
    workers = [each for each in live if each.kind == "worker"]
    running, claimed = (sum(getattr(each, name) for each in workers) for name in ("running", "claimed"))
    more = f", {claimed:,} claimed" if claimed else ""
    lines = [
        (
            f"{_clock(now())}  queued {estimated(queued.waiting, queued.exact)}, "
            f"due {estimated(queued.due, queued.exact)}, "
            + (f"paused {estimated(queued.paused_jobs, queued.exact)}, " if queued.paused_jobs else "")
            + f"oldest due {duration(queued.oldest_due_s)}",
            "",
        ),
        (f"{with_noun(len(workers), 'worker')}, {with_noun(running, 'job')} running{more}", ""),
    ]
    lines += [(each.sentence, "red") for each in found[:_PROBLEMS]]
    if found[_PROBLEMS:]:
        lines.append((f"{with_noun(len(found) - _PROBLEMS, 'problem')} more: salon_jobs status lists all", "red"))
    if queued.paused:
        lines.append((f"paused: {', '.join(queued.paused[:_NAMED])}", "yellow"))
    for line, colour in lines:
        yield Text(visible(line), colour)


def _queues(queued: Waiting) -> Section:
    head = ("queue", "queued", "due", "oldest", "enqueued/min", "processed/min", "failed/h", "retried/h")
    return head, (
        (
            Text(queue.name, "yellow" if queue.paused else ""),
            estimated(queue.depth.waiting, queued.exact),
            estimated(queue.depth.due, queued.exact),
            duration(queue.depth.oldest_due_s),
            number(queue.in_a_minute),
            number(queue.out_a_minute),
            _bad(queue.failed),
            number(queue.retried),
        )
        for queue in sorted(queued.queues, key=lambda each: -each.depth.waiting)
    )


def _bad(count: int) -> Text:
    return Text(number(count), "red" if count else "")


def _tasks(what: str, tasks: Iterable[TaskTotals]) -> Section:
    return (f"{what} tasks, 5 min", "runs", "failed", "retried", "p50", "p95", "wait p95"), (
        (
            each.task,
            number(each.runs),
            _bad(each.outcomes["failed"]),
            number(each.outcomes["retried"]),
            *map(about, (each.duration(0.5), each.duration(0.95), each.wait(0.95))),
        )
        for each in tasks
    )


def _running(live: tuple[ProcessAtWork, ...], most: int) -> Section:
    held = [(job, process) for process in live for job in process.jobs]
    held.sort(key=lambda pair: -pair[0].for_s)
    stores = {job.store for job, _ in held[:most] if job.store is not None}
    names = store_names(stores)
    head = ("running longest", "job", "for", *(["store"] if stores else []), "process")
    return head, (
        (
            job.task,
            str(job.id),
            duration(job.for_s),
            *([job.store and names[job.store]] if stores else []),
            process.name,
        )
        for job, process in held[:most]
    )


def _errors(kinds: list[FailureKind]) -> Section:
    return ("failed jobs", "jobs", "newest", "last", "error"), (
        (
            Text(kind.task, "red"),
            number(kind.jobs),
            str(kind.newest_id),
            kind.last_at,
            f"{kind.error_class.rpartition('.')[2]}: {kind.message}",
        )
        for kind in kinds
    )
