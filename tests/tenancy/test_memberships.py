"""Which stores a user belongs to, read as the web role, which sees nobody else's memberships."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import connection, connections, transaction
from django.db.utils import ProgrammingError

from project.salon.models import Membership
from salon_jobs import tenant_context
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.tenancy.resolvers import stores_of
from tests.support import seen
from tests.tenancy.probe import round_trips
from tests.tenancy.web import configured, member_of


def visible(using: str = "default") -> set[tuple[int, UUID]]:
    return set(Membership.objects.using(using).values_list("user_id", "store_id"))


def test_a_users_stores_are_read_in_one_round_trip_and_nobody_elses_are_seen(two: list[UUID]) -> None:
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


def test_the_policy_alone_keeps_users_apart(two: list[UUID]) -> None:
    one, other = member_of(two[0]), member_of(*two)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('app.current_user_id', %s, true)", [str(one.pk)])
        assert visible() == {(one.pk, two[0])}, "all of his, in a query that names no user"
        cursor.execute("UPDATE membership SET store_id = store_id")
        assert cursor.rowcount == 0, "to be read, not changed"
        cursor.execute("DELETE FROM membership")
        assert cursor.rowcount == 0
        with pytest.raises(ProgrammingError, match="row-level security"), transaction.atomic():
            Membership.objects.create(user=one, store_id=two[1])
    with tenant_context(two[0]):
        assert visible() == {(one.pk, two[0]), (other.pk, two[0])}, "a store sees who belongs to it"
    worker = connections["operator"]
    with pytest.raises(ProgrammingError, match="permission denied"), worker.cursor() as cursor:
        cursor.execute("SELECT FROM membership")


def test_the_worker_may_not_ask_by_user(two: list[UUID]) -> None:
    user = member_of(two[0])
    connections.settings["worker"] = {**connections.settings["default"], "USER": "worker_runtime"}
    try:
        with transaction.atomic(using="worker"), connections["worker"].cursor() as cursor:
            cursor.execute("SELECT current_user, set_config('app.current_user_id', %s, true)", [str(user.pk)])
            assert cursor.fetchone() == ("worker_runtime", str(user.pk))
            with pytest.raises(ProgrammingError, match="permission denied"):
                visible("worker")
    finally:
        connections["worker"].close()
        del connections["worker"], connections.settings["worker"]


def test_a_membership_goes_with_its_user(two: list[UUID]) -> None:
    user = member_of(*two)
    User.objects.get(pk=user.pk).delete()
    assert seen("SELECT FROM membership") == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"MEMBERSHIP_MODEL": None}, r"\['MEMBERSHIP_MODEL'\] is not set: name the model"),
        ({"MEMBERSHIP_MODEL": "salon.Nothing"}, r"\['MEMBERSHIP_MODEL'\] 'salon.Nothing' is not an installed model"),
        ({"MEMBERSHIP_MODEL": "salon.Store"}, r"salon.Store has no field 'user', and not exactly one .* to auth.User"),
        ({"MEMBERSHIP_MODEL": "admin.LogEntry"}, "admin.LogEntry has no field 'store', .* to salon.Store"),
    ],
)
def test_a_wrong_setting_is_named(two: list[UUID], wrong: dict[str, object], message: str) -> None:
    user = member_of(two[0])
    with configured(**wrong), pytest.raises(ConfigurationError, match=message):
        stores_of(user)
