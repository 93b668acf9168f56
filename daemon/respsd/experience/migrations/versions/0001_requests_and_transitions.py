"""The first tables: requests and transitions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_key = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "requests",
        sa.Column("id", _key, nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("created_at_ns", sa.BigInteger, nullable=False),
        sa.Column("finished_at_ns", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("finish_reason", sa.String(32), nullable=False),
        sa.Column("temperature", sa.Double, nullable=False),
        sa.Column("top_p", sa.Double, nullable=False),
        sa.Column("top_k", sa.Integer, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("steps", sa.Integer, nullable=False),
        sa.Column("drafted_tokens", sa.Integer, nullable=False),
        sa.Column("accepted_tokens", sa.Integer, nullable=False),
        sa.Column("queue_ns", sa.BigInteger, nullable=False),
        sa.Column("prefill_ns", sa.BigInteger, nullable=False),
        sa.Column("decode_ns", sa.BigInteger, nullable=False),
        sa.Column("policy_version_first", sa.BigInteger, nullable=True),
        sa.Column("policy_version_last", sa.BigInteger, nullable=True),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("instance_id", sa.String(64), nullable=False),
        sa.Column("target", sa.String(512), nullable=False),
        sa.Column("drafter", sa.String(512), nullable=True),
        sa.Column("dtype", sa.String(16), nullable=False),
        sa.Column("device", sa.String(32), nullable=False),
        sa.Column("engine_config_hash", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_requests"),
    )
    op.create_index("ix_requests_request_id", "requests", ["request_id"])
    op.create_index("ix_requests_finished_at_ns", "requests", ["finished_at_ns"])
    op.create_table(
        "transitions",
        sa.Column("id", _key, nullable=False),
        sa.Column("request_row", _key, nullable=False),
        sa.Column("window", sa.Integer, nullable=False),
        sa.Column("opened_at_ns", sa.BigInteger, nullable=False),
        sa.Column("observation", sa.LargeBinary, nullable=False),
        sa.Column("observation_schema", sa.String(64), nullable=False),
        sa.Column("policy_version", sa.BigInteger, nullable=True),
        sa.Column("arm", sa.String(64), nullable=False),
        sa.Column("log_prob", sa.Double, nullable=False),
        sa.Column("action_index", sa.Integer, nullable=True),
        sa.Column("table_fingerprint", sa.String(64), nullable=True),
        sa.Column("requested_total_tokens", sa.Integer, nullable=False),
        sa.Column("requested_depth", sa.Integer, nullable=False),
        sa.Column("requested_top_k", sa.Integer, nullable=False),
        sa.Column("applied_total_tokens", sa.Integer, nullable=False),
        sa.Column("applied_depth", sa.Integer, nullable=False),
        sa.Column("applied_top_k", sa.Integer, nullable=False),
        sa.Column("degraded_steps", sa.Integer, nullable=False),
        sa.Column("steps", sa.Integer, nullable=False),
        sa.Column("drafted_tokens", sa.Integer, nullable=False),
        sa.Column("accepted_tokens", sa.Integer, nullable=False),
        sa.Column("committed_tokens", sa.Integer, nullable=False),
        sa.Column("draft_ns", sa.BigInteger, nullable=False),
        sa.Column("verify_ns", sa.BigInteger, nullable=False),
        sa.Column("other_ns", sa.BigInteger, nullable=False),
        sa.Column("context_length", sa.Integer, nullable=False),
        sa.Column("batch_size", sa.Double, nullable=False),
        sa.Column("truncated", sa.Boolean, nullable=False),
        sa.ForeignKeyConstraint(
            ["request_row"], ["requests.id"], name="fk_transitions_request_row", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_transitions"),
        sa.UniqueConstraint("request_row", "window", name="uq_transitions_request_row"),
    )
    op.create_index(
        "ix_transitions_throughput",
        "transitions",
        ["policy_version", "committed_tokens", "draft_ns", "verify_ns", "other_ns"],
    )


def downgrade() -> None:
    op.drop_table("transitions")
    op.drop_table("requests")
