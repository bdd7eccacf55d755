"""What a flow must do, said without edges: by how the members that each one comes after have ended.

It shares no idea with the implementation, which keeps an edge for each member that another waits for.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, get_args

from salon_jobs.jobs.flows import Condition

CONDITIONS: Final[tuple[Condition, ...]] = get_args(Condition)


@dataclass(slots=True)
class Planned:
    """One member. ``waived`` are those whose bad end a person has overruled by retrying this one after it."""

    after: tuple[int, ...]
    when: Condition
    outcome: str | None = None
    is_started: bool = False
    waived: set[int] = field(default_factory=set[int])

    @property
    def state(self) -> str:
        return self.outcome or ("started" if self.is_started else "held")


def random_graph(chance: random.Random, size: int) -> list[Planned]:
    """Return members of which each comes after up to four of the last dozen."""
    members: list[Planned] = []
    for number in range(size):
        near = range(max(0, number - 12), number)
        after = tuple(sorted(chance.sample(near, min(len(near), chance.choice([0, 1, 1, 2, 2, 3, 4])))))
        members.append(Planned(after, chance.choice(CONDITIONS) if after else "succeeded"))
    return members


class Spec:
    """All members, moved by what happens to single ones."""

    def __init__(self, members: list[Planned]) -> None:
        self.members = members
        self._settle()

    def add(self, member: Planned) -> None:
        """Add one that comes after earlier ones, which may have ended."""
        self.members.append(member)
        self._settle()

    @property
    def states(self) -> list[str]:
        return [member.state for member in self.members]

    def numbers(self, *states: str) -> list[int]:
        return [number for number, member in enumerate(self.members) if member.state in states]

    def end(self, numbers: Iterable[int], outcome: str) -> None:
        for number in numbers:
            self.members[number].outcome, self.members[number].is_started = outcome, False
        self._settle()

    def retry(self, numbers: Iterable[int]) -> None:
        """Retry ended members in one transaction: they, and what is held again because of them, wait for each other."""
        retried = [self.members[number] for number in numbers]
        for member in retried:
            member.outcome = None
        for member in self.members:  # in order, since each comes after earlier ones
            if member.outcome == "skipped" and member.when == "succeeded" and not self._bad(member):
                member.outcome = None
        for member in retried:
            member.waived = set(self._ended(member))
            member.is_started = not self._live(member)
        for member in self.members:
            if member.state == "held":
                member.waived -= set(self._live(member))
        self._settle()

    def _settle(self) -> None:
        """Start and skip what can be, in order: so what is skipped decides about what comes after it."""
        for member in self.members:
            if member.state != "held":
                continue
            if member.when == "succeeded" and self._bad(member):
                member.outcome = "skipped"
            elif not self._live(member):
                ends = {self.members[number].outcome for number in member.after}
                if member.when == "failed" and ends == {"succeeded"}:
                    member.outcome = "skipped"
                else:
                    member.is_started = True

    def _live(self, member: Planned) -> list[int]:
        return [number for number in member.after if self.members[number].outcome is None]

    def _ended(self, member: Planned) -> list[int]:
        return [number for number in member.after if self.members[number].outcome is not None]

    def _bad(self, member: Planned) -> list[int]:
        ended = set(self._ended(member)) - member.waived
        return [number for number in ended if self.members[number].outcome != "succeeded"]
