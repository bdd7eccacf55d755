"""Extensions that features attach to a run; the run knows no feature."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast

E = TypeVar("E", bound="Extension")


class Extension:
    """Base of a feature's state in one run, such as its steps or its logged lines: one of each class."""

    def close(self) -> None:
        """Release resources that must not outlive the handler, which has ended; most extensions have none.

        After a coroutine it is called on the event loop, where nothing may query the database.
        """


class Extensible:
    """Base of objects that take extensions. Without any it has the empty table of its class, and allocates none."""

    extensions: Mapping[type[Any], Extension] = MappingProxyType({})

    def extension(self, kind: type[E]) -> E | None:
        """Return the extension of this class, if there is one."""
        return cast("E | None", self.extensions.get(kind))

    def attach(self, extension: E) -> E:
        """Attach an extension, in place of one of the same class, and return it. Thread-safe."""
        vars(self).setdefault("extensions", {})[type(extension)] = extension
        return extension
