"""Opens the admin's pages over 65,000 ended jobs and a backlog: each query they make is served by an index."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from django.db import connections
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from salon_jobs.admin import actions
from salon_jobs.tenancy.context import tenant_context
from tests.admin.pages import WebRouter, staff
from tests.plans.explain import JOBS, rows_read, scans_of, signed_in
from tests.settings import SALON_JOBS
from tests.support import change, in_state, seen, selected, store_id_of, store_id_sql
from tests.waiting import LIMIT_S

ENDED = 75_000
WAITING = 11_350
STORE = str(store_id_of(1))


@pytest.fixture(scope="module")
def crowded(migrated: None) -> Iterator[None]:
    """Fill the table: ended jobs of common and rare tasks, queues, states and stores, and 9,000 that wait among them.

    Four stores have almost all of it, and a thousand one job each.
    """
    empty()
    row = in_state(
        "CASE WHEN n %% 500 = 0 THEN 'failed' WHEN n %% 2500 = 1 THEN 'cancelled'"
        " WHEN n %% 8 = 3 THEN 'queued' ELSE 'succeeded' END",
        task="CASE WHEN n %% 25000 = 9 THEN 'ping' ELSE 'test-store' END",
        store_id=f"CASE WHEN n %% 25000 = 8 THEN NULL WHEN n %% 75 = 5 THEN {store_id_sql()}"
        f" ELSE {store_id_sql('n %% 4')} END",
        queue="CASE WHEN n %% 25000 = 7 THEN 'rare' ELSE 'default' END",
        job_key="'k:' || n",
        error_class="CASE WHEN n %% 500 = 0 THEN 'E' || n %% 3000 / 500 END",
        fingerprint="CASE WHEN n %% 500 = 0 THEN n %% 3000 END",
        finished_at="CASE WHEN n %% 8 <> 3 OR n %% 500 = 0 OR n %% 2500 = 1 THEN now() - n * interval '1 ms' END",
    )
    change(f"INSERT INTO salon_jobs_job {selected(row)} FROM generate_series(1, %s) AS n", ENDED)
    change(
        "INSERT INTO salon_jobs_job (task, store_id, queue, run_at, job_key)"
        f" SELECT CASE WHEN n = 3 THEN 'lone' ELSE 'test-store' END, {store_id_sql('n %% 4')},"
        "  CASE WHEN n = 4 THEN 'lone' ELSE 'default' END, now() + interval '1 day', 'q:' || n"
        "   FROM generate_series(1, 2000) AS n"
    )
    change(
        "INSERT INTO salon_jobs_cron_tick (entry, tick_at)"
        " SELECT 'entry-' || n %% 5, now() - n * interval '1 minute' FROM generate_series(1, 20000) AS n"
    )
    change("INSERT INTO salon_jobs_cron_entry (name) SELECT 'entry-' || n FROM generate_series(0, 4) AS n")
    change(
        "INSERT INTO salon_jobs_flow_member (job_id, flow_id, task, condition, after, run_at)"
        " SELECT n, n %% 500, 'test-store', 'succeeded', '[]', now() FROM generate_series(1, 20000) AS n"
    )
    change("VACUUM ANALYZE salon_jobs_job, salon_jobs_cron_tick, salon_jobs_flow_member")
    yield
    empty()


def empty() -> None:
    """Empty the tables, and begin with job 1, for which pages are searched."""
    tables = "salon_jobs_flow_member, salon_jobs_job, salon_jobs_cron_tick, salon_jobs_cron_entry"
    change(f"TRUNCATE {tables} RESTART IDENTITY")


@pytest.fixture(scope="class")
def alike(crowded: None) -> Iterator[None]:
    """Have 20,000 jobs fail alike, one of them of the first store."""
    store = store_id_sql("CASE WHEN n = 9 THEN 1 ELSE 2 END")
    row = in_state("'failed'", task="'alike'", store_id=store, fingerprint="7")
    change(f"INSERT INTO salon_jobs_job {selected(row)} FROM generate_series(1, 20000) AS n")
    change("VACUUM ANALYZE salon_jobs_job")
    yield
    forget("alike")


def forget(task: str) -> None:
    """Leave the table to the next test as it was, whichever comes next."""
    change("DELETE FROM salon_jobs_job WHERE task = %s", task)
    change("VACUUM ANALYZE salon_jobs_job")


@pytest.fixture
def client(crowded: None) -> Iterator[Client]:
    with signed_in() as client:
        yield client


@pytest.fixture
def one_store(crowded: None) -> Iterator[Client]:
    """Sign in as staff of one of the four large stores, through the web role."""
    as_web = {**SALON_JOBS, "DATABASE": "web", "OPERATOR_DATABASE": "operator"}
    change("INSERT INTO store (id, name) VALUES (%s, 'Salon')", STORE)
    with override_settings(DATABASE_ROUTERS=[WebRouter()], SALON_JOBS=as_web):
        yield staff(store_id_of(1))
    change("TRUNCATE store, membership, auth_user CASCADE")


def queries(client: Client, url: str, alias: str = "operator") -> list[str]:
    with CaptureQueriesContext(connections[alias]) as captured:
        answer = client.get(url)
    assert answer.status_code == 200
    asked = [query["sql"] for query in captured.captured_queries]
    return [each for each in asked if each.startswith(("SELECT", "WITH", "SET LOCAL random_page_cost"))]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?p=100",
        "?_facets=1",
        *(f"?state__exact={state}" for state in ("queued", "running", "failed", "cancelled", "succeeded")),
        "?state__exact=failed&o=4",
        "?state__exact=succeeded&o=-4&p=20",
        "?task=ping",
        "?task=test-store",
        "?task=nonsense",
        "?task=lone",
        "?task=lone&state__exact=queued",
        "?queue=lone",
        "?queue=rare",
        "?queue=default",
        f"?store={STORE}",
        "?store=none",
        "?store=none&state__exact=queued",
        "?store=none&task=lone",
        "?task=ping&state__exact=failed",
        f"?queue=rare&store={STORE}",
        "?q=77",
        "?q=k:77",
        "?q=q:77",
        "?q=%2377",
        "?q=test-store",
        "?q=E3",
        "?q=nonsense",
        f"?q={store_id_of(9)}",
        "?enqueued=15m",
        "?enqueued=1h&task=ping",
        "?error_class=E3",
        "?error_class=nonsense",
        "?fingerprint=500",
        "?flow=7",
        "?flow=7&task=test-store",
    ],
)
def test_filters_and_searches_use_indexes(client: Client, query: str) -> None:
    statements = queries(client, JOBS + query)
    assert statements
    for statement in statements:
        for node in scans_of(statement):
            # A count may walk the table itself when almost every row matches: it stops after 10,001. Instead of the
            # bloom filters the planner may take an index of all that wait: it judges a BRIN by a correlation that
            # ANALYZE finds by chance.
            assert rows_read(node) <= (WAITING + 50 if "lone" in query else 10_050), statement


def test_operator_prefers_index_of_filter(client: Client) -> None:
    """Walking all ids would look cheaper."""
    with connections["operator"].cursor() as cursor:
        cursor.execute("SHOW random_page_cost")
        assert cursor.fetchone() == ("1.1",)


def test_list_reads_only_small_payloads(client: Client) -> None:
    """In one query, by the ids of its rows. A job's page shows its own."""
    [reading] = [statement for statement in queries(client, JOBS) if '"payload"' in statement]
    assert re.search(r'CASE WHEN pg_column_size\(\S+"payload"\) <= \(?8192\)? THEN \S+"payload" ELSE NULL END', reading)
    assert reading.count('"payload"') == 2
    assert all(rows_read(node) <= 50 for node in scans_of(reading))
    [(job_id,)] = seen("SELECT min(id) FROM salon_jobs_job")
    assert [statement for statement in queries(client, f"{JOBS}{job_id}/change/") if '"payload"' in statement]


