"""Plan of a fair claim: how many jobs it may take from each claim group. Queries no database."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from salon_jobs.conf.store_key import store_key
from salon_jobs.core.records import ClaimedJob
from salon_jobs.worker.group_scanner import GROUPS_PER_CLAIM, ClaimGroup


class Quota(NamedTuple):
    """Number of jobs that one claim may take from a claim group, and from its store."""

    group: ClaimGroup
    jobs: int
    store_jobs: int


def choose(groups: Sequence[ClaimGroup]) -> list[ClaimGroup]:
    """Choose as many claim groups as one claim reads: equally many per store, by priority within a store.

    The stores, and the groups of equal priority in a store, are in random order: the first may take the last places.
    """
    stores = [list(of_store) for _, of_store in groupby(sorted(groups, key=_store_of), key=_store_of)]
    random.shuffle(stores)
    most = max(1, GROUPS_PER_CLAIM // max(1, len(stores)))
    chosen: list[ClaimGroup] = []
    for of_store in stores:
        random.shuffle(of_store)
        chosen += sorted(of_store, key=attrgetter("priority"))[:most]
    return chosen


_store_of = attrgetter("store")


def plan(
    groups: Sequence[ClaimGroup], room: int, capacity: dict[str, int], counted: Callable[[Sequence[str]], Sequence[str]]
) -> list[Quota]:
    """Share a batch equally among the stores of ``groups``, by priority within a store, all within ``capacity``.

    ``capacity`` is the number of further jobs that may run in each limited scope; the quotas are subtracted from it.
    Claim groups that compete for a scope share it equally.
    """
    chosen = choose(groups)
    store_jobs = -(-room // max(1, len({group.store for group in chosen})))
    competitors = Counter(scope for group in chosen for scope in counted(group.scopes))
    quotas: list[Quota] = []
    for group in chosen:
        jobs = store_jobs
        scopes = counted(group.scopes)
        for scope in scopes:
            jobs = min(jobs, -(-capacity[scope] // competitors[scope]))
            competitors[scope] -= 1
        if jobs > 0:
            quotas.append(Quota(group, jobs, store_jobs))
            for scope in scopes:
                capacity[scope] -= jobs
    return quotas


def has_more(jobs: Sequence[ClaimedJob], quotas: Sequence[Quota], room: int) -> bool:
    """Return whether a store yielded its full quota, so that it may have more."""
    if len(jobs) >= room:
        return True
    by_store = Counter(job.store_id or store_key().none for job in jobs)
    return any(by_store[quota.group.store] >= quota.store_jobs for quota in quotas)
