"""Which stores a user belongs to, read as the web role, which sees nobody else's memberships."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import connection, transaction
from django.db.utils import ProgrammingError

from project.salon.models import Membership
from salon_jobs import tenant_context
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.tenancy.resolvers import stores_of
from tests.support import seen
from tests.tenancy.probe import round_trips
from tests.tenancy.web import configured, member_of


def visible() -> set[tuple[int, UUID]]:
    return set(Membership.objects.values_list("user_id", "store_id"))


def test_stores_of_user_take_one_round_trip(two: list[UUID]) -> None:
    one, both, none = member_of(two[0]), member_of(*two), member_of()
    assert len(seen("SELECT FROM membership")) == 3
    with round_trips(connection) as trips:
        assert stores_of(one) == (two[0],)
    assert trips == [1]
    assert stores_of(both) == tuple(two)
    assert stores_of(none) == stores_of(AnonymousUser()) == ()
    with transaction.atomic():
        assert stores_of(one) == (two[0],)
        assert visible() == set(), "the user is forgotten"
    assert visible() == set()


def test_policy_alone_keeps_users_apart(two: list[UUID]) -> None:
    one, other = member_of(two[0]), member_of(*two)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('app.current_user_id', %s, true)", [str(one.pk)])
        assert visible() == {(one.pk, two[0])}, "all of his, in a query that names no user"
        for statement in ("UPDATE membership SET store_id = store_id", "DELETE FROM membership"):
            cursor.execute(statement)
            assert cursor.rowcount == 0, "to be read, not changed"
        with pytest.raises(ProgrammingError, match="row-level security"), transaction.atomic():
            Membership.objects.create(user=one, store_id=two[1])
    with tenant_context(two[0]):
        assert visible() == {(one.pk, two[0]), (other.pk, two[0])}, "a store sees who belongs to it"


def test_membership_is_deleted_with_user(two: list[UUID]) -> None:
    User.objects.get(pk=member_of(*two).pk).delete()
    assert seen("SELECT FROM membership") == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, r"\['MEMBERSHIP_MODEL'\] is not set: name the model"),
        ("salon.Nothing", r"\['MEMBERSHIP_MODEL'\] 'salon.Nothing' is not an installed model"),
        ("salon.Store", r"salon.Store has no field 'user', and not exactly one .* to auth.User"),
        ("admin.LogEntry", "admin.LogEntry has no field 'store', .* to salon.Store"),
    ],
)
def test_wrong_membership_model(two: list[UUID], wrong: str | None, message: str) -> None:
    user = member_of(two[0])
    with configured(MEMBERSHIP_MODEL=wrong), pytest.raises(ConfigurationError, match=message):
        stores_of(user)
