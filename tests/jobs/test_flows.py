"""Shows that members of a flow start when those they come after have ended as they must: each once, and none late."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, ProgrammingError, connection, connections, transaction
from django.test import TestCase
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from salon_jobs import Discard, current_job, flow, tenant_context
from salon_jobs.core.errors import FlowInvalid, NoResult
from salon_jobs.core.outcomes import Errored
from salon_jobs.core.records import ClaimedJob
from salon_jobs.db import statements
from salon_jobs.erasure import erase_store
from salon_jobs.jobs import control
from salon_jobs.jobs.flows import Condition, Flow, Member, RunningFlow, get_flow
from salon_jobs.jobs.pruning import Pruner
from salon_jobs.models import FlowEdge, FlowMember, FlowRecord
from salon_jobs.testing import drain_jobs
from salon_jobs.worker.maintenance import Maintenance
from tests import tasks
from tests.jobs.flow_spec import CONDITIONS, Planned, Spec
from tests.jobs.rows import count, due, jobs
from tests.support import (
    behind_transaction,
    change,
    claim,
    elsewhere,
    finish,
    finish_many,
    in_thread,
    leases_of,
    run,
    run_due,
    seen,
    wait_until_waiting,
)
from tests.tasks import Hook, Hooks, raises


def fan_in(number: int = 2, when: Condition = "succeeded") -> tuple[Flow, list[Member], Member]:
    """Add members, and one that comes after all of them."""
    with flow("order") as order:
        first = [order.add(tasks.in_flow.call(each)) for each in range(number)]
        return order, first, order.add(tasks.in_flow.call(3), after=first, when=when)


def outcomes(flow: Flow) -> list[str | None]:
    return [member.outcome for member in flow.members()]


STEPS = st.tuples(
    st.sampled_from(["succeed", "succeed", "fail", "discard", "cancel", "delete", "retry", "add"]),
    st.integers(0, 30),
    st.sets(st.integers(0, 30), max_size=3),
    st.sampled_from(CONDITIONS),
)
# What comes after one member, by each condition, and after two.
FOLLOWED = [(set(), "ended"), *(({0}, condition) for condition in CONDITIONS), ({0, 1}, "succeeded")]


fail = raises(OSError)
HOW: dict[str, Hook] = {"succeed": lambda **_: None, "fail": fail, "discard": raises(Discard("no"))}


def states(order: Flow) -> list[str]:
    ready = set(due())
    return [member.outcome or ("started" if member.id in ready else "held") for member in order.members()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(FOLLOWED, [("succeed", 0, set(), "ended")] * 3)
@example(FOLLOWED, [("fail", 0, set(), "ended")])
@example(FOLLOWED, [("cancel", 0, set(), "ended")])
@example(FOLLOWED, [("delete", 0, set(), "ended")])
@given(
    graph=st.lists(
        st.tuples(st.sets(st.integers(0, 30), max_size=3), st.sampled_from(CONDITIONS)), min_size=1, max_size=12
    ),
    steps=st.lists(STEPS, max_size=25),
)
def test_any_flow_behaves_like_model(process_id: int, hooks: Hooks, graph: Any, steps: Any) -> None:
    change("DELETE FROM salon_jobs_job")
    spec, members, deleted = Spec([]), list[Member](), set[int]()

    def add(into: Flow, chosen: set[int], condition: Condition) -> None:
        places = sorted({number % len(members) for number in chosen}) if members else []
        condition = condition if places else "succeeded"
        members.append(into.add(tasks.in_flow.call(), after=[members[place] for place in places], when=condition))
        spec.add(Planned(tuple(places), condition))

    with flow("any") as order:
        for chosen, condition in graph:
            add(order, chosen, condition)
    assert states(order) == spec.states
    for verb, number, chosen, condition in steps:
        if verb == "add":
            with order:
                add(order, chosen, condition)
        elif verb in ("cancel", "delete", "retry"):
            place = number % len(members)
            outcome = spec.members[place].outcome
            if verb == "cancel" and outcome is None:
                control.cancel_jobs(members[place])
                spec.end([place], "cancelled")
            elif verb == "retry" and outcome not in (None, "succeeded") and place not in deleted:
                control.retry_jobs(members[place])
                spec.retry([place])
            elif verb == "delete" and outcome is None:
                change("DELETE FROM salon_jobs_job WHERE id = %s", members[place].id)
                spec.end([place], "cancelled")
                deleted.add(place)
        elif running := claim(process_id):
            ending = running[number % len(running)]
            hooks.system = HOW[verb]
            place = next(place for place, member in enumerate(members) if member.id == ending.id)
            run(ending, process_id)
            change("UPDATE salon_jobs_job SET state = 'queued', leased_by = NULL WHERE state = 'running'")
            spec.end([place], {"succeed": "succeeded", "fail": "failed", "discard": "cancelled"}[verb])
        assert states(order) == spec.states, verb
    assert FlowMember.objects.filter(move__isnull=False).count() == 0


def test_simultaneous_ends_start_follower_once(process_id: int) -> None:
    for _ in range(10):
        *_, last = fan_in()
        with ThreadPoolExecutor(2) as pool:
            ends = [elsewhere(pool, partial(finish_many, [job], process_id)) for job in claim(process_id)]
        assert all(end.result() for end in ends)
        assert due() == [last.id]
        run_due(process_id)
    assert count() == 0


def end_uncommitted(job: ClaimedJob, process_id: int) -> None:
    """End a job in the open transaction, up to where that has decided about the flow."""
    finish(job, process_id)
    connection.cursor().execute("SET CONSTRAINTS ALL IMMEDIATE")


@pytest.mark.parametrize("commits", [True, False])
def test_siblings_end_during_open_end(process_id: int, commits: bool) -> None:
    """They do not wait for each other; the last one waits for all."""
    order, _, last = fan_in(3)
    first, second, third = claim(process_id)
    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        end_uncommitted(first, process_id)
        assert in_thread(lambda: finish_many([second], process_id))
        end = elsewhere(pool, lambda: finish_many([third], process_id))
        wait_until_waiting()
        assert due() == []
        transaction.set_rollback(not commits)
    assert end.result()
    if not commits:
        assert due() == []
        finish(first, process_id)
    assert (due(), FlowEdge.objects.count()) == ([last.id], 0)
    assert outcomes(order) == ["succeeded"] * 3 + [None]


def test_end_without_followers_never_waits(process_id: int) -> None:
    with flow("order") as order:
        for number in range(2):
            order.add(tasks.in_flow.call(number))
    first, second = claim(process_id)
    with transaction.atomic(using="owner"), transaction.atomic():
        seen("SELECT FROM salon_jobs_flow FOR UPDATE")
        end_uncommitted(first, process_id)
        assert in_thread(lambda: finish_many([second], process_id))
    assert outcomes(order) == ["succeeded"] * 2


@pytest.fixture
def single(process_id: int) -> tuple[Flow, Member, ClaimedJob]:
    """Make a flow of one member, which runs."""
    with flow("order") as order:
        first = order.add(tasks.in_flow.call())
    [job] = claim(process_id)
    return order, first, job


def test_member_added_behind_uncommitted_end(process_id: int, single: tuple[Flow, Member, ClaimedJob]) -> None:
    order, first, job = single

    def add() -> Member:
        with order:
            return order.add(tasks.in_flow.call(), after=first)

    with behind_transaction(add) as late:
        end_uncommitted(job, process_id)
    assert [late.result().id] == due()


def test_member_added_while_predecessor_ends(process_id: int, single: tuple[Flow, Member, ClaimedJob]) -> None:
    """The end does not see the edge, and the addition not the end: its commit looks again."""
    order, first, job = single
    with transaction.atomic():
        with order:
            late = order.add(tasks.in_flow.call(), after=first)
        assert in_thread(lambda: finish_many([job], process_id))
        assert due() == []
    assert due() == [late.id]


def test_ends_waiting_for_addition_lock_no_siblings(process_id: int) -> None:
    """An addition that is about to commit holds the flow, and each member behind which it adds, one after the other."""
    with flow("order") as order:
        first, second = (order.add(tasks.in_flow.call(number)) for number in range(2))
    both = claim(process_id)
    lock = "SELECT FROM salon_jobs_flow_member WHERE job_id = %s FOR SHARE NOWAIT"
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using="owner"):
            seen("SELECT FROM salon_jobs_flow FOR UPDATE")
            seen(lock, second.id)
            ends = elsewhere(pool, lambda: finish_many(both, process_id))
            wait_until_waiting()
            seen(lock, first.id)
        assert ends.result()


def test_retry_of_skipped_during_uncommitted_end(process_id: int) -> None:
    """Who ends sees that the retried one has another edge, and who retries takes that away."""
    _, [failed, _], last = fan_in()
    control.cancel_jobs(failed)
    [job] = claim(process_id)
    with behind_transaction(lambda: control.retry_jobs(last)) as retry:
        end_uncommitted(job, process_id)
    assert retry.result()[0].changed
    assert due() == [last.id]


def first_runs_again(process_id: int, hooks: Hooks) -> tuple[Flow, Member, ClaimedJob]:
    """Return a flow of two that have both failed, its second member, and the job of the first, retried and claimed."""
    order, [first], second = fan_in(1, "ended")
    hooks.system = fail
    run_due(process_id)
    run_due(process_id)
    control.retry_jobs(first)
    [job] = claim(process_id)
    return order, second, job


def test_retry_behind_uncommitted_end(process_id: int, hooks: Hooks) -> None:
    """The end does not see that the retried one waits for it again, so who retries looks once it is committed."""
    order, second, job = first_runs_again(process_id, hooks)
    with behind_transaction(lambda: control.retry_jobs(second)) as retry:
        end_uncommitted(job, process_id)
    assert retry.result()[0].changed
    assert (due(), outcomes(order)) == ([second.id], ["succeeded", None])


def test_retry_while_predecessor_ends(process_id: int, hooks: Hooks) -> None:
    """Who ends waits for the retry, and then sees who waits for it again."""
    order, second, job = first_runs_again(process_id, hooks)
    with behind_transaction(lambda: finish_many([job], process_id)) as end:
        control.retry_jobs(second)
        connection.cursor().execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert end.result()
    assert (due(), outcomes(order)) == ([second.id], ["succeeded", None])


def test_end_with_older_snapshot_fails(process_id: int) -> None:
    """It would lose the start of the one that comes after both."""
    _, [_, second_member], last = fan_in()
    first, second = claim(process_id)
    assert second.id == second_member.id

    def end_second_before_first() -> None:
        with transaction.atomic(using="owner"):
            change("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            change("DELETE FROM salon_jobs_job WHERE id = %s", second.id)
            assert in_thread(lambda: finish(first, process_id))

    with pytest.raises(OperationalError, match="could not serialize"):
        end_second_before_first()
    assert due() == []
    finish(second, process_id)
    assert due() == [last.id]


def test_crossing_ends_of_two_flows_do_not_deadlock(process_id: int) -> None:
    one, ones, one_last = fan_in(when="ended")
    two, twos, two_last = fan_in(when="ended")

    def end(*members: Member) -> None:
        with transaction.atomic():
            for member in members:
                control.cancel_jobs(member)

    assert outcomes(one) + outcomes(two) == [None] * 6
    with ThreadPoolExecutor(2) as pool:
        ends = [elsewhere(pool, lambda: end(ones[0], twos[0])), elsewhere(pool, lambda: end(twos[1], ones[1]))]
    assert [each.result() for each in ends] == [None, None]
    assert due() == [one_last.id, two_last.id]


def test_skips_go_down_a_chain_until_retry(process_id: int, hooks: Hooks) -> None:
    with flow("chain") as chain:
        before = chain.add(tasks.in_flow.call())
        members = [chain.add(tasks.in_flow.call(), after=before)]
        for _ in range(4):
            members.append(chain.add(tasks.in_flow.call(), after=members[-1]))
        chain.add(tasks.in_flow.call(), after=before, when="failed")
    run_due(process_id)
    hooks.system = fail
    run_due(process_id)
    skipped = ["skipped"] * 4
    assert outcomes(chain) == ["succeeded", "failed", *skipped, "skipped"]
    assert [reason for (reason,) in jobs("reason", "state = 'cancelled'")] == [
        f"flow: test-flow #{members[0].id} failed",
        *(f"flow: test-flow #{member.id} was skipped" for member in members[1:-1]),
        "flow: nothing that it comes after failed",
    ]
    change("UPDATE salon_jobs_job SET finished_at = now() - interval '29 days'")
    control.cancel_jobs(tasks.in_flow.enqueue())
    change("UPDATE salon_jobs_job SET finished_at = now() - interval '29 days' WHERE reason = 'cancelled'")
    # Those that a retry of the flow can start are kept with it.
    assert Pruner(using="default").run_once().deleted == {"cancelled": 2}
    chain.retry()
    assert (outcomes(chain)[1:-1], due()) == ([None] * 5, [members[0].id])
    hooks.reset()
    while due():
        run_due(process_id)
    assert outcomes(chain) == ["succeeded"] * 6 + ["skipped"]


def test_retried_member_waits_for_one_held_again(process_id: int, hooks: Hooks) -> None:
    """One that was skipped, after another that is retried with it; of a chain of these, for the last."""
    with flow("order") as order:
        members = [order.add(tasks.in_flow.call())]
        for _ in range(3):
            members.append(order.add(tasks.in_flow.call(), after=members[-1]))
        members.append(order.add(tasks.in_flow.call(), after=members[-1], when="ended"))
    hooks.system = fail
    run_due(process_id)
    run_due(process_id)
    assert outcomes(order) == ["failed", "skipped", "skipped", "skipped", "failed"]
    order.retry()
    hooks.reset()
    for member in members:
        assert due() == [member.id]
        run_due(process_id)
    assert outcomes(order) == ["succeeded"] * 5


def test_retry_at_an_instant_outlasts_waiting(process_id: int) -> None:
    _, [first, second], last = fan_in()
    control.cancel_jobs(first)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    control.retry_jobs(last, at=tomorrow)
    assert due() == [second.id]
    run_due(process_id)
    assert seen("SELECT state, run_at FROM salon_jobs_job WHERE id = %s", last.id) == [("queued", tomorrow)]


def test_one_transaction_ends_many(database: None) -> None:
    with flow("order") as order:
        first = [order.add(tasks.in_flow.call()) for _ in range(1500)]
        for member in first:
            order.add(tasks.in_flow.call(), after=member, when="ended")
    change("DELETE FROM salon_jobs_job WHERE run_at <= now()")
    assert (len(due()), FlowEdge.objects.count()) == (1500, 0)
    assert outcomes(order) == ["cancelled"] * 1500 + [None] * 1500


def test_cancelled_flow_starts_nothing(database: None) -> None:
    order, [first], _ = fan_in(1, when="ended")
    with order:
        order.add(tasks.in_flow.call(), after=first, when="failed")
    assert [result.changed for result in get_flow(order.id or 0).cancel()] == [True] * 3
    assert (due(), outcomes(order)) == ([], ["cancelled"] * 3)


def test_locked_follower_starts_later(process_id: int) -> None:
    """It holds up no end; maintenance starts it."""
    _, _, second = fan_in(1)
    [job] = claim(process_id)
    with transaction.atomic(using="owner"):
        seen("SELECT FROM salon_jobs_job WHERE id = %s FOR UPDATE", second.id)
        assert in_thread(lambda: finish_many([job], process_id))
        assert due() == []
    Maintenance(using="default").poll()
    assert due() == [second.id]


def test_key_admits_one_live_flow(process_id: int) -> None:
    def add() -> Flow:
        with flow("order", key="7") as order:
            order.add(tasks.in_flow.call())
        return order

    first, second = add(), add()
    assert (first.is_new, second.is_new, second.id, count()) == (True, False, first.id, 1)
    run_due(process_id)
    assert add().is_new


def test_retried_flow_holds_its_key_unless_taken(process_id: int, hooks: Hooks) -> None:
    """One that is retried after a newer one took its key runs beside that."""

    def add() -> Flow:
        with flow("order", key="7") as order:
            order.add(tasks.in_flow.call())
        return order

    hooks.system = fail
    first = add()
    run_due(process_id)
    assert [result.changed for result in first.retry()] == [True]
    assert (add().is_new, add().id) == (False, first.id)
    run_due(process_id)
    second = add()
    assert second.is_new
    assert [result.changed for result in first.retry()] == [True]
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE state = 'queued'") == [(2,)]


def test_handler_reads_results_and_adds_members(process_id: int, hooks: Hooks) -> None:
    order, parts, last = fan_in()
    run_due(process_id)

    def more(number: int) -> int:
        if number == 3:
            with current_job().flow as own:
                own.add(tasks.in_flow.call(4), after=own.me)
            with pytest.raises(FlowInvalid, match="comes after 2"):
                own.result_of(tasks.in_flow)
            with pytest.raises(NoResult):
                own.result_of(tasks.system)
            return sum(own.results_of(tasks.in_flow))
        return current_job().flow.result_of(tasks.in_flow)

    hooks.system = more
    run_due(process_id)
    assert [member.after for member in order.members()] == [(), (), (parts[0].id, parts[1].id), (last.id,)]
    run_due(process_id)
    results = [value for (value,) in seen("SELECT value::text FROM salon_jobs_job_result ORDER BY job_id")]
    assert results == ["0", "1", "1", "1"]
    # Without one of them the other says so.
    change("DELETE FROM salon_jobs_job_result")
    hooks.reset()
    fan_in(1)
    run_due(process_id)
    change("DELETE FROM salon_jobs_job_result")
    hooks.system = lambda **_: current_job().flow.result_of(tasks.in_flow)
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Errored)
    assert "or no longer" in str(outcome.error)


def test_members_run_in_order_added(process_id: int) -> None:
    with flow("order") as order:
        members = [order.add(tasks.ordered.call(number=each), priority=each % 2) for each in range(4)]
    assert [member.id for member in members] == sorted(member.id for member in members)
    for member in members:
        assert due() == [member.id]
        run_due(process_id)


def test_misfits_are_refused(stores: list[UUID]) -> None:
    with flow("other") as other:
        stranger = other.add(tasks.in_flow.call())
    order = flow("order")
    call: Any = tasks.in_flow.call()
    refused: list[tuple[Any, dict[str, Any], str]] = [
        ("fetch", {}, "a member is the call of a task"),
        (call, {"when": "done"}, "when is"),
        (call, {"when": "failed"}, "pass after"),
        (call, {"after": [7]}, "after takes what"),
        (call, {"after": tasks.in_flow.enqueue()}, "after takes what"),
        (call, {"after": None}, "after takes what"),
        (call, {"after": stranger}, "of another flow"),
        (call, {"job_key": "k"}, "members have no job_key"),
        (tasks.in_store.call(store_id=stores[0]), {}, "all its members belong"),
    ]
    with order:
        for what, options, said in refused:
            with pytest.raises(FlowInvalid, match=said):
                order.add(what, **options)
        with pytest.raises(FlowInvalid, match="has no ID"):
            order.add(call).id  # noqa: B018 - raises
    for closed in (order, flow("order"), get_flow(other.id or 0)):
        with pytest.raises(FlowInvalid, match="in the with block of their flow"):
            closed.add(call)
    with pytest.raises(FlowInvalid, match="no member"):
        RunningFlow(7, using="default")


def test_exception_in_block_enqueues_nothing(database: None) -> None:
    with suppress(ZeroDivisionError), flow("order") as order:
        order.add(tasks.in_flow.call())
        raise ZeroDivisionError
    assert (count(), FlowRecord.objects.exists()) == (0, False)


def test_web_role_sees_flows_of_its_store(stores: list[UUID], process_id: int) -> None:
    for store in stores[:2]:
        with tenant_context(store, using="web"), flow("order", using="web") as order:
            first = order.add(tasks.in_store.call(store_id=store))
            order.add(tasks.system.call(), after=first)
    with tenant_context(stores[0], using="web"):
        assert [model.objects.using("web").count() for model in (FlowRecord, FlowMember, FlowEdge)] == [1, 2, 1]
    while due():
        run_due(process_id)
    assert count() == 0


def test_role_holds_only_jobs_it_added(stores: list[UUID]) -> None:
    """A flow could hold somebody's job for ever."""
    theirs = tasks.system.enqueue()
    add = "SELECT salon_jobs_add_flow_members(%s, ARRAY[%s]::bigint[], ARRAY['ended'], '{}', '{}')"
    with tenant_context(stores[0], using="web"), flow("order", using="web") as order:
        order.add(tasks.in_store.call(store_id=stores[0]))
    with pytest.raises(ProgrammingError, match="not new jobs of yours"), tenant_context(stores[0], using="web"):
        connections["web"].cursor().execute(add, [order.id, theirs.id])


