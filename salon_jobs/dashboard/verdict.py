"""What is wrong now, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.utils import timezone

from salon_jobs.core.units import counted, duration, with_noun
from salon_jobs.dashboard.processes import ProcessAtWork
from salon_jobs.dashboard.queues import Waiting
from salon_jobs.dashboard.relays import COUNTED, Relaying, Totals
from salon_jobs.jobs.waiting import serves


def problems(
    waiting: Waiting, processes: Sequence[ProcessAtWork], relaying: Relaying | None, totals: Totals
) -> list[str]:
    """Return what needs somebody, the worst first; what was paused on purpose is no problem.

    ``relaying`` None: the project has no outbox.
    """
    return [*_of_workers(waiting, processes), *(_of_relays(relaying) if relaying else ()), *_of_operators(totals)]


def _of_workers(waiting: Waiting, processes: Sequence[ProcessAtWork]) -> Iterator[str]:
    workers = [each for each in processes if each.kind == "worker" and not each.silent]
    if not workers:
        yield "no worker is running"
    for queue in waiting.queues if workers else ():
        is_served = any(serves(each.queues, queue.name) for each in workers)
        if queue.depth.due and not is_served:
            yield f"no worker serves queue {queue.name} ({with_noun(queue.depth.due, 'due job')})"
    if silent := [each for each in processes if each.silent]:
        yield "1 process is silent" if len(silent) == 1 else f"{len(silent)} processes are silent"


def _of_relays(relaying: Relaying) -> Iterator[str]:
    for each in relaying.destinations:
        if each.outage_since is not None and not each.paused:
            since = f"{timezone.localtime(each.outage_since):%Y-%m-%d %H:%M %Z}"
            yield f"destination {each.aggregate_type} has been down since {since} ({each.outage_code})"
    late_s = max((each.oldest_s or 0.0 for each in relaying.destinations if not each.paused), default=0.0)
    if relaying.unowned and late_s:
        count = with_noun(len(relaying.unowned), "partition")
        yield f"no relay owns {count}; the oldest message has waited for {duration(late_s)}"
    if relaying.gate.behind:
        yield f"{with_noun(relaying.gate.behind, 'message')} held back by an open transaction"


def _of_operators(totals: Totals) -> Iterator[str]:
    for count, noun in (
        (totals.failed, "failed job"),
        (totals.parked, "parked aggregate"),
        (totals.rejected, "rejected message"),
    ):
        if count:
            yield f"{counted(count, COUNTED)} {noun}{'' if count == 1 else 's'}"
