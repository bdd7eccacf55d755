"""Declares what the subcommands share that do one thing to many jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import JobState
from salon_jobs.jobs.operate import BATCH, Operated
from salon_jobs.management.asking import ask
from salon_jobs.management.operating import in_batches, tell
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.models import Job


class OnJobs(Subcommand):
    """Does one thing to jobs named by id, or to all in some states of a task, a store or a queue."""

    states: ClassVar[Sequence[JobState]]
    done: ClassVar[str]
    not_done: ClassVar[str]
    operate: ClassVar[Callable[..., list[Operated]]]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("id", nargs="*", type=int, help="ids of jobs")
        parser.add_argument("--task", metavar="NAME", help=f"all {' and '.join(self.states)} jobs of this task")
        parser.add_argument("--store", type=UUID, metavar="ID", help="of this store")
        parser.add_argument("--queue", metavar="NAME", help="of this queue")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--json", action="store_true", help="write a list of objects, one for each job")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Count, ask, do it, tell. Raises CommandError when nothing was named, or nobody can be asked."""
        ids = self._chosen(options)
        if ids and not options["yes"]:
            ask(f"{self.name.capitalize()} {len(ids):,} jobs?", err, otherwise=self.not_done, remedy="add --yes")
        operate = partial(self.operate, using=conf.reader_database, **self.values(options))
        results = in_batches(ids, operate, batch=BATCH, err=err)
        tell(results, self.done, lambda result: result.job_id, as_json=options["json"], out=out)

    def values(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return what else ``operate`` takes."""
        return {}

    def _chosen(self, options: dict[str, Any]) -> list[int]:
        named = {"task": options["task"], "store_id": options["store"], "queue": options["queue"]}
        wanted = {field: value for field, value in named.items() if value is not None}
        if bool(options["id"]) == bool(wanted):
            raise CommandError("name the jobs by ids, or by --task, --store and --queue")
        if options["id"]:
            return list(dict.fromkeys(options["id"]))
        live = Job.objects.using(conf.reader_database).filter(state__in=self.states, **wanted)
        return list(live.order_by("pk").values_list("pk", flat=True))
