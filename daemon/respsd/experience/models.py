"""The experience log's tables: a row per request, a row per window. The same models serve SQLite and PostgreSQL.

Times are integer nanoseconds: `*_at_ns` since the epoch in UTC, `*_ns` durations. A window's decode time is
`draft_ns + verify_ns + other_ns`; its tokens per second are `committed_tokens` over that.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# SQLite fills in only a key that is declared plain INTEGER, which is 64 bits wide there.
_Key = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """Root of the models; every constraint has a name, so that migrations can change it."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ix": "ix_%(table_name)s_%(column_0_name)s",
        }
    )


class RequestRow(Base):
    """One finished request and the machine that served it."""

    __tablename__ = "requests"

    id: Mapped[int] = mapped_column(_Key, primary_key=True)
    request_id: Mapped[str] = mapped_column(String(128), index=True)
    """As in logs and responses; unique among requests in flight, not for ever."""
    created_at_ns: Mapped[int] = mapped_column(BigInteger)
    finished_at_ns: Mapped[int] = mapped_column(BigInteger, index=True)
    prompt_tokens: Mapped[int] = mapped_column(Integer)
    completion_tokens: Mapped[int] = mapped_column(Integer)
    finish_reason: Mapped[str] = mapped_column(String(32))
    temperature: Mapped[float] = mapped_column(Double)
    top_p: Mapped[float] = mapped_column(Double)
    top_k: Mapped[int] = mapped_column(Integer)
    seed: Mapped[int] = mapped_column(BigInteger)
    steps: Mapped[int] = mapped_column(Integer)
    drafted_tokens: Mapped[int] = mapped_column(Integer)
    accepted_tokens: Mapped[int] = mapped_column(Integer)
    queue_ns: Mapped[int] = mapped_column(BigInteger)
    prefill_ns: Mapped[int] = mapped_column(BigInteger)
    decode_ns: Mapped[int] = mapped_column(BigInteger)
    policy_version_first: Mapped[int | None] = mapped_column(BigInteger)
    policy_version_last: Mapped[int | None] = mapped_column(BigInteger)

    host: Mapped[str] = mapped_column(String(255))
    instance_id: Mapped[str] = mapped_column(String(64))
    target: Mapped[str] = mapped_column(String(512))
    drafter: Mapped[str | None] = mapped_column(String(512))
    dtype: Mapped[str] = mapped_column(String(16))
    device: Mapped[str] = mapped_column(String(32))
    engine_config_hash: Mapped[str] = mapped_column(String(64))


