"""A page whose module is imported and whose calls are made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from salon_jobs.jobs import registry
from tests.backend.django_tasks_api import PACKAGE
from tests.docs.markdown import blocks, read
from tests.schedules.conftest import own_entries

__all__ = ["calls", "own_entries"]


@pytest.fixture
def calls(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Write the modules of a page, and return the code of its calls; forget its tasks at the end."""
    steps = [block for block in blocks(read(request.param)) if block.action]
    for step in steps:
        action, _, name = step.action.partition(" ")
        if action in ("write", "append"):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            with path.open("a" if action == "append" else "w") as file:
                file.write(step.text.replace("django.tasks", PACKAGE))
    monkeypatch.syspath_prepend(tmp_path)
    known = set(registry.task_names())
    yield [step.text.replace("django.tasks", PACKAGE) for step in steps if step.action.startswith("call")]
    folders = {path.name for path in tmp_path.iterdir()}
    for name in [name for name in sys.modules if name.partition(".")[0] in folders]:
        del sys.modules[name]
    for name in set(registry.task_names()) - known:
        registry.unregister(name)
