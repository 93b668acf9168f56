"""What a rollout needs: each window's first and last step, its block, and the evidence of comparisons."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_NEW_COLUMNS = (
    ("first_step_tokens", sa.Integer),
    ("first_step_ns", sa.BigInteger),
    ("last_step_tokens", sa.Integer),
    ("last_step_ns", sa.BigInteger),
    ("block", sa.BigInteger),
)


def upgrade() -> None:
    for name, kind in _NEW_COLUMNS:
        op.add_column("transitions", sa.Column(name, kind, nullable=True))
    op.create_table(
        "rollout_rounds",
        sa.Column("id", _key, nullable=False),
        sa.Column("started_at_ns", sa.BigInteger, nullable=False),
        sa.Column("ended_at_ns", sa.BigInteger, nullable=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("subject_version", sa.BigInteger, nullable=True),
        sa.Column("control_version", sa.BigInteger, nullable=True),
        sa.Column("engine_config_hash", sa.String(64), nullable=False),
        sa.Column("alpha", sa.Double, nullable=False),
        sa.Column("stage", sa.Integer, nullable=False),
        sa.Column("verdict", sa.String(32), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_rollout_rounds"),
    )
    op.create_index("ix_rollout_rounds_started_at_ns", "rollout_rounds", ["started_at_ns"])
    op.create_table(
        "rollout_pairs",
        sa.Column("id", _key, nullable=False),
        sa.Column("round_id", _key, nullable=False),
        sa.Column("observed_at_ns", sa.BigInteger, nullable=False),
        sa.Column("log_ratio", sa.Double, nullable=False),
        sa.Column("subject_tokens", sa.Integer, nullable=False),
        sa.Column("subject_ns", sa.BigInteger, nullable=False),
        sa.Column("control_tokens", sa.Integer, nullable=False),
        sa.Column("control_ns", sa.BigInteger, nullable=False),
        sa.Column("sequences", sa.Integer, nullable=False),
        sa.Column("batch_size", sa.Double, nullable=False),
        sa.Column("context_length", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(
            ["round_id"], ["rollout_rounds.id"], name="fk_rollout_pairs_round_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_rollout_pairs"),
    )
    op.create_index("ix_rollout_pairs_round_id", "rollout_pairs", ["round_id"])


def downgrade() -> None:
    op.drop_table("rollout_pairs")
    op.drop_table("rollout_rounds")
    for name, _ in reversed(_NEW_COLUMNS):
        op.drop_column("transitions", name)