class TransitionRow(Base):
    """One window of one request."""

    __tablename__ = "transitions"
    __table_args__ = (
        UniqueConstraint("request_row", "window"),
        # Covers the sums of tokens per second by version: without it they would read every observation.
        Index(
            "ix_transitions_throughput",
            "policy_version",
            "committed_tokens",
            "draft_ns",
            "verify_ns",
            "other_ns",
        ),
        # Covers what updates and retention ask again and again: which requests are explorers'.
        Index("ix_transitions_arm", "arm", "request_row"),
    )

    id: Mapped[int] = mapped_column(_Key, primary_key=True)
    request_row: Mapped[int] = mapped_column(_Key, ForeignKey("requests.id", ondelete="CASCADE"))
    window: Mapped[int] = mapped_column(Integer)
    opened_at_ns: Mapped[int] = mapped_column(BigInteger)

    observation: Mapped[bytes] = mapped_column(LargeBinary)
    """float32, little endian."""
    observation_schema: Mapped[str] = mapped_column(String(64))

    policy_version: Mapped[int | None] = mapped_column(BigInteger)
    arm: Mapped[str] = mapped_column(String(64))
    log_prob: Mapped[float] = mapped_column(Double)
    """Natural log of the exact probability of the drawn action."""
    action_index: Mapped[int | None] = mapped_column(Integer)
    table_fingerprint: Mapped[str | None] = mapped_column(String(64))
    requested_total_tokens: Mapped[int] = mapped_column(Integer)
    requested_depth: Mapped[int] = mapped_column(Integer)
    requested_top_k: Mapped[int] = mapped_column(Integer)
    applied_total_tokens: Mapped[int] = mapped_column(Integer)
    applied_depth: Mapped[int] = mapped_column(Integer)
    applied_top_k: Mapped[int] = mapped_column(Integer)
    degraded_steps: Mapped[int] = mapped_column(Integer)

    steps: Mapped[int] = mapped_column(Integer)
    drafted_tokens: Mapped[int] = mapped_column(Integer)
    accepted_tokens: Mapped[int] = mapped_column(Integer)
    committed_tokens: Mapped[int] = mapped_column(Integer)
    draft_ns: Mapped[int] = mapped_column(BigInteger)
    verify_ns: Mapped[int] = mapped_column(BigInteger)
    other_ns: Mapped[int] = mapped_column(BigInteger)
    context_length: Mapped[int] = mapped_column(Integer)
    batch_size: Mapped[float] = mapped_column(Double)
    truncated: Mapped[bool]
    first_step_tokens: Mapped[int | None] = mapped_column(Integer)
    """None in rows of a release that did not keep it, as the three below."""
    first_step_ns: Mapped[int | None] = mapped_column(BigInteger)
    last_step_tokens: Mapped[int | None] = mapped_column(Integer)
    last_step_ns: Mapped[int | None] = mapped_column(BigInteger)
    block: Mapped[int | None] = mapped_column(BigInteger)
    """Number of the rollout's block that the window was in, in one run of the daemon; None outside a rollout."""


class RolloutRound(Base):
    """One comparison of two policy versions: an evaluation of a candidate, or a round of a holdout."""

    __tablename__ = "rollout_rounds"

    id: Mapped[int] = mapped_column(_Key, primary_key=True)
    started_at_ns: Mapped[int] = mapped_column(BigInteger, index=True)
    ended_at_ns: Mapped[int | None] = mapped_column(BigInteger)
    """None while it runs."""
    kind: Mapped[str] = mapped_column(String(32))
    """candidate, last-good, baseline or off: what the subject is compared as or with."""
    subject_version: Mapped[int | None] = mapped_column(BigInteger)
    control_version: Mapped[int | None] = mapped_column(BigInteger)
    engine_config_hash: Mapped[str] = mapped_column(String(64))
    alpha: Mapped[float] = mapped_column(Double)
    """Error probability that the round may spend on each of its two verdicts."""
    stage: Mapped[int] = mapped_column(Integer)
    """Number of the ramp's stage that was reached; 0 is shadow."""
    verdict: Mapped[str | None] = mapped_column(String(32))
    """How it ended."""


class RolloutPair(Base):
    """One observation of a round: a quad of blocks, reduced to the subject's speed over the control's."""

    __tablename__ = "rollout_pairs"

    id: Mapped[int] = mapped_column(_Key, primary_key=True)
    round_id: Mapped[int] = mapped_column(_Key, ForeignKey("rollout_rounds.id", ondelete="CASCADE"), index=True)
    observed_at_ns: Mapped[int] = mapped_column(BigInteger)
    log_ratio: Mapped[float] = mapped_column(Double)
    """Natural logarithm of tokens per second, subject over control, not clipped."""
    subject_tokens: Mapped[int] = mapped_column(Integer)
    subject_ns: Mapped[int] = mapped_column(BigInteger)
    control_tokens: Mapped[int] = mapped_column(Integer)
    control_ns: Mapped[int] = mapped_column(BigInteger)
    sequences: Mapped[int] = mapped_column(Integer)
    """Sequences that the ratio is a mean over."""
    batch_size: Mapped[float] = mapped_column(Double)
    context_length: Mapped[float] = mapped_column(Double)
