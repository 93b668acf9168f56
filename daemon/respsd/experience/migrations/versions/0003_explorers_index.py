"""An index that finds explorers' windows without reading the observations of all others."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_transitions_arm", "transitions", ["arm", "request_row"])


def downgrade() -> None:
    op.drop_index("ix_transitions_arm", "transitions")
