"""Move the time of failed and skipped messages from ``sent_at`` to ``ended_at``."""

from typing import ClassVar

from django.db import migrations

# A thousand rows per transaction, by the index of ended rows, each row locked while its batch runs: relays and
# operators continue meanwhile. A lock that is not available within 900 ms ends it with 55P03; completed batches stay,
# and migrate can be run again. It leaves the column status alone, so that the trigger times_fit_status is not called.
_MOVE = """
DO $do$
DECLARE
    ended text;
    last bigint;
    batch bigint[];
BEGIN
    FOREACH ended IN ARRAY ARRAY['failed', 'skipped'] LOOP
        last := 0;
        LOOP
            PERFORM set_config('lock_timeout', '900ms', true) WHERE current_setting('lock_timeout') = '0';
            batch := ARRAY(
                SELECT id FROM salon_jobs_message
                 WHERE status = ended AND status IN ('failed', 'skipped') AND id > last AND {source} IS NOT NULL
                 ORDER BY id LIMIT 1000 FOR UPDATE
            );
            EXIT WHEN batch = '{{}}';
            UPDATE salon_jobs_message SET {target} = {source}, {source} = NULL
             WHERE id = ANY (batch) AND status IN ('failed', 'skipped') AND {source} IS NOT NULL;
            last := batch[cardinality(batch)];
            COMMIT;
        END LOOP;
    END LOOP;
END
$do$
"""


class Migration(migrations.Migration):
    """Changes rows only."""

    atomic = False
    dependencies: ClassVar = [("salon_jobs", "0008_message_ended_at")]
    operations: ClassVar = [
        # Nested lists: Django would split a string at its semicolons.
        migrations.RunSQL(
            [_MOVE.format(source="sent_at", target="ended_at")], [_MOVE.format(source="ended_at", target="sent_at")]
        )
    ]