def test_counting_ends_at_ten_thousand(client: Client) -> None:
    text = client.get(JOBS).content.decode()
    assert "10,000+ jobs" in text
    assert "All 10,000+ selected" in text
    assert "?p=200" in text
    assert set(re.findall(r'class="sortable column-(\w+)', text)) == {"job"}, "sorting by others reads every row"
    assert "30 jobs" in client.get(f"{JOBS}?state__exact=cancelled").content.decode()


def test_chosen_store_is_always_offered(client: Client) -> None:
    """Also when many others failed later."""
    chosen = str(store_id_of(7 * 10**15))
    later = "now() + interval '1 day'"
    row = in_state("'failed'", task="'late'", store_id=store_id_sql(), finished_at=later)
    change(f"INSERT INTO salon_jobs_job {selected(row)} FROM generate_series(1, 60)")
    text = client.get(f"{JOBS}?store={chosen}").content.decode()
    forget("late")
    offered = set(re.findall(r'href="\?store=([^"&]*[0-9][^"&]*)"', text))
    assert chosen in offered
    assert len(offered) == 51


@pytest.mark.parametrize("query", ["", "?entry=entry-1", "?entry=nonsense"])
def test_cron_ticks_are_listed_by_index(client: Client, query: str) -> None:
    for statement in queries(client, f"/admin/salon_jobs/crontick/{query}"):
        for node in scans_of(statement):
            assert rows_read(node) <= 10_050, statement