@pytest.mark.parametrize("role", ["web", "default", "operator"])
def test_no_role_writes_changes(database: None, role: str) -> None:
    """Whoever could would start members of others."""
    forged = "INSERT INTO salon_jobs_change (transaction_id, kind, job_id, became) VALUES (1, 'flow', 1, 'succeeded')"
    with pytest.raises(ProgrammingError, match="permission denied"), connections[role].cursor() as cursor:
        cursor.execute(forged)


def test_ended_flows_are_pruned(process_id: int, hooks: Hooks) -> None:
    """Their skipped members go after them."""
    hooks.system = fail
    _, [first], _ = fan_in(1)
    run_due(process_id)
    order, _, _ = fan_in(1)
    change("UPDATE salon_jobs_job SET finished_at = now() - interval '31 days' WHERE state <> 'queued'")
    change("UPDATE salon_jobs_flow SET changed_at = now() - interval '31 days'")
    assert Pruner(using="default").run_once().deleted["flows"] == 2, "members"
    while Pruner(using="default").run_once().deleted:
        pass
    assert list(FlowRecord.objects.values_list("pk", flat=True)) == [order.id]
    assert [job_id for (job_id,) in jobs("id", "state <> 'queued'")] == [first.id]


def test_deleted_members_hold_up_no_move(process_id: int, hooks: Hooks) -> None:
    with flow("order") as order:
        first = order.add(tasks.in_flow.call())
        for _ in range(1000):
            order.add(tasks.in_flow.call(), after=first)
    hooks.system = fail
    run_due(process_id)
    change("DELETE FROM salon_jobs_job WHERE state = 'cancelled'")
    order.retry()
    _, _, held = fan_in(1)
    change("UPDATE salon_jobs_flow_member SET move = 'start' WHERE job_id = %s", held.id)  # it was locked
    assert statements.rows("move_flow_members", using="default") == [(1,)]


def test_erasure_of_store_cancels_followers(stores: list[UUID]) -> None:
    with tenant_context(stores[0]), flow("order") as order:
        first = order.add(tasks.in_store.call(store_id=stores[0]))
        second = order.add(tasks.system.call(), after=first, when="ended")
    erase_store(stores[0], (), progress=lambda *_: None, using="operator")
    assert seen("SELECT id, state FROM salon_jobs_job") == [(second.id, "cancelled")]
    assert not FlowMember.objects.exists()


class DrainedTest(TestCase):
    """A test in a transaction that is rolled back."""

    def test_drained_jobs_start_followers(self) -> None:
        fan_in(1)
        assert [job.task for job in drain_jobs()] == ["test-flow"] * 2


def test_rescued_member_starts_followers_when_failed(process_id: int) -> None:
    with flow("order") as order:
        first = order.add(tasks.system.call())
        last = order.add(tasks.in_flow.call(), after=first, when="failed")
    for deaths in range(1, 6):
        assert [job.id for job in claim(process_id)] == [first.id]
        leases_of(process_id).rescue("gone")
        assert due() == ([last.id] if deaths == 5 else [first.id])
    assert outcomes(order) == ["failed", None]
