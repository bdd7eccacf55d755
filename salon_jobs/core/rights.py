"""Rights on a table of salon_jobs and how it is stored, as its model declares them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

Privilege: TypeAlias = Literal["SELECT", "INSERT", "UPDATE", "DELETE"]
ALL_ROWS: Final[tuple[Privilege, ...]] = ("SELECT", "INSERT", "UPDATE", "DELETE")
# Rights of a role, each on some of the columns or, if none are listed, on all.
Privileges: TypeAlias = Mapping[Privilege, tuple[str, ...]]
READ: Final[Privileges] = MappingProxyType({"SELECT": ()})


class Access(NamedTuple):
    """Rights on a table of ours, besides the operator's SELECT; and its storage parameters.

    ``web``: on the current store's rows only, and the columns it may update. ``worker`` may only read tables that only
    functions write. ``autovacuum`` and other parameters of ``storage`` are set by the migrations.
    """

    operator: tuple[Privilege, ...] = ()
    web: Privileges = MappingProxyType({})
    worker: tuple[Privilege, ...] = ALL_ROWS
    storage: Mapping[str, float] = MappingProxyType({})
