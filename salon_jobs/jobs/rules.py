"""Joins the limits that tasks and settings declare to the rules that operators set, and says what is in force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import NO_STORE
from salon_jobs.jobs import registry
from salon_jobs.jobs.lanes import Lane
from salon_jobs.models import Limit
from salon_jobs.tenancy.statements import rows_of

# What a row says that lifts a declared limit; as many jobs never run at once.
LIFTED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Rule:
    """Says what is in force for one scope; None is no limit."""

    paused: bool = False
    max_concurrency: int | None = None
    rate: float | None = None

    @property
    def forbids(self) -> bool:
        """Tell whether no job may start at all."""
        return self.paused or self.max_concurrency == 0

    @property
    def limits(self) -> bool:
        """Tell whether jobs must be counted."""
        return self.max_concurrency is not None or self.rate is not None


class Rules:
    """Holds the rules in force, by scope (``kind:name``). False when there is none.

    ``declared`` says how many may run at once of a task (``task:name``), of each key of a task (``key:name``) and of
    each store (``store``). A row of the same scope that gives a number stands in its place.
    """

    def __init__(self, rows: Mapping[str, Rule], declared: Mapping[str, int] | None = None) -> None:
        self._declared = declared or {}
        self._rules = {scope: self._in_force(scope, row) for scope, row in rows.items()}
        self._any = bool(self._declared) or any(rule.forbids or rule.limits for rule in self._rules.values())

    def __bool__(self) -> bool:
        return self._any

    def __getitem__(self, scope: str) -> Rule:
        rule = self._rules.get(scope)
        if rule is None:
            # There can be any number of keys and stores: each is joined when it is met.
            rule = self._rules[scope] = self._in_force(scope, Rule())
        return rule

    def allows(self, lane: Lane) -> bool:
        """Tell whether jobs of the lane may start at all."""
        return not any(self[scope].forbids for scope in lane.scopes)

    def forbidden(self, kind: str) -> list[str]:
        """Name the queues, tasks or stores of which nothing may start."""
        names = (scope.removeprefix(f"{kind}:") for scope in self._rules if scope.startswith(f"{kind}:"))
        return [name for name in names if self._rules[f"{kind}:{name}"].forbids]

    def limits_of(self, lane: Lane) -> list[str]:
        """Return the scopes of the lane whose jobs must be counted."""
        return [scope for scope in lane.scopes if self[scope].limits]

    def declared_for(self, scope: str) -> int | None:
        """Return how many the tasks and the settings let run at once."""
        kind, _, name = scope.partition(":")
        if kind == Limit.Kind.STORE:
            return None if name == str(NO_STORE) else self._declared.get("store")
        return self._declared.get(f"key:{name.partition(':')[0]}" if kind == Limit.Kind.KEY else scope)

    def _in_force(self, scope: str, row: Rule) -> Rule:
        most = self.declared_for(scope) if row.max_concurrency is None else row.max_concurrency
        return replace(row, max_concurrency=None if most == LIFTED else most)


def rules_in_force() -> Rules:
    """Read the rules, and join them to what is declared. Role: worker, operator. Raises database errors."""
    return Rules(
        {f"{kind}:{name}": Rule(paused, most, rate) for kind, name, paused, most, rate in rows_of("limits", {})},
        _declared(),
    )


@dataclass(frozen=True, slots=True)
class RuleInForce:
    """Says what holds for one queue, task, store or key, and what is declared for it.

    ``name`` is a rule's; what is declared for any store is on ``*``, for any key of a task on ``task:*``.
    """

    kind: str
    name: str
    paused: bool
    max_concurrency: int | None
    rate: float | None
    declared: int | None


def list_rules(*, using: str) -> list[RuleInForce]:
    """List what is in force, by kind and name; ``declared`` is what this process's tasks and settings say.

    Role: operator, worker. Raises database errors.
    """
    columns = ("kind", "name", "paused", "max_concurrency", "rate")
    found: list[tuple[str, str, bool, int | None, float | None]]
    found = list(Limit.objects.using(using).values_list(*columns))
    rows = {f"{kind}:{name}": Rule(paused, most, rate) for kind, name, paused, most, rate in found}
    declared = _declared()
    rules = Rules(rows, declared)
    anyones = {"store": "store:*"} | {scope: f"{scope}:*" for scope in declared if scope.startswith("key:")}
    scopes = rows.keys() | {anyones.get(scope, scope) for scope in declared}
    listed: list[RuleInForce] = []
    for scope in scopes:
        kind, _, name = scope.partition(":")
        rule, declares = rules[scope], rules.declared_for(scope)
        if rule.forbids or rule.limits or declares is not None:
            listed.append(RuleInForce(kind, name, rule.paused, rule.max_concurrency, rule.rate, declares))
    return sorted(listed, key=lambda each: (each.kind, each.name))


def _declared() -> dict[str, int]:
    declared = {} if conf.store_concurrency is None else {"store": conf.store_concurrency}
    for task in registry.tasks():
        if task.limits.max_concurrency is not None:
            declared[f"task:{task.name}"] = task.limits.max_concurrency
        if task.limits.per_key is not None:
            declared[f"key:{task.name}"] = task.limits.per_key
    return declared
