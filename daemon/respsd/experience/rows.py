"""Records as the values of rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from respsd.experience.records import RequestRecord, TransitionRecord

Values = dict[str, object]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where rows come from: the machine, the daemon's run, and what it served."""

    host: str
    instance_id: str
    """Of one run of one daemon."""
    target: str
    drafter: str | None
    dtype: str
    device: str
    engine_config_hash: str
    """Rows of different settings are not comparable."""


def request_values(record: RequestRecord, origin: Origin) -> Values:
    """Columns of `requests` except its key."""
    return asdict(record) | asdict(origin)


def transition_values(record: TransitionRecord, request_row: int) -> Values:
    """Columns of `transitions` except its key; `request_row` is the key of its request."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    del values["decision"], values["applied"]
    decision, applied = record.decision, record.applied
    return values | {
        "request_row": request_row,
        "policy_version": decision.policy_version,
        "arm": decision.arm,
        "log_prob": decision.log_prob,
        "action_index": decision.action_index,
        "table_fingerprint": decision.table_fingerprint,
        "block": None if decision.block is None else decision.block.number,
        "requested_total_tokens": decision.action.total_tokens,
        "requested_depth": decision.action.depth,
        "requested_top_k": decision.action.top_k,
        "applied_total_tokens": applied.total_tokens,
        "applied_depth": applied.depth,
        "applied_top_k": applied.top_k,
    }
