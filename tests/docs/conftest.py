"""What the tests of several pages need."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from salon_jobs.jobs import registry
from tests.docs.markdown import blocks, read


@pytest.fixture
def calls(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Write the module of the page ``PAGE``, and return the code of its calls; forget its tasks at the end."""
    module, *calls = (block for block in blocks(read(request.module.PAGE)) if block.action)
    path = tmp_path / module.action.removeprefix("write ")
    path.parent.mkdir()
    path.write_text(module.text)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(registry.task_names())
    yield [call.text for call in calls]
    for name in [name for name in sys.modules if name.partition(".")[0] == path.parent.name]:
        del sys.modules[name]
    for name in set(registry.task_names()) - known:
        registry.unregister(name)
