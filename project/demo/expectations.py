"""Expected state of the rows, in separate SQL that shares nothing with the tasks."""

from __future__ import annotations

from typing import Final, LiteralString

TABLES: Final[tuple[LiteralString, ...]] = (
    "store",
    "customer",
    "customer_note",
    "reservation",
    "sale",
    "daily_sales",
    "operator",
    "operator_session",
    "operator_invitation",
    "source_file",
    "parse_task",
)

# Computed from the raw rows before any task runs; parameters are the ticks. Ordered by dependency.
EXPECTED: Final[dict[LiteralString, LiteralString]] = {
    # No business table: the reservations that are confirmed and not rolled back, in each store's order.
    "confirmation": """
        SELECT r.id, r.store_id, r.customer_id, r.starts_at,
               row_number() OVER (PARTITION BY r.store_id ORDER BY r.starts_at, r.id) AS place
        FROM public.reservation AS r JOIN public.customer AS c ON c.store_id = r.store_id AND c.id = r.customer_id
        WHERE r.status = 'tentative' AND r.expires_at > now() + interval '30 minutes' AND c.deleted_at IS NULL
          AND right(r.id::text, 1) NOT IN ('0', '8')
    """,
    "store": "SELECT * FROM public.store",
    "operator": "SELECT * FROM public.operator",
    "sale": "SELECT * FROM public.sale",
    "customer": """
        SELECT * FROM public.customer
        WHERE deleted_at IS NULL OR NOT deleted_at < %(customers_tick)s - interval '90 days'
    """,
    "customer_note": """
        SELECT n.id, n.store_id, n.customer_id, n.body, n.deleted_at FROM public.customer_note AS n
        WHERE (n.deleted_at IS NULL OR NOT n.deleted_at < %(notes_tick)s - interval '7 days')
          AND EXISTS (SELECT FROM demo_expected.customer AS c WHERE c.store_id = n.store_id AND c.id = n.customer_id)
        UNION ALL
        SELECT id, store_id, customer_id,
               'Confirmed for ' || to_char(starts_at AT TIME ZONE 'Asia/Tokyo', 'YYYY-MM-DD HH24:MI'), NULL
        FROM demo_expected.confirmation
    """,
    "reservation": """
        SELECT r.id, r.store_id, c.id AS customer_id, r.starts_at, r.expires_at,
               CASE WHEN f.id IS NOT NULL THEN 'confirmed'
                    WHEN r.status = 'tentative' AND r.expires_at <= now() THEN 'expired' ELSE r.status END AS status
        FROM public.reservation AS r
        LEFT JOIN demo_expected.confirmation AS f ON f.id = r.id
        LEFT JOIN demo_expected.customer AS c ON c.store_id = r.store_id AND c.id = r.customer_id
    """,
    "daily_sales": """
        WITH target AS (SELECT (%(sales_tick)s AT TIME ZONE 'Asia/Tokyo')::date - 1 AS day)
        SELECT d.store_id, d.business_date, d.total, d.count
        FROM public.daily_sales AS d, target WHERE d.business_date <> target.day
        UNION ALL
        SELECT s.id, target.day, coalesce(sum(v.amount), 0), count(v.id)
        FROM target CROSS JOIN public.store AS s
        LEFT JOIN public.sale AS v
          ON v.store_id = s.id AND (v.sold_at AT TIME ZONE 'Asia/Tokyo')::date = target.day
        GROUP BY s.id, target.day
    """,
    "operator_session": "SELECT * FROM public.operator_session WHERE NOT expires_at < %(operators_tick)s",
    "operator_invitation": """
        SELECT store_id, email, token, expires_at, sent_at IS NOT NULL AS sent
        FROM public.operator_invitation WHERE NOT expires_at < %(operators_tick)s
    """,
    # One file per store, parsed, except those whose upload is rolled back.
    "source_file": """
        SELECT s.id AS store_id, 'sales.txt' AS name FROM public.store AS s WHERE right(s.id::text, 1) NOT IN ('0', '8')
    """,
    "parse_task": """
        SELECT s.id AS store_id, 'SUCCEEDED' AS status, count(v.id)::integer AS lines,
               coalesce(sum(v.amount), 0)::bigint AS total, '' AS error
        FROM public.store AS s LEFT JOIN public.sale AS v ON v.store_id = s.id
        WHERE right(s.id::text, 1) NOT IN ('0', '8')
        GROUP BY s.id
    """,
}

