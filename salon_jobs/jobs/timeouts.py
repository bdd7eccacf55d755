"""Holds how long a task's jobs may wait and run. Each is a notion of its own, and off when unset."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta

from salon_jobs.core.errors import OptionInvalid

# However long a job has waited, its run is left this much of its timeout.
_LEAST_RUN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Holds a task's timeouts. Raises OptionInvalid naming the field.

    ``timeout`` bounds a run; ``wait_timeout`` the wait since the job became due; ``wait_overtime`` is extra grace
    before the wait timeout counts.
    """

    timeout: timedelta | None = None
    wait_timeout: timedelta | None = None
    wait_overtime: timedelta | None = None
    waiting_shortens_timeout: bool = False

    def __post_init__(self) -> None:
        for name in ("timeout", "wait_timeout", "wait_overtime"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, timedelta) and value > timedelta(0)):
                raise OptionInvalid(f"{name} must be a timedelta above zero, not {value!r}")
        if not isinstance(self.waiting_shortens_timeout, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionInvalid(
                f"waiting_shortens_timeout must be True or False, not {self.waiting_shortens_timeout!r}"
            )
        if self.wait_overtime is not None and self.wait_timeout is None:
            raise OptionInvalid("wait_overtime adds to a wait_timeout: give that too")
        if self.waiting_shortens_timeout and self.timeout is None:
            raise OptionInvalid("waiting_shortens_timeout shortens a timeout: give that too")

    @property
    def any(self) -> bool:
        """Tell whether any of them is set."""
        return any(getattr(self, field.name) for field in fields(self))

    def expiry(self, waited_s: float) -> str | None:
        """Return why a job that waited this long is not worth starting; None when it is."""
        if self.wait_timeout is None:
            return None
        limit_s = self.wait_timeout.total_seconds()
        if self.wait_overtime is not None:
            limit_s += self.wait_overtime.total_seconds()
        return f"waited {waited_s:.3g} s, longer than {limit_s:.3g} s" if waited_s > limit_s else None

    def run_s(self, waited_s: float) -> float | None:
        """Return how long a run may take after such a wait, in seconds; None without a timeout."""
        if self.timeout is None:
            return None
        whole_s = self.timeout.total_seconds()
        if not self.waiting_shortens_timeout:
            return whole_s
        return max(whole_s - waited_s, min(whole_s, _LEAST_RUN_S))
