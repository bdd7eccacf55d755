"""Summary of a flow: its members in stages of similar ones, so that a person can read a flow of thousands."""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any, Final

from django.utils.translation import gettext, ngettext, ngettext_lazy

from salon_jobs.db import clock
from salon_jobs.models import FlowMember, FlowRecord, Job

# The most members of a flow to read, and the most stages to keep: those nearest to the requested job.
_READ: Final = 5_000
_KEPT: Final = 60
# The most stages or jobs that a line names.
_NAMED: Final = 3
_OF_STATE: Final = ("state", "run_at", "attempts", "cancel_requested_at", "reason", "flow_id", "ordered")
_AFTER: Final = {
    "succeeded": ngettext_lazy("after %(stages)s", "after %(stages)s", "jobs"),
    "failed": ngettext_lazy("after %(stages)s, if it fails", "after %(stages)s, if one of them fails", "jobs"),
    "ended": ngettext_lazy("after %(stages)s, however it ends", "after %(stages)s, however they end", "jobs"),
}


@dataclass(eq=False, slots=True)
class Stage:
    """Members of one task with the same predecessors and the same condition.

    ``layer`` is the number of stages on the longest way to it. ``jobs`` has their IDs by state: the member's outcome,
    else the state of its job.
    """

    layer: int
    task: str
    condition: str
    after: list[Stage]
    jobs: dict[str, list[int]]

    @property
    def ids(self) -> list[int]:
        """The IDs of its jobs."""
        return [job_id for ids in self.jobs.values() for job_id in ids]

    @property
    def title(self) -> str:
        """The task with the ID of its job, or with the number of its jobs."""
        ids = self.ids
        return f"{self.task} #{ids[0]}" if len(ids) == 1 else f"{self.task} × {len(ids):,}"

    @property
    def states(self) -> list[tuple[str, str]]:
        """Each state, with its number of jobs unless there is a single job."""
        is_single = len(self.ids) == 1
        return [
            (state, gettext(state) if is_single else f"{len(ids):,} {gettext(state)}")
            for state, ids in self.jobs.items()
        ]

    @property
    def line(self) -> str:
        """The stage in words, such as ``ship #43: held, after charge #42``; with the first of several failed jobs."""
        failed = _listed([f"#{job_id}" for job_id in self.jobs.get("failed", ())]) if len(self.ids) > 1 else ""
        said = f"{self.title}: {', '.join(said for _, said in self.states)}"
        if failed:
            said = f"{said} ({gettext('%(jobs)s failed') % {'jobs': failed}})"
        if not self.after:
            return said
        after = {"stages": _listed([each.title for each in self.after]), "jobs": sum(len(e.ids) for e in self.after)}
        return f"{said}, {_AFTER[self.condition] % after}"


def _listed(words: list[str]) -> str:
    return ", ".join(words[:_NAMED]) + ", …" * (len(words) > _NAMED)


@dataclass(frozen=True, slots=True)
class FlowSummary:
    """A flow and its stages, each after its predecessors. ``requested`` is the stage of the requested job.

    ``left_out`` names the missing parts, "" if none is missing.
    """

    flow_id: int
    name: str
    requested: Stage
    stages: list[Stage]
    left_out: str

    def lines(self) -> list[str]:
        """Return lines for people, one per stage; that of the requested job is marked."""
        lines = [f"{'>' if each is self.requested else ' '} {each.line}" for each in self.stages]
        return [*lines, self.left_out] if self.left_out else lines

    def as_json(self) -> dict[str, Any]:
        """Return the stages for a program; ``after`` has indexes into ``stages``."""
        shown: list[dict[str, Any]] = []
        for each in self.stages:
            after = [self.stages.index(before) for before in each.after if before in self.stages]
            shown.append({"task": each.task, "condition": each.condition, "after": after, "jobs": each.jobs})
        return {"id": self.flow_id, "name": self.name, "stages": shown, "left_out": self.left_out}


def summarize_flow(job: Job, *, using: str) -> FlowSummary | None:
    """Return the stages of a job's flow, None if it has none. With roles, the web reads its store's flows."""
    if job.flow_id is None:
        return None
    rows: Any = FlowMember.objects.using(using).filter(flow_id=job.flow_id).order_by("pk")
    read = rows.values_list("pk", "task", "condition", "after", "outcome")
    members = {row[0]: row for row in (*read[:_READ], *read.filter(pk=job.pk))}
    if job.pk not in members:
        return None
    live = rows.filter(outcome=None).values("job_id")[:_READ]
    jobs = Job.objects.using(using).filter(pk__in=live).only(*_OF_STATE)
    at = clock.now(using)
    now = {each.pk: each.timeliness(at) for each in (*jobs, job)}
    of: dict[int, Stage] = {}
    alike: dict[tuple[str, str, frozenset[int]], Stage] = {}
    earlier = {key: [job_id for job_id in row[3] if job_id in members] for key, row in members.items()}
    for key in TopologicalSorter(earlier).static_order():
        _, task, condition, _, outcome = members[key]
        after = {id(of[job_id]): of[job_id] for job_id in earlier[key]}
        layer = max((stage.layer + 1 for stage in after.values()), default=0)
        stage = alike.setdefault(
            (task, condition, frozenset(after)), Stage(layer, task, condition, list(after.values()), {})
        )
        stage.jobs.setdefault(outcome or now.get(key, "ending"), []).append(key)
        of[key] = stage
    for stage in alike.values():
        stage.jobs = {state: sorted(ids) for state, ids in sorted(stage.jobs.items())}
    requested = of[job.pk]
    near = sorted(alike.values(), key=lambda stage: abs(stage.layer - requested.layer))[:_KEPT]
    stages = sorted(near, key=lambda stage: (stage.layer, min(stage.ids)))
    left_out: list[str] = []
    if (far := len(alike) - _KEPT) > 0:
        left_out.append(
            ngettext("%(far)s stage further away", "%(far)s stages further away", far) % {"far": f"{far:,}"}
        )
    if len(members) >= _READ:
        left_out.append(gettext("all jobs after the first %(read)s") % {"read": f"{_READ:,}"})
    said = gettext("Left out: %(what)s.") % {"what": ", ".join(left_out)} if left_out else ""
    name = FlowRecord.objects.using(using).values_list("name", flat=True).get(pk=job.flow_id)
    return FlowSummary(job.flow_id, name, requested, stages, said)
