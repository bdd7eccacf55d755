"""Lists jobs: ``salon_jobs list``."""

from __future__ import annotations

import json
from typing import Any, Final
from uuid import UUID

from django.core.management.base import CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import JobState
from salon_jobs.jobs.find import JobCriteria, find_jobs
from salon_jobs.management.arguments import instant, positive
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.management.table import shortened, table

_COLUMNS: Final = (
    "id", "task", "state", "reason", "store_id", "queue", "priority", "attempts", "run_at", "finished_at",
    "error_class",
)  # fmt: skip


class List(Subcommand):
    """Lists the newest jobs of those that match."""

    name = "list"
    help = "List jobs, the newest first, without their payloads."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--state", action="append", choices=[state.value for state in JobState], help="in this state; repeatable"
        )
        parser.add_argument("--task", metavar="NAME", help="of this task")
        parser.add_argument("--queue", metavar="NAME", help="of this queue")
        parser.add_argument("--store", type=UUID, metavar="ID", help="of this store")
        parser.add_argument("--key", metavar="KEY", help="with this job key")
        parser.add_argument("--error-class", metavar="CLASS", help="failed by an error of this class, in full")
        parser.add_argument("--since", type=instant, metavar="TIME", help="enqueued since: an age or an instant")
        parser.add_argument("--until", type=instant, metavar="TIME", help="enqueued before")
        parser.add_argument("--limit", type=positive, default=50, metavar="N", help="so many at most (default 50)")
        parser.add_argument("--json", action="store_true", help="write a list of objects")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Write a table, or JSON."""
        criteria = JobCriteria(
            states=tuple(options["state"] or ()), task=options["task"], queue=options["queue"],
            store_id=options["store"], job_key=options["key"], error_class=options["error_class"],
            since=options["since"], until=options["until"],
        )  # fmt: skip
        rows = list(find_jobs(criteria, using=conf.reader_database).values(*_COLUMNS)[: options["limit"]])
        if options["json"]:
            out.write(json.dumps(rows, indent=2, default=str))
        elif rows:
            out.write(table([_COLUMNS, *([*{**row, "reason": shortened(row["reason"])}.values()] for row in rows)]))
        else:
            err.write("no job matches")
