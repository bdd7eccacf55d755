"""Does one thing to many rows in batches, and tells what became of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Protocol, TypeVar

from django.core.management.base import OutputWrapper

from salon_jobs.core.operated import Result
from salon_jobs.management.table import printable


class Written(Result, Protocol):
    """Is a result that can be written as JSON: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


R = TypeVar("R", bound=Written)


def in_batches(
    ids: Sequence[int], operate: Callable[[Sequence[int]], list[R]], *, batch: int, err: OutputWrapper
) -> list[R]:
    """Operate on ``batch`` ids at a time; the progress of more than one batch, and an early end, go to ``err``."""
    results: list[R] = []
    try:
        for start in range(0, len(ids), batch):
            results += operate(ids[start : start + batch])
            if len(ids) > batch:
                err.write(f"{len(results):,} of {len(ids):,}")
    except BaseException:
        err.write(f"stopped after {len(results):,} of {len(ids):,}")
        raise
    return results


def tell(results: Sequence[R], done: str, named: Callable[[R], object], *, as_json: bool, out: OutputWrapper) -> None:
    """Write the results as JSON, or what there is to say of each, by its name, and how many were changed."""
    if as_json:
        out.write(json.dumps([asdict(result) for result in results]))
        return
    for result in results:
        if result.detail:
            out.write(printable(f"{named(result)}: {result.detail}"))
    out.write(f"{done}: {sum(result.changed for result in results):,} of {len(results):,}")
