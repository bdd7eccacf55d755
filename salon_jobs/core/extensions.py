"""What features attach to a run, which knows none of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast

E = TypeVar("E", bound="Extension")


class Extension:
    """Base of what a feature keeps of one run, such as its steps, or the lines that it logged: one of each class."""

    def close(self) -> None:
        """Let go of what must not outlive the handler, which has ended; most have nothing of that kind.

        After a coroutine it is called on the event loop, where nothing may talk to the database.
        """


class Extensible:
    """Base of what extensions are attached to. Without any it has the empty table of its class, and allocates none."""

    extensions: Mapping[type[Any], Extension] = MappingProxyType({})

    def extension(self, kind: type[E]) -> E | None:
        """Return the extension of this class, if there is one."""
        return cast("E | None", self.extensions.get(kind))

    def attach(self, extension: E) -> E:
        """Attach an extension, in place of one of the same class, and return it. Threads may do so at once."""
        vars(self).setdefault("extensions", {})[type(extension)] = extension
        return extension
