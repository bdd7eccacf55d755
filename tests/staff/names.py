"""The names of stores, which the operator's role may read if the store model declares it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from project.salon.models import Store
from salon_jobs.access import StoreIsolation
from salon_jobs.conf import settings as conf
from tests.support import change


@contextmanager
def operator_reads_names() -> Generator[None]:
    """Declare and grant it, as a migration would."""
    [constraint] = [each for each in Store._meta.constraints if isinstance(each, StoreIsolation)]
    roles = conf.roles
    before = constraint.access(Store, roles, using="owner")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraint, "names", ("name",))
        after = constraint.access(Store, roles, using="owner")
        change(";".join(after.install(roles.runtime)))
        try:
            yield
        finally:
            change(";".join((*after.remove(roles.runtime), *before.install(roles.runtime))))
