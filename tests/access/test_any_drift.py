"""Every object of each kind is dropped, added or altered: the doctor names each, and nothing before."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import psycopg
import pytest

from tests.access.breakages import GROUPS, OF_OWNERS, OF_UUIDS, break_and_examine
from tests.interpreter import succeed
from tests.settings import url_for


@pytest.mark.parametrize(
    "group", [pytest.param(group, marks=[pytest.mark.uuid_keys] if group in OF_UUIDS else []) for group in GROUPS]
)
def test_every_change_is_found(trial: psycopg.Connection[Any], group: str) -> None:
    break_and_examine(trial, GROUPS[group])


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("module", ["one_user_settings", "plain_settings"])
def test_every_change_is_found_without_roles(fresh: str, owned: Callable[[str], dict[str, str]], module: str) -> None:
    environment = owned(f"tests.migrations.{module}")
    succeed("migrate", "--verbosity", "0", **environment)
    # The tables of jobs have no policies then, and may be published.
    kinds = chain(*GROUPS.values())
    skipped = [kind for kind in kinds if kind in OF_OWNERS or "publish" in kind or "policy" in kind]
    code = f"from tests.access.breakages import break_all; break_all({url_for(None, fresh)!r}, {skipped!r})"
    succeed("shell", "-v", "0", "-c", code, **environment)