@pytest.mark.usefixtures("alike")
class TestFailuresAlike:
    """Pages over many jobs that failed alike."""

    def test_failures_are_grouped_by_index_steps(self, client: Client) -> None:
        statements = queries(client, f"{JOBS}failures/")
        text = client.get(f"{JOBS}failures/").content.decode()
        assert ">1000+</a>" in text
        assert text.count(">Retry all<") == 7
        for statement in statements:
            for node in scans_of(statement):
                assert node["Actual Loops"] * node["Actual Rows"] <= 10_050, statement

    def test_error_group_is_read_by_index(self, client: Client) -> None:
        for statement in queries(client, f"{JOBS}group/?fingerprint=7"):
            for node in scans_of(statement):
                assert rows_read(node) <= 1001, statement

    @pytest.mark.parametrize(
        "query",
        ["", "failures/", "group/?fingerprint=7", "?state__exact=failed", "?task=ping", "?task=lone", "?queue=rare"],
    )
    def test_staff_of_large_store_read_no_more(self, one_store: Client, query: str) -> None:
        statements = queries(one_store, JOBS + query, "web")
        asked = [each for each in statements if "salon_jobs_job" in each]
        assert asked
        of_jobs = [each for each in asked if 'FROM "salon_jobs_job"' in each]
        assert all('"store_id" = ' in each for each in of_jobs), "what the planner can weigh"
        with tenant_context(STORE, using="web"), connections["web"].cursor() as cursor:
            for setting in (each for each in statements if each.startswith("SET LOCAL")):
                cursor.execute(setting)
            for statement in asked:
                for node in scans_of(statement, "web"):
                    assert rows_read(node) <= 10_050, (statement, node)


def test_retrying_all_takes_few_statements(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "LONGEST_S", LIMIT_S)
    twin = in_state("state", task="'many'", job_key="'twin'")
    change(f"INSERT INTO salon_jobs_job {selected(twin)} FROM unnest(ARRAY['failed', 'queued']) AS state")
    failed = in_state("'failed'", task="'many'", attempts="25")
    change(f"INSERT INTO salon_jobs_job {selected(failed)} FROM generate_series(1, 2500)")
    form = {"action": "retry", "select_across": "1", "index": "0", "_selected_action": "1"}
    page = f"{JOBS}?task=many&state__exact=failed"
    assert "2,501 jobs selected" in client.post(page, form).content.decode()
    form["confirmed"] = "yes"
    with CaptureQueriesContext(connections["operator"]) as captured:
        text = client.post(page, form, follow=True).content.decode()
    assert "2,500 jobs retried." in text
    assert "waits under its key; cancel that one first" in text
    assert seen("SELECT state, count(*) FROM salon_jobs_job WHERE task = 'many' GROUP BY 1 ORDER BY 1") == [
        ("failed", 1),
        ("queued", 2501),
    ]
    assert seen("SELECT count(*) FROM django_admin_log WHERE change_message = 'retried'") == [(2500,)]
    # Three batches: the collision makes none of them be done again.
    assert sum("UPDATE salon_jobs_job" in query["sql"] for query in captured.captured_queries) == 3
    assert sum("LIMIT 1000" in query["sql"] for query in captured.captured_queries) >= 4
    # A request that takes long ends in time to say so.
    monkeypatch.setattr(actions, "LONGEST_S", 0.0)
    text = client.post(f"{JOBS}?task=many", form | {"action": "cancel"}, follow=True).content.decode()
    assert "1,000 jobs cancelled." in text
    assert "more jobs may match" in text
    change("TRUNCATE django_admin_log")
    forget("many")
