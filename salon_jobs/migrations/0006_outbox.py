"""Add the outbox and the inbox: tables, functions, the gate's trigger, and access rights."""

from typing import ClassVar

import django.db.models.functions.datetime
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import salon_jobs.models.fields
import salon_jobs.models.message
from salon_jobs.access.operations import InstallFunction, InstallGate, LocksBriefly, ProtectTables, SetStorageParameters


class Migration(LocksBriefly):
    """Changes no existing table."""

    dependencies: ClassVar = [("salon_jobs", "0005_task_minute")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="DestinationState",
            fields=[
                ("aggregate_type", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("tokens", models.FloatField(db_default=0.0)),
                ("refilled_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("paused", models.BooleanField(db_default=False)),
                ("outage_since", models.DateTimeField(null=True)),
                ("outage_code", models.CharField(db_default="", max_length=64)),
                ("outage", models.TextField(db_default="")),
            ],
            options={
                "verbose_name": "destination",
                "permissions": [("pause_destinationstate", "Can pause and resume destinations")],
                "db_table": "salon_jobs_destination",
            },
        ),
        migrations.CreateModel(
            name="RelayPartition",
            fields=[
                ("partition", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("owner", models.BigIntegerField(help_text="The process that relays it", null=True)),
                ("epoch", models.BigIntegerField(db_default=0)),
                ("beat", models.BigIntegerField(db_default=0)),
            ],
            options={"db_table": "salon_jobs_partition"},
        ),
        migrations.CreateModel(
            name="Replay",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("requested_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("requested_by", models.CharField(max_length=255)),
                ("reason", models.CharField(db_default="", max_length=1000)),
                ("criteria", models.JSONField()),
                ("messages", models.IntegerField()),
            ],
            options={"db_table": "salon_jobs_replay"},
        ),
        migrations.CreateModel(
            name="BlockedAggregate",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("aggregate_type", models.CharField(max_length=255)),
                ("aggregate_id", models.CharField(db_default="", max_length=255)),
                ("partition", models.SmallIntegerField()),
                ("head_id", models.BigIntegerField(help_text="The message that holds the others", unique=True)),
                ("store_id", models.UUIDField(null=True)),
                (
                    "status",
                    models.CharField(choices=[("waiting", "waiting for a retry"), ("parked", "parked")], max_length=16),
                ),
                ("retry_count", models.SmallIntegerField(db_default=0)),
                ("retry_at", models.DateTimeField(null=True)),
                ("since", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("code", models.CharField(db_default="", max_length=64)),
                ("error", models.TextField(db_default="")),
            ],
            options={
                "db_table": "salon_jobs_blocked_aggregate",
                "indexes": [
                    models.Index(fields=["partition", "retry_at"], name="salon_jobs_blocked_partition"),
                    models.Index(fields=["store_id", "id"], name="salon_jobs_blocked_store"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("aggregate_id", ""), _negated=True),
                        fields=("aggregate_type", "aggregate_id"),
                        name="salon_jobs_blocked_aggregate_one",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="InboxMessage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("consumer", models.CharField(max_length=100)),
                ("message_id", models.CharField(max_length=255)),
                ("event", models.CharField(db_default="", max_length=255)),
                ("producer", models.CharField(db_default="", max_length=255)),
                ("store_id", models.UUIDField(null=True)),
                ("received_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("enqueued", "became a job"),
                            ("rejected", "set aside"),
                            ("retry", "to be tried again"),
                            ("dismissed", "dismissed by an operator"),
                        ],
                        max_length=16,
                    ),
                ),
                ("job_id", models.BigIntegerField(null=True)),
                ("code", models.CharField(db_default="", help_text="Why it was set aside", max_length=64)),
                ("reason", models.TextField(db_default="")),
                ("deliveries", models.IntegerField(db_default=1)),
                (
                    "raw",
                    models.TextField(
                        db_default="", help_text="What was set aside: its envelope, or what came and was none"
                    ),
                ),
            ],
            options={
                "permissions": [
                    ("retry_inboxmessage", "Can retry incoming messages"),
                    ("dismiss_inboxmessage", "Can dismiss incoming messages"),
                ],
                "verbose_name": "incoming message",
                "db_table": "salon_jobs_inbox",
                "indexes": [
                    models.Index(fields=["received_at"], name="salon_jobs_inbox_received"),
                    models.Index(
                        condition=models.Q(("status__in", ["rejected", "retry"])),
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
            name="Message",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "message_id",
                    models.UUIDField(help_text="Fixed when it is written; what brokers and consumers know it by"),
                ),
                ("aggregate_type", models.CharField(help_text="Where it goes: an ARN or RN", max_length=255)),
                (
                    "aggregate_id",
                    models.CharField(db_default="", help_text="Messages of one are kept in order", max_length=255),
                ),
                ("event", models.CharField(max_length=255)),
                ("payload", salon_jobs.models.fields.JSONTextField()),
                (
                    "headers",
                    salon_jobs.models.fields.JSONTextField(
                        db_default=models.Value({}, salon_jobs.models.fields.JSONTextField())
                    ),
                ),
                ("store_id", models.UUIDField(null=True)),
                ("producer", models.CharField(db_default="", max_length=255)),
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
                    ),
                ),
                ("retry_count", models.SmallIntegerField(db_default=0)),
                ("retry_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("sent_at", models.DateTimeField(help_text="When it was published, failed or skipped", null=True)),
                ("last_error", models.TextField(db_default="")),
                (
                    "replay_of",
                    models.UUIDField(help_text="The message that was sent again on purpose by this one", null=True),
                ),
                (
                    "partition",
                    models.GeneratedField(
                        db_persist=True,
                        expression=salon_jobs.models.message.PartitionOf(output_field=models.SmallIntegerField()),
                        output_field=models.SmallIntegerField(),
                    ),
                ),
            ],
            options={
                "verbose_name": "message",
                "db_table": "salon_jobs_message",
                "permissions": [
                    ("retry_message", "Can retry messages"),
                    ("skip_message", "Can skip messages"),
                    ("replay_message", "Can send messages again"),
                ],
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "pending")),
                        fields=["aggregate_type", "partition", "id"],
                        name="salon_jobs_message_pending",
                    ),
                    models.Index(
                        condition=models.Q(("status__in", ["pending", "failed"])),
                        fields=["aggregate_type", "aggregate_id", "id"],
                        name="salon_jobs_message_open",
                    ),
                    models.Index(
                        condition=models.Q(("status__in", ["failed", "skipped"])),
                        fields=["status", "id"],
                        name="salon_jobs_message_ended",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("message_id",), name="salon_jobs_message_known"),
                    models.CheckConstraint(
                        condition=models.Q(("status__in", ["pending", "published", "failed", "skipped"])),
                        name="salon_jobs_message_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "aggregate_type__regex",
                                "^(arn|rn):[a-z0-9-]*:[a-z][a-z0-9-]*:[a-z0-9-]*:[A-Za-z0-9-]*:[^[:space:]:]+$",
                            )
                        ),
                        name="salon_jobs_message_destination",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("event", ""), _negated=True), name="salon_jobs_message_event"
                    ),
                ],
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="message",
            trigger=pgtrigger.compiler.Trigger(
                name="content_never_changes",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    condition="WHEN ((OLD.message_id, OLD.aggregate_type, OLD.aggregate_id, OLD.event, OLD.store_id, OLD.payload::text, OLD.headers::text) IS DISTINCT FROM (NEW.message_id, NEW.aggregate_type, NEW.aggregate_id, NEW.event, NEW.store_id, NEW.payload::text, NEW.headers::text))",
                    func='RAISE EXCEPTION \'pgtrigger: Cannot update of "message_id", "aggregate_type", "aggregate_id", "event", "payload", "headers", "store_id" rows from % table\', TG_TABLE_NAME;',
                    hash="185b3fa32f48bd907a6fb94bb10a249ef93be2d8",
                    operation='UPDATE OF "message_id", "aggregate_type", "aggregate_id", "event", "payload", "headers", "store_id"',
                    pgid="pgtrigger_content_never_changes_0d6fe",
                    table="salon_jobs_message",
                    when="BEFORE",
                ),
            ),
        ),
        ProtectTables(
            "salon_jobs_message",
            "salon_jobs_blocked_aggregate",
            "salon_jobs_partition",
            "salon_jobs_destination",
            "salon_jobs_inbox",
            "salon_jobs_replay",
        ),
        InstallFunction("salon_jobs_emit"),
        InstallFunction("salon_jobs_emit_many"),
        InstallFunction("salon_jobs_gate"),
        InstallFunction("salon_jobs_skip_messages", file="skip_messages_function_0006"),
        InstallGate(),
        # A message is two row versions within milliseconds: written, published. See 0005 for the job table.
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
        # One row per partition, updated every few seconds.
        SetStorageParameters("salon_jobs_partition", {"fillfactor": 50}),
        SetStorageParameters("salon_jobs_destination", {"fillfactor": 50}),
    ]
