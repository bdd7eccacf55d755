"""Grant each role its rights on the tables under row-level security, and install functions, triggers and parameters."""

from typing import ClassVar

from salon_jobs.access.operations import InstallFunction, ProtectTables, SetStorageParameters, ShareWithDjango
from salon_jobs.access.operations.base import JobTablesMigration


class Migration(JobTablesMigration):
    """Right after the tables are created, before anybody else can use them."""

    dependencies: ClassVar = [("salon_jobs", "0001_initial")]
    operations: ClassVar = [
        ProtectTables(
            "salon_jobs_job",
            "salon_jobs_job_error",
            "salon_jobs_job_result",
            "salon_jobs_superseded",
            "salon_jobs_fan_out",
            "salon_jobs_follow_up",
            "salon_jobs_process",
            "salon_jobs_limit",
            "salon_jobs_cron_entry",
            "salon_jobs_cron_tick",
            "salon_jobs_task_minute",
            "salon_jobs_queue_minute",
            "salon_jobs_message",
            "salon_jobs_blocked_aggregate",
            "salon_jobs_partition",
            "salon_jobs_destination",
            "salon_jobs_replay",
            "salon_jobs_inbox",
        ),
        ShareWithDjango(),
        InstallFunction("salon_jobs_add_jobs"),
        InstallFunction("salon_jobs_add_job"),
        InstallFunction("salon_jobs_enqueue"),
        InstallFunction("salon_jobs_get_result"),
        InstallFunction("salon_jobs_cancel"),
        InstallFunction("salon_jobs_claim"),
        InstallFunction("salon_jobs_claim_groups"),
        InstallFunction("salon_jobs_finish"),
        InstallFunction("salon_jobs_unheld"),
        InstallFunction("salon_jobs_unclaimable"),
        InstallFunction("salon_jobs_supersede"),
        InstallFunction("salon_jobs_record_tick"),
        InstallFunction("salon_jobs_add_follow_up"),
        InstallFunction("salon_jobs_enqueue_follow_up"),
        InstallFunction("salon_jobs_follow_up"),
        InstallFunction("salon_jobs_emit"),
        InstallFunction("salon_jobs_emit_many"),
        InstallFunction("salon_jobs_gate"),
        InstallFunction("salon_jobs_skip_messages"),
        InstallFunction("salon_jobs_hold_gate"),
        # A job is three row versions within seconds: inserted, claimed, deleted. With the server's defaults, a table that
        # once held a million rows is vacuumed after 200,000 dead ones, and deliberately slowly; until then each claim
        # reads past them. So the threshold is fixed, and vacuum runs at full speed. The TOAST table holds long payloads.
        # fillfactor stays at 100: a claim changes indexed columns, so free space in the page would not make it cheaper.
        SetStorageParameters(
            "salon_jobs_job",
            {
                "autovacuum_vacuum_scale_factor": 0,
                "autovacuum_vacuum_threshold": 5000,
                "autovacuum_vacuum_cost_delay": 0,
                "autovacuum_analyze_scale_factor": 0,
                "autovacuum_analyze_threshold": 5000,
                "toast.autovacuum_vacuum_scale_factor": 0,
                "toast.autovacuum_vacuum_threshold": 5000,
                "toast.autovacuum_vacuum_cost_delay": 0,
            },
        ),
        # A message is two row versions within milliseconds: written, published.
        SetStorageParameters(
            "salon_jobs_message",
            {
                "autovacuum_vacuum_scale_factor": 0,
                "autovacuum_vacuum_threshold": 20000,
                "autovacuum_vacuum_cost_delay": 0,
                "autovacuum_vacuum_insert_scale_factor": 0,
                "autovacuum_vacuum_insert_threshold": 100000,
                "autovacuum_analyze_scale_factor": 0.02,
            },
        ),
        # Each row of the current minute is updated by every process every few seconds, and never afterwards. No indexed
        # column changes: with free space in its page such an update touches no index and leaves nothing to vacuum.
        SetStorageParameters("salon_jobs_task_minute", {"fillfactor": 70}),
        # One row per partition or destination, updated every few seconds.
        SetStorageParameters("salon_jobs_partition", {"fillfactor": 50}),
        SetStorageParameters("salon_jobs_destination", {"fillfactor": 50}),
    ]
