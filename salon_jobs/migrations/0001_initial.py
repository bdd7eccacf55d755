"""Create the tables."""

from typing import ClassVar

from django.db import migrations, models
from django.db.models import Q
from django.db.models.functions import Cast, Coalesce, Now
from pgtrigger.compiler import Trigger, UpsertTriggerSql

from salon_jobs.access.operations.base import AddGuard, JobTablesMigration
from salon_jobs.models.fields import (
    BloomIndex,
    IntegerArrayField,
    JSONTextField,
    NoStore,
    ReadableJSONField,
    StoreIdField,
    StoreKeyPattern,
    finite,
)
from salon_jobs.models.job import TextHash
from salon_jobs.models.message import PartitionOf
from salon_jobs.models.process import new_process_id

_QUEUED = Q(state="queued")
_FAILED = Q(state="failed")
_ENDED = ~Q(state="queued") & ~Q(state="running")
_FITS_STATE = (
    Q(state="queued", leased_by=None, begun_once_at=None, finished_at=None, cancel_requested_at=None, reason="")
    | Q(
        state="running",
        leased_by__isnull=False,
        leased_by__gt=0,
        leased_by__lt=2**63 - 1,
        lease__gt=0,
        started_at__isnull=False,
        finished_at=None,
        reason="",
    )
    | Q(state="succeeded", leased_by=None, started_at__isnull=False, finished_at__isnull=False, reason="")
    | (
        Q(state="failed", leased_by=None, started_at__isnull=False, finished_at__isnull=False)
        & Q(cancel_requested_at=None, error_class__isnull=False)
        & ~Q(reason="")
    )
    | Q(state="cancelled", leased_by=None, finished_at__isnull=False)
)


