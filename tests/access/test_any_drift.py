"""Every object of each kind is dropped, added or altered: the doctor names each, and nothing before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.access.breakages import KINDS, OF_OWNERS, OF_UUIDS, break_and_examine
from tests.interpreter import succeed
from tests.settings import url_for


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.uuid_keys] if kind in OF_UUIDS else []) for kind in KINDS]
)
def test_every_change_is_found(trial: psycopg.Connection[Any], kind: str) -> None:
    break_and_examine(trial, kind)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("module", ["one_user_settings", "plain_settings"])
def test_every_change_is_found_without_roles(fresh: str, owned: Callable[[str], dict[str, str]], module: str) -> None:
    environment = owned(f"tests.migrations.{module}")
    succeed("migrate", "--verbosity", "0", **environment)
    # The tables of jobs have no policies then, and may be published.
    skipped = [kind for kind in KINDS if kind in OF_OWNERS or "publish" in kind or "policy" in kind]
    code = f"from tests.access.breakages import break_all; break_all({url_for(None, fresh)!r}, {skipped!r})"
    succeed("shell", "-v", "0", "-c", code, **environment)