# How rows are read afterwards where they are not compared as they are. A reservation that was still tentative when the
# expectation was computed may have lapsed since, if its time has come: LAPSED below checks those.
ACTUAL: Final[dict[LiteralString, LiteralString]] = {
    "reservation": """
        SELECT r.id, r.store_id, r.customer_id, r.starts_at, r.expires_at,
               CASE WHEN e.status = 'tentative' AND r.status = 'expired' AND r.expires_at <= now() THEN 'tentative'
                    ELSE r.status END AS status
        FROM public.reservation AS r LEFT JOIN demo_expected.reservation AS e USING (id)
    """,
    "daily_sales": "SELECT store_id, business_date, total, count FROM public.daily_sales",
    "operator_invitation": """
        SELECT i.store_id, i.email, CASE WHEN b.id IS NULL THEN 'new' ELSE i.token END AS token,
               CASE WHEN b.id IS NOT NULL THEN i.expires_at END AS expires_at, i.sent_at IS NOT NULL AS sent
        FROM public.operator_invitation AS i LEFT JOIN demo_before.operator_invitation AS b USING (id)
    """,
}

# Each store's cutoff falls between two seconds: nothing that lapsed later is expired while something earlier waits.
LAPSED: Final[LiteralString] = """
    SELECT r.store_id,
           'reservations: one that lapses at ' || max(r.expires_at) FILTER (WHERE r.status = 'expired')
           || ' is expired, one of ' || min(r.expires_at) FILTER (WHERE r.status = 'tentative') || ' is not' AS what
    FROM public.reservation AS r JOIN demo_before.reservation AS b USING (id)
    WHERE b.status = 'tentative'
    GROUP BY r.store_id
    HAVING max(r.expires_at) FILTER (WHERE r.status = 'expired')
           >= min(r.expires_at) FILTER (WHERE r.status = 'tentative')
"""

# Rows that differ from before, by the task that should change them.
CHANGED: Final[dict[LiteralString, LiteralString]] = {
    "expire-tentative-for-store": """
        SELECT count(*) FROM public.reservation AS r JOIN demo_before.reservation AS b USING (id)
        WHERE r.status = 'expired' AND b.status <> 'expired'
    """,
    "aggregate-daily-sales-for-store": """
        SELECT count(*) FROM (SELECT * FROM public.daily_sales EXCEPT SELECT * FROM demo_before.daily_sales) AS changed
    """,
    "cleanup-deleted-customers-for-store": """
        SELECT (SELECT count(*) FROM demo_before.customer AS b WHERE NOT EXISTS (
                    SELECT FROM public.customer AS c WHERE c.id = b.id))
             + (SELECT count(*) FROM demo_before.customer_note AS b WHERE NOT EXISTS (
                    SELECT FROM public.customer_note AS n WHERE n.id = b.id)
                AND (b.deleted_at IS NULL OR b.deleted_at >= %(notes_tick)s - interval '7 days'))
             + (SELECT count(*) FROM public.reservation AS r JOIN demo_before.reservation AS b USING (id)
                WHERE r.customer_id IS DISTINCT FROM b.customer_id)
    """,
    "purge-deleted-customer-notes-for-store": """
        SELECT count(*) FROM demo_before.customer_note AS b
        WHERE b.deleted_at < %(notes_tick)s - interval '7 days'
          AND NOT EXISTS (SELECT FROM public.customer_note AS n WHERE n.id = b.id)
    """,
    "record-confirmation": """
        SELECT count(*) FROM public.customer_note AS n WHERE NOT EXISTS (
            SELECT FROM demo_before.customer_note AS b WHERE b.id = n.id)
    """,
    "parse-upload": "SELECT count(*) FROM public.parse_task WHERE status = 'SUCCEEDED'",
    "cleanup-expired-operator-sessions": """
        SELECT count(*) FROM demo_before.operator_session AS b
        WHERE NOT EXISTS (SELECT FROM public.operator_session AS s WHERE s.id = b.id)
    """,
    "cleanup-expired-operator-invitations": """
        SELECT count(*) FROM demo_before.operator_invitation AS b
        WHERE NOT EXISTS (SELECT FROM public.operator_invitation AS i WHERE i.id = b.id)
    """,
    "send-operator-invitation-email": """
        SELECT count(*) FROM public.operator_invitation AS i LEFT JOIN demo_before.operator_invitation AS b USING (id)
        WHERE i.sent_at IS DISTINCT FROM b.sent_at
    """,
}
