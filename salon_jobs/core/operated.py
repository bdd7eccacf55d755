"""Says what every result of an operator's action tells, whatever it was done to."""

from __future__ import annotations

from typing import Protocol


class Result(Protocol):
    """Is what became of one row. ``detail`` says why not, or what is still to come."""

    @property
    def changed(self) -> bool:
        """Tell whether it was changed."""
        ...

    @property
    def detail(self) -> str:
        """Say more, if there is more to say."""
        ...