class Migration(JobTablesMigration):
    initial = True
    dependencies: ClassVar = []
    operations: ClassVar = [
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("task", models.CharField(max_length=255)),
                ("store_id", StoreIdField(null=True)),
                ("queue", models.CharField(db_default="default", max_length=100)),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("state", models.CharField(db_default="queued", max_length=16)),
                ("run_at", models.DateTimeField(db_default=Now())),
                ("attempts", models.SmallIntegerField(db_default=0)),
                ("max_attempts", models.SmallIntegerField(db_default=25)),
                ("lease", models.BigIntegerField(db_default=0)),
                ("leased_by", models.BigIntegerField(null=True)),
                ("rescues", models.SmallIntegerField(db_default=0)),
                ("job_key", models.CharField(max_length=512, null=True, verbose_name="job key")),
                ("payload", ReadableJSONField(db_default=models.Value({}, models.JSONField()))),
                ("reason", models.CharField(db_default="", max_length=255)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("started_at", models.DateTimeField(null=True)),
                ("claimed_at", models.DateTimeField(null=True)),
                ("begun_once_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("cancel_requested_at", models.DateTimeField(null=True)),
                ("expires_at", models.DateTimeField(null=True)),
                ("tick", models.DateTimeField(null=True)),
                ("concurrency_key", models.CharField(max_length=255, null=True, verbose_name="concurrency key")),
                (
                    "claim_group",
                    models.GeneratedField(
                        db_persist=True,
                        expression=TextHash(
                            "task", TextHash("queue", Cast("priority", models.BigIntegerField()))
                        ).bitxor(
                            TextHash(  # type: ignore[arg-type]
                                Coalesce("concurrency_key", models.Value("", models.TextField())), models.Value(0)
                            ).bitand(2**32 - 1)
                        ),
                        output_field=models.BigIntegerField(),
                    ),
                ),
                ("fan_out_id", models.BigIntegerField(null=True)),
                ("error_class", models.CharField(max_length=255, null=True)),
                ("fingerprint", models.BigIntegerField(null=True)),
                ("trace", models.JSONField(null=True)),
                ("keep_result", models.DurationField(null=True)),
                ("alone", models.BooleanField(db_default=False, default=False)),
                ("public_id", models.UUIDField(null=True)),
                ("follow_up_id", models.BigIntegerField(null=True)),
                ("follows", models.JSONField(null=True)),
                ("flow_id", models.BigIntegerField(null=True)),
                ("ordered", models.CharField(max_length=11, null=True)),
                ("log", models.TextField(null=True)),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "db_table": "salon_jobs_job",
                "permissions": [
                    ("retry_job", "Can retry jobs"),
                    ("cancel_job", "Can cancel jobs"),
                    ("discard_job", "Can discard jobs"),
                    ("view_all_stores", "Can work with jobs and messages of all stores"),
                ],
                "indexes": [
                    models.Index(
                        condition=_QUEUED,
                        fields=["priority", "run_at", "id"],
                        include=("queue", "task"),
                        name="salon_jobs_job_due",
                    ),
                    models.Index(
                        Coalesce("store_id", NoStore()),
                        models.F("claim_group"),
                        models.F("run_at"),
                        models.F("id"),
                        condition=_QUEUED,
                        name="salon_jobs_job_claim_group",
                    ),
                    models.Index(
                        condition=Q(state="running"), fields=["leased_by", "id"], name="salon_jobs_job_leased"
                    ),
                    models.Index(
                        condition=Q(cancel_requested_at__isnull=False, state="running"),
                        fields=["leased_by"],
                        name="salon_jobs_job_cancelling",
                    ),
                    models.Index(
                        condition=Q(job_key__isnull=False, state__in=["queued", "running"]),
                        fields=["job_key", "task", "store_id"],
                        name="salon_jobs_job_live_key",
                    ),
                    models.Index(condition=_ENDED, fields=["state", "finished_at"], name="salon_jobs_job_ended"),
                    models.Index(
                        condition=Q(store_id__isnull=False), fields=["store_id", "id"], name="salon_jobs_job_store"
                    ),
                    models.Index(
                        condition=Q(fan_out_id__isnull=False), fields=["fan_out_id"], name="salon_jobs_job_fan_out"
                    ),
                    BloomIndex(
                        condition=_QUEUED,
                        fields=["task", "queue"],
                        name="salon_jobs_job_queued_task",
                        opclasses=2 * ["text_bloom_ops(n_distinct_per_range='128')"],
                    ),
                    models.Index(condition=_ENDED, fields=["state", "id"], name="salon_jobs_job_ended_state"),
                    models.Index(condition=_ENDED, fields=["task", "id"], name="salon_jobs_job_ended_task"),
                    models.Index(condition=_ENDED, fields=["queue", "id"], name="salon_jobs_job_ended_queue"),
                    models.Index(
                        condition=Q(store_id__isnull=True) & _ENDED, fields=["id"], name="salon_jobs_job_ended_system"
                    ),
                    models.Index(
                        condition=Q(job_key__isnull=False) & _ENDED, fields=["job_key"], name="salon_jobs_job_ended_key"
                    ),
                    models.Index(condition=_FAILED, fields=["fingerprint", "id"], name="salon_jobs_job_failed_alike"),
                    models.Index(
                        condition=_FAILED, fields=["store_id", "fingerprint", "id"], name="salon_jobs_job_failed_store"
                    ),
                    models.Index(condition=_FAILED, fields=["error_class", "id"], name="salon_jobs_job_failed_class"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=Q(public_id__isnull=False), fields=("public_id",), name="salon_jobs_job_public_id"
                    ),
                    models.UniqueConstraint(
                        condition=Q(job_key__isnull=False, state="queued"),
                        fields=("task", "store_id", "job_key"),
                        name="salon_jobs_job_waiting_key",
                        nulls_distinct=False,
                    ),
                    models.CheckConstraint(condition=_FITS_STATE, name="salon_jobs_job_state"),
                    models.CheckConstraint(
                        condition=Q(attempts__gte=0, max_attempts__gte=1, rescues__gte=0),
                        name="salon_jobs_job_attempts",
                    ),
                    models.CheckConstraint(
                        condition=finite(
                            *("created_at", "run_at", "started_at", "claimed_at", "begun_once_at", "expires_at"),
                            *("tick", "finished_at", "cancel_requested_at"),
                        ),
                        name="salon_jobs_job_instants",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="JobError",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", models.BigIntegerField()),
                ("store_id", StoreIdField(null=True)),
                ("attempt", models.SmallIntegerField()),
                ("error_class", models.CharField(max_length=255)),
                ("code", models.CharField(db_default="", max_length=64)),
                ("message", models.TextField(db_default="")),
                ("traceback", models.TextField(db_default="")),
                ("log", models.TextField(db_default="")),
                ("occurred_at", models.DateTimeField(db_default=Now())),
                ("worker_id", models.BigIntegerField(null=True)),
                ("started_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "salon_jobs_job_error",
                "indexes": [models.Index(fields=["job_id", "id"], name="salon_jobs_job_error_job")],
            },
        ),
        migrations.CreateModel(
            name="JobResult",
            fields=[
                ("job_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("public_id", models.UUIDField(null=True, unique=True, verbose_name="public ID")),
                ("store_id", StoreIdField(null=True)),
                ("task", models.CharField(max_length=255, verbose_name="task")),
                ("queue", models.CharField(max_length=100, verbose_name="queue")),
                ("priority", models.SmallIntegerField(verbose_name="priority")),
                ("payload", ReadableJSONField()),
                ("value", ReadableJSONField()),
                ("attempts", models.SmallIntegerField(verbose_name="attempts")),
                ("worker_id", models.BigIntegerField(verbose_name="worker")),
                ("run_at", models.DateTimeField()),
                ("created_at", models.DateTimeField()),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "verbose_name": "job result",
                "verbose_name_plural": "job results",
                "db_table": "salon_jobs_job_result",
                "indexes": [models.Index(fields=["expires_at"], name="salon_jobs_job_result_expires")],
            },
        ),
        migrations.CreateModel(
            name="JobProgress",
            fields=[
                ("job_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("lease", models.BigIntegerField()),
                ("store_id", StoreIdField(null=True)),
                ("done", models.BigIntegerField()),
                ("total", models.BigIntegerField(null=True)),
                ("text", models.CharField(max_length=255)),
                ("updated_at", models.DateTimeField()),
            ],
            options={
                "db_table": "salon_jobs_job_progress",
                "indexes": [models.Index(fields=["updated_at"], name="salon_jobs_job_progress_old")],
            },
        ),
        migrations.CreateModel(
            name="JobStep",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", models.BigIntegerField()),
                ("store_id", StoreIdField(null=True)),
                ("name", models.CharField(max_length=255)),
                ("attempt", models.SmallIntegerField()),
                ("value", ReadableJSONField()),
                ("position", models.BigIntegerField(null=True)),
                ("ended", models.BooleanField()),
                ("started_at", models.DateTimeField()),
                ("committed_at", models.DateTimeField()),
            ],
            options={
                "db_table": "salon_jobs_job_step",
                "constraints": [models.UniqueConstraint(fields=("job_id", "name"), name="salon_jobs_job_step_once")],
            },
        ),
        migrations.CreateModel(
            name="SupersededRun",
            fields=[
                ("job_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("lease", models.BigIntegerField()),
            ],
            options={"db_table": "salon_jobs_superseded"},
        ),
        migrations.CreateModel(
            name="FanOutRecord",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("task", models.CharField(max_length=255, verbose_name="task")),
                ("tick", models.DateTimeField(null=True)),
                ("digest", models.CharField(max_length=64)),
                ("label", models.CharField(db_default="", max_length=255, verbose_name="label")),
                ("inserted", models.IntegerField(db_default=0, verbose_name="inserted")),
                ("kept", models.IntegerField(db_default=0)),
                ("paused", models.IntegerField(db_default=0)),
                ("created_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "verbose_name": "fan-out",
                "verbose_name_plural": "fan-outs",
                "db_table": "salon_jobs_fan_out",
                "indexes": [models.Index(fields=["created_at"], name="salon_jobs_fan_out_created")],
                "constraints": [
                    models.UniqueConstraint(fields=("task", "tick", "digest"), name="salon_jobs_fan_out_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="UniqueMark",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("job_id", models.BigIntegerField(null=True)),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "db_table": "salon_jobs_unique",
                "indexes": [models.Index(fields=["expires_at"], name="salon_jobs_unique_expires")],
            },
        ),
        migrations.CreateModel(
            name="FollowUp",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("remaining", models.IntegerField()),
                ("task", models.CharField(max_length=255)),
                ("store_id", StoreIdField(null=True)),
                ("payload", ReadableJSONField()),
                ("options", models.JSONField()),
                ("follows", models.JSONField(null=True)),
                ("created_at", models.DateTimeField(db_default=Now())),
            ],
            options={"db_table": "salon_jobs_follow_up"},
        ),
        migrations.CreateModel(
            name="FlowRecord",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=255)),
                ("key", models.CharField(max_length=512, null=True)),
                ("store_id", StoreIdField(null=True)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("changed_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "db_table": "salon_jobs_flow",
                "indexes": [models.Index(fields=["changed_at"], name="salon_jobs_flow_changed")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=Q(key__isnull=False),
                        fields=("store_id", "name", "key"),
                        name="salon_jobs_flow_key",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="FlowMember",
            fields=[
                ("job_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("flow_id", models.BigIntegerField()),
                ("store_id", StoreIdField(null=True)),
                ("task", models.CharField(max_length=255)),
                ("condition", models.CharField(max_length=9)),
                ("after", models.JSONField()),
                ("run_at", models.DateTimeField()),
                ("outcome", models.CharField(max_length=9, null=True)),
                ("move", models.CharField(max_length=6, null=True)),
            ],
            options={
                "db_table": "salon_jobs_flow_member",
                "indexes": [
                    models.Index(fields=["flow_id", "job_id"], name="salon_jobs_flow_member_flow"),
                    models.Index(condition=Q(outcome=None), fields=["flow_id"], name="salon_jobs_flow_member_live"),
                    models.Index(
                        condition=Q(move__isnull=False), fields=["job_id"], name="salon_jobs_flow_member_moves"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="FlowEdge",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", models.BigIntegerField()),
                ("after_id", models.BigIntegerField()),
                ("store_id", StoreIdField(null=True)),
                ("late", models.BooleanField(default=False)),
            ],
            options={
                "db_table": "salon_jobs_flow_edge",
                "indexes": [models.Index(fields=["after_id"], name="salon_jobs_flow_edge_after")],
                "constraints": [
                    models.UniqueConstraint(fields=("job_id", "after_id"), name="salon_jobs_flow_edge_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="OrderedKey",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("store_id", StoreIdField(null=True)),
                ("job_id", models.BigIntegerField()),
            ],
            options={
                "db_table": "salon_jobs_ordered_key",
                "indexes": [models.Index(condition=Q(job_id=0), fields=["id"], name="salon_jobs_ordered_key_vacant")],
            },
        ),
        migrations.CreateModel(
            name="OrderedJob",
            fields=[
                ("job_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("key_id", models.UUIDField()),
                ("store_id", StoreIdField(null=True)),
                ("run_at", models.DateTimeField()),
            ],
            options={
                "db_table": "salon_jobs_ordered_job",
                "indexes": [models.Index(fields=["key_id", "job_id"], name="salon_jobs_ordered_job_next")],
            },
        ),
        migrations.CreateModel(
            name="Process",
            fields=[
                ("id", models.BigIntegerField(default=new_process_id, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=16)),
                ("hostname", models.CharField(max_length=255)),
                ("pid", models.IntegerField()),
                ("supervisor_id", models.BigIntegerField(null=True)),
                ("queues", models.JSONField(null=True)),
                ("concurrency", models.IntegerField(db_default=1)),
                ("started_at", models.DateTimeField(db_default=Now())),
                ("heartbeat_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "verbose_name": "process",
                "verbose_name_plural": "processes",
                "db_table": "salon_jobs_process",
                "indexes": [models.Index(fields=["heartbeat_at"], name="salon_jobs_process_beat")],
            },
        ),
        migrations.CreateModel(
            name="Dashboard",
            fields=[],
            options={
                "verbose_name": "dashboard",
                "verbose_name_plural": "dashboard",
                "proxy": True,
                "default_permissions": ("view",),
            },
            bases=("salon_jobs.process",),
        ),
        migrations.CreateModel(
            name="Limit",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[("queue", "Queue"), ("task", "Task"), ("store", "Store"), ("key", "Key")],
                        max_length=8,
                        verbose_name="kind",
                    ),
                ),
                ("name", models.CharField(max_length=512, verbose_name="name")),
                ("paused", models.BooleanField(db_default=False, default=False, verbose_name="paused")),
                ("paused_at", models.DateTimeField(editable=False, null=True)),
                ("paused_by", models.CharField(db_default="", default="", editable=False, max_length=255)),
                ("max_concurrency", models.PositiveIntegerField(blank=True, null=True, verbose_name="max concurrency")),
                ("rate", models.FloatField(blank=True, null=True, verbose_name="rate")),
                ("burst", models.PositiveIntegerField(blank=True, null=True, verbose_name="burst")),
            ],
            options={
                "verbose_name": "limit",
                "verbose_name_plural": "limits",
                "db_table": "salon_jobs_limit",
                "constraints": [
                    models.UniqueConstraint(fields=("kind", "name"), name="salon_jobs_limit_once"),
                    models.CheckConstraint(
                        condition=Q(kind__in=["queue", "task", "store", "key"]), name="salon_jobs_limit_kind"
                    ),
                    models.CheckConstraint(
                        condition=Q(rate__isnull=True) | Q(rate__gt=0, rate__lte=1_000_000),
                        name="salon_jobs_limit_rate",
                    ),
                    models.CheckConstraint(
                        condition=~Q(kind="store") | Q(name__regex=StoreKeyPattern()), name="salon_jobs_limit_store"
                    ),
                    models.CheckConstraint(condition=~Q(burst=0), name="salon_jobs_limit_burst"),
                ],
            },
        ),
        migrations.CreateModel(
            name="RateBucket",
            fields=[
                ("scope", models.CharField(max_length=600, primary_key=True, serialize=False)),
                ("full_at", models.DateTimeField()),
            ],
            options={
                "db_table": "salon_jobs_rate",
                "indexes": [models.Index(fields=["full_at"], name="salon_jobs_rate_full")],
                "constraints": [models.CheckConstraint(condition=finite("full_at"), name="salon_jobs_rate_full_at")],
            },
        ),
        migrations.CreateModel(
            name="CronEntryState",
            fields=[
                ("name", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("registered_at", models.DateTimeField(db_default=Now())),
                ("last_tick_at", models.DateTimeField(null=True)),
                ("paused_at", models.DateTimeField(null=True)),
                ("paused_by", models.CharField(db_default="", max_length=255)),
                ("line", models.CharField(db_default="", max_length=255)),
                ("overridden_at", models.DateTimeField(null=True)),
                ("overridden_by", models.CharField(db_default="", max_length=255)),
            ],
            options={
                "permissions": [
                    ("run_cronentrystate", "Can run cron entries now"),
                    ("pause_cronentrystate", "Can pause and resume cron entries"),
                ],
                "verbose_name": "cron entry",
                "verbose_name_plural": "cron entries",
                "db_table": "salon_jobs_cron_entry",
            },
        ),
        migrations.CreateModel(
            name="CronTick",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("entry", models.CharField(max_length=255, verbose_name="entry")),
                ("tick_at", models.DateTimeField()),
                ("fired_at", models.DateTimeField(db_default=Now())),
                ("job_id", models.BigIntegerField(null=True)),
                ("outcome", models.TextField(db_default="")),
            ],
            options={
                "verbose_name": "cron tick",
                "verbose_name_plural": "cron ticks",
                "db_table": "salon_jobs_cron_tick",
                "indexes": [models.Index(fields=["job_id"], name="salon_jobs_cron_tick_job")],
                "constraints": [models.UniqueConstraint(fields=("entry", "tick_at"), name="salon_jobs_cron_tick_once")],
            },
        ),
        migrations.CreateModel(
            name="TaskMinute",
            fields=[
                ("pk", models.CompositePrimaryKey("minute", "task", "queue", serialize=False)),
                ("minute", models.DateTimeField()),
                ("task", models.CharField(max_length=255)),
                ("queue", models.CharField(max_length=100)),
                ("succeeded", models.IntegerField()),
                ("retried", models.IntegerField()),
                ("failed", models.IntegerField()),
                ("cancelled", models.IntegerField()),
                ("snoozed", models.IntegerField()),
                ("released", models.IntegerField()),
                ("rescued", models.IntegerField()),
                ("duration_s", models.FloatField()),
                ("durations", IntegerArrayField()),
                ("wait_s", models.FloatField()),
                ("waits", IntegerArrayField()),
                ("duration_max_s", models.FloatField(null=True)),
                ("wait_max_s", models.FloatField(null=True)),
            ],
            options={"db_table": "salon_jobs_task_minute"},
        ),
        migrations.CreateModel(
            name="QueueMinute",
            fields=[
                ("pk", models.CompositePrimaryKey("minute", "queue", serialize=False)),
                ("minute", models.DateTimeField()),
                ("queue", models.CharField(max_length=100)),
                ("waiting", models.BigIntegerField()),
                ("due", models.BigIntegerField()),
                ("oldest_due_s", models.FloatField()),
                ("exact", models.BooleanField()),
            ],
            options={"db_table": "salon_jobs_queue_minute"},
        ),
        migrations.CreateModel(
            name="Message",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False, verbose_name="ID")),
                ("message_id", models.UUIDField(verbose_name="message ID")),
                ("aggregate_type", models.CharField(max_length=255, verbose_name="destination")),
                ("aggregate_id", models.CharField(db_default="", max_length=255, verbose_name="aggregate ID")),
                ("event", models.CharField(max_length=255, verbose_name="event")),
                ("payload", JSONTextField()),
                ("headers", JSONTextField(db_default=models.Value({}, JSONTextField()))),
                ("store_id", StoreIdField(null=True)),
                ("producer", models.CharField(db_default="", max_length=255, verbose_name="producer")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "pending"),
                            ("published", "published"),
                            ("failed", "failed"),
                            ("skipped", "skipped"),
                        ],
                        db_default="pending",
                        max_length=16,
                        verbose_name="status",
                    ),
                ),
                ("retry_count", models.SmallIntegerField(db_default=0, verbose_name="failed attempts")),
                ("retry_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("sent_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("last_error", models.TextField(db_default="", verbose_name="last error")),
                ("replay_of", models.UUIDField(null=True, verbose_name="replay of")),
                (
                    "partition",
                    models.GeneratedField(
                        db_persist=True,
                        expression=PartitionOf(output_field=models.SmallIntegerField()),
                        output_field=models.SmallIntegerField(),
                        verbose_name="partition",
                    ),
                ),
            ],
            options={
                "verbose_name": "message",
                "verbose_name_plural": "messages",
                "db_table": "salon_jobs_message",
                "permissions": [
                    ("retry_message", "Can retry messages"),
                    ("skip_message", "Can skip messages"),
                    ("replay_message", "Can send messages again"),
                ],
                "indexes": [
                    models.Index(
                        condition=Q(status="pending"),
                        fields=["aggregate_type", "partition", "id"],
                        name="salon_jobs_message_pending",
                    ),
                    models.Index(
                        condition=Q(status__in=["pending", "failed"]),
                        fields=["aggregate_type", "aggregate_id", "id"],
                        name="salon_jobs_message_open",
                    ),
                    models.Index(
                        condition=Q(status__in=["failed", "skipped"]),
                        fields=["status", "id"],
                        name="salon_jobs_message_ended",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("message_id",), name="salon_jobs_message_once"),
                    models.CheckConstraint(
                        condition=Q(status__in=["pending", "published", "failed", "skipped"]),
                        name="salon_jobs_message_status",
                    ),
                    models.CheckConstraint(
                        condition=Q(
                            aggregate_type__regex="^(arn|rn):[a-z0-9-]*:[a-z][a-z0-9-]*:[a-z0-9-]*:[A-Za-z0-9-]*:[^[:space:]:]+$"
                        ),
                        name="salon_jobs_message_destination",
                    ),
                    models.CheckConstraint(condition=~Q(event=""), name="salon_jobs_message_event"),
                    models.CheckConstraint(
                        condition=(
                            Q(status="pending", sent_at=None, ended_at=None)
                            | Q(status="published", sent_at__isnull=False, ended_at=None)
                            | Q(status__in=["failed", "skipped"], sent_at=None, ended_at__isnull=False)
                        ),
                        name="salon_jobs_message_times",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="BlockedAggregate",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("aggregate_type", models.CharField(max_length=255, verbose_name="destination")),
                ("aggregate_id", models.CharField(db_default="", max_length=255, verbose_name="aggregate ID")),
                ("partition", models.SmallIntegerField()),
                ("head_id", models.BigIntegerField(unique=True)),
                ("store_id", StoreIdField(null=True)),
                (
                    "status",
                    models.CharField(
                        choices=[("waiting", "waiting for a retry"), ("parked", "parked")],
                        max_length=16,
                        verbose_name="status",
                    ),
                ),
                ("retry_count", models.SmallIntegerField(db_default=0, verbose_name="failed attempts")),
                ("retry_at", models.DateTimeField(null=True)),
                ("since", models.DateTimeField(db_default=Now())),
                ("code", models.CharField(db_default="", max_length=64, verbose_name="code")),
                ("error", models.TextField(db_default="", verbose_name="error")),
            ],
            options={
                "verbose_name": "blocked aggregate",
                "verbose_name_plural": "blocked aggregates",
                "db_table": "salon_jobs_blocked_aggregate",
                "indexes": [
                    models.Index(fields=["partition", "retry_at"], name="salon_jobs_blocked_partition"),
                    models.Index(fields=["store_id", "id"], name="salon_jobs_blocked_store"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=Q(("aggregate_id", ""), _negated=True),
                        fields=("aggregate_type", "aggregate_id"),
                        name="salon_jobs_blocked_aggregate_one",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RelayPartition",
            fields=[
                ("partition", models.SmallIntegerField(primary_key=True, serialize=False, verbose_name="partition")),
                ("owner", models.BigIntegerField(null=True)),
                ("epoch", models.BigIntegerField(db_default=0)),
                ("beat", models.BigIntegerField(db_default=0)),
            ],
            options={
                "verbose_name": "relay partition",
                "verbose_name_plural": "relay partitions",
                "db_table": "salon_jobs_partition",
            },
        ),
        migrations.CreateModel(
            name="DestinationState",
            fields=[
                (
                    "aggregate_type",
                    models.CharField(max_length=255, primary_key=True, serialize=False, verbose_name="destination"),
                ),
                ("tokens", models.FloatField(db_default=0.0)),
                ("refilled_at", models.DateTimeField(db_default=Now())),
                ("paused", models.BooleanField(db_default=False)),
                ("paused_at", models.DateTimeField(editable=False, null=True)),
                ("paused_by", models.CharField(db_default="", default="", editable=False, max_length=255)),
                ("outage_since", models.DateTimeField(null=True)),
                ("outage_code", models.CharField(db_default="", max_length=64, verbose_name="outage code")),
                ("outage", models.TextField(db_default="", verbose_name="outage")),
            ],
            options={
                "verbose_name": "destination",
                "verbose_name_plural": "destinations",
                "db_table": "salon_jobs_destination",
                "permissions": [("pause_destinationstate", "Can pause and resume destinations")],
                "constraints": [
                    models.CheckConstraint(condition=finite("refilled_at"), name="salon_jobs_destination_refilled")
                ],
            },
        ),
        migrations.CreateModel(
            name="Replay",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False, verbose_name="ID")),
                ("requested_at", models.DateTimeField(db_default=Now())),
                ("requested_by", models.CharField(max_length=255, verbose_name="requested by")),
                ("reason", models.CharField(db_default="", max_length=1000, verbose_name="reason")),
                ("criteria", models.JSONField(verbose_name="criteria")),
                ("messages", models.IntegerField(verbose_name="messages")),
            ],
            options={"verbose_name": "replay", "verbose_name_plural": "replays", "db_table": "salon_jobs_replay"},
        ),
        migrations.CreateModel(
            name="InboxMessage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False, verbose_name="ID")),
                ("consumer", models.CharField(max_length=100, verbose_name="consumer")),
                ("message_id", models.CharField(max_length=255, verbose_name="message ID")),
                ("event", models.CharField(db_default="", max_length=255, verbose_name="event")),
                ("producer", models.CharField(db_default="", max_length=255, verbose_name="producer")),
                ("store_id", StoreIdField(null=True)),
                ("received_at", models.DateTimeField(db_default=Now())),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("enqueued", "became a job"),
                            ("rejected", "rejected"),
                            ("retry", "to be retried"),
                            ("dismissed", "dismissed"),
                        ],
                        max_length=16,
                        verbose_name="status",
                    ),
                ),
                ("ended_at", models.DateTimeField(null=True)),
                ("job_id", models.BigIntegerField(null=True)),
                ("code", models.CharField(db_default="", max_length=64, verbose_name="code")),
                ("reason", models.TextField(db_default="", verbose_name="reason")),
                ("deliveries", models.IntegerField(db_default=1, verbose_name="deliveries")),
                ("raw", models.TextField(db_default="")),
            ],
            options={
                "verbose_name": "incoming message",
                "verbose_name_plural": "incoming messages",
                "db_table": "salon_jobs_inbox",
                "permissions": [
                    ("retry_inboxmessage", "Can retry incoming messages"),
                    ("dismiss_inboxmessage", "Can dismiss incoming messages"),
                ],
                "indexes": [
                    models.Index(fields=["received_at"], name="salon_jobs_inbox_received"),
                    models.Index(
                        condition=Q(status__in=["rejected", "retry"]),
                        fields=["status", "consumer", "id"],
                        name="salon_jobs_inbox_open",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("consumer", "message_id"), name="salon_jobs_inbox_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("key", models.CharField(max_length=255)),
                ("store_id", StoreIdField(null=True)),
                ("task", models.CharField(max_length=255, verbose_name="task")),
                ("payload", ReadableJSONField()),
                ("line", models.CharField(max_length=255)),
                ("timezone", models.CharField(db_default="UTC", max_length=64)),
                ("every", models.DurationField(null=True)),
                ("anchor_at", models.DateTimeField(db_default=Now())),
                ("catch_up", models.DurationField()),
                ("jitter", models.DurationField()),
                ("overlap", models.BooleanField(db_default=True)),
                ("owed_from", models.DateTimeField(db_default=Now())),
                ("next_at", models.DateTimeField()),
                ("last_tick_at", models.DateTimeField(null=True)),
                ("last_job_id", models.BigIntegerField(null=True)),
                ("ticks", models.BigIntegerField(db_default=0)),
                ("paused_at", models.DateTimeField(null=True)),
                ("paused_by", models.CharField(db_default="", max_length=255)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("changed_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "db_table": "salon_jobs_schedule",
                "permissions": [
                    ("pause_schedule", "Can pause and resume schedules"),
                    ("run_schedule", "Can run schedules now"),
                ],
                "indexes": [
                    models.Index(condition=Q(paused_at=None), fields=["next_at"], name="salon_jobs_schedule_due")
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("store_id", "key"), name="salon_jobs_schedule_key", nulls_distinct=False
                    ),
                    models.CheckConstraint(
                        condition=Q(line="", every__isnull=False) | (~Q(line="") & Q(every=None)),
                        name="salon_jobs_schedule_when",
                    ),
                    models.CheckConstraint(
                        condition=finite("next_at", "anchor_at", "owed_from"), name="salon_jobs_schedule_finite"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ScheduleTick",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("schedule_id", models.BigIntegerField()),
                ("store_id", StoreIdField(null=True)),
                ("number", models.BigIntegerField()),
                ("tick_at", models.DateTimeField()),
                ("fired_at", models.DateTimeField(db_default=Now())),
                ("job_id", models.BigIntegerField(null=True)),
                ("outcome", models.TextField(db_default="")),
                ("by_hand", models.BooleanField(db_default=False)),
                ("run_by", models.CharField(db_default="", max_length=255)),
            ],
            options={
                "db_table": "salon_jobs_schedule_tick",
                "indexes": [
                    models.Index(condition=~Q(job_id=None), fields=["job_id"], name="salon_jobs_schedule_tick_job")
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("schedule_id", "number"), name="salon_jobs_schedule_tick_number")
                ],
            },
        ),
        AddGuard(
            model_name="job",
            trigger=Trigger(
                name="identity_never_changes",
                sql=UpsertTriggerSql(
                    condition="WHEN (OLD.id IS DISTINCT FROM NEW.id OR OLD.task IS DISTINCT FROM NEW.task OR OLD.store_id IS DISTINCT FROM NEW.store_id)",
                    func='RAISE EXCEPTION \'pgtrigger: Cannot update of "id", "task", "store_id" rows from % table\', TG_TABLE_NAME;',
                    hash="612121ed0fbe1e280ae6722f5f6acc5fa50df388",
                    operation='UPDATE OF "id", "task", "store_id"',
                    pgid="pgtrigger_identity_never_changes_e86b5",
                    table="salon_jobs_job",
                    when="BEFORE",
                ),
            ),
        ),
        AddGuard(
            model_name="job",
            trigger=Trigger(
                name="legal_moves_only",
                sql=UpsertTriggerSql(
                    condition="WHEN ((OLD.state = 'succeeded' AND NEW.state <> 'succeeded') OR (OLD.state = 'queued' AND NEW.state IN ('succeeded', 'failed')) OR (OLD.state IN ('failed', 'cancelled') AND NEW.state IN ('running', 'succeeded')) OR (OLD.state = 'cancelled' AND NEW.state = 'failed'))",
                    func="RAISE EXCEPTION 'pgtrigger: Cannot update of \"state\" rows from % table', TG_TABLE_NAME;",
                    hash="2be4ac071327cb7756c8833afc91baf5f21216e2",
                    operation='UPDATE OF "state"',
                    pgid="pgtrigger_legal_moves_only_38cdb",
                    table="salon_jobs_job",
                    when="BEFORE",
                ),
            ),
        ),
        AddGuard(
            model_name="message",
            trigger=Trigger(
                name="content_never_changes",
                sql=UpsertTriggerSql(
                    condition="WHEN (OLD.message_id IS DISTINCT FROM NEW.message_id OR OLD.aggregate_type IS DISTINCT FROM NEW.aggregate_type OR OLD.aggregate_id IS DISTINCT FROM NEW.aggregate_id OR OLD.event IS DISTINCT FROM NEW.event OR OLD.store_id IS DISTINCT FROM NEW.store_id OR OLD.payload::text IS DISTINCT FROM NEW.payload::text OR OLD.headers::text IS DISTINCT FROM NEW.headers::text)",
                    func='RAISE EXCEPTION \'pgtrigger: Cannot update of "message_id", "aggregate_type", "aggregate_id", "event", "payload", "headers", "store_id" rows from % table\', TG_TABLE_NAME;',
                    hash="8e9e2d8f1f43ca43f172269c2e814397c8c22507",
                    operation='UPDATE OF "message_id", "aggregate_type", "aggregate_id", "event", "payload", "headers", "store_id"',
                    pgid="pgtrigger_content_never_changes_0d6fe",
                    table="salon_jobs_message",
                    when="BEFORE",
                ),
            ),
        ),
    ]
