"""What migrations leave in a database, by its catalogue."""

from __future__ import annotations

from django.apps import apps

from tests.databases import rows

FUNCTIONS = "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
CATALOGUE = """
SELECT 'table', c.relname, c.relacl::text, c.relrowsecurity::text, c.relforcerowsecurity::text FROM pg_class c
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname <> 'django_migrations'
UNION ALL SELECT 'policy', tablename || '.' || policyname, roles::text, qual, with_check FROM pg_policies
UNION ALL SELECT 'function', proname, proacl::text, proowner::regrole::text, prosrc FROM pg_proc
 WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT 'trigger', tgrelid::regclass || '.' || tgname, pg_get_triggerdef(oid), tgenabled::text, ''
  FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 'storage', relname, array_to_string(reloptions, ','), '', '' FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
UNION ALL SELECT 'index', indexname, indexdef, '', '' FROM pg_indexes WHERE schemaname = 'public'
ORDER BY 1, 2"""
ENQUEUE_AND_COUNT = (
    "from salon_jobs import enqueue_job; from salon_jobs.models import Job; "
    "enqueue_job('ping', {}); print('queued', Job.objects.count())"
)
JOB_TABLES = {
    model._meta.db_table.removeprefix("salon_jobs_") for model in apps.get_app_config("salon_jobs").get_models()
}


def job_tables(name: str) -> set[str]:
    """Return which job tables there are, without their prefix."""
    tables = rows(name, "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'salon_jobs_%'")
    return {str(row[0]).removeprefix("salon_jobs_") for row in tables}
