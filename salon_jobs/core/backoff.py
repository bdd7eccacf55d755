"""Wait of a failed job before its next attempt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from random import Random, SystemRandom
from typing import Final

from salon_jobs.core.text import short_repr

_LONGEST: Final = timedelta(days=365)
_SYSTEM_RNG: Final = SystemRandom()  # without state to share between threads or inherit from a parent process


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: ``base × factor^(attempt − 1)``, at most ``cap``, then ``± jitter`` (a fraction).

    Jitter is applied after the cap, so that many jobs at the cap do not wake together; the longest wait is therefore
    ``cap × (1 + jitter)``. Raises ValueError, naming the field, for impossible values.
    """

    base: timedelta = timedelta(seconds=2)
    factor: float = 2.0
    cap: timedelta = timedelta(hours=1)
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name, value in (("base", self.base), ("cap", self.cap)):
            if not isinstance(value, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"Backoff.{name} must be a timedelta, not {short_repr(value)}")  # noqa: TRY004 - the one error
        for name, number in (("factor", self.factor), ("jitter", self.jitter)):
            if not isinstance(number, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"Backoff.{name} must be a number, not {short_repr(number)}")  # noqa: TRY004 - the one error
        if self.base <= timedelta(0):
            raise ValueError(f"Backoff.base must be more than zero, not {self.base}")
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ValueError(f"Backoff.factor must be a finite number of at least 1, not {self.factor}")
        if not self.base <= self.cap <= _LONGEST:
            raise ValueError(f"Backoff.cap must lie between base ({self.base}) and {_LONGEST}, not {self.cap}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"Backoff.jitter must be a share from 0 to 1, not {self.jitter}")

    def delay(self, attempt: int, rng: Random = _SYSTEM_RNG) -> timedelta:
        """Return the wait after failed attempt number ``attempt`` (1 = the first); safe for any attempt number.

        A seeded ``rng`` makes the jitter repeatable. Raises ValueError for an attempt below 1.
        """
        if attempt < 1:
            raise ValueError(f"attempt counts from 1, not {attempt}")
        return self._plain(attempt - 1) * rng.uniform(1 - self.jitter, 1 + self.jitter)

    def bounds(self, attempt: int) -> tuple[timedelta, timedelta]:
        """Return the shortest and the longest possible ``delay``."""
        plain = self._plain(attempt - 1)
        return plain * (1 - self.jitter), plain * (1 + self.jitter)

    def _plain(self, exponent: int) -> timedelta:
        # Compare logarithms first: 2.0 ** 10_000 overflows a float, and a timedelta long before that.
        if exponent * math.log(self.factor) >= math.log(self.cap / self.base):
            return self.cap
        return min(self.cap, self.base * self.factor**exponent)
