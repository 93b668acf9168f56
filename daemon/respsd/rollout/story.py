"""A version's story from the audit log, told in sentences with the figures that decided it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from policy_store import AuditEntry


def tell(version: int, entries: Iterable[AuditEntry]) -> list[str]:
    """One sentence a change that concerns the version, oldest first."""
    return [f"{_moment(entry.at)}: {_sentence(version, entry)}" for entry in entries]


def _moment(at: str) -> str:
    return at[:19].replace("T", " ") + " UTC"


def _sentence(version: int, entry: AuditEntry) -> str:
    what = _what(version, entry)
    why = f" Reason: {entry.reason}." if entry.reason else ""
    return f"{what}, by {entry.actor}.{why}{_numbers(entry.figures or {})}"


def _what(version: int, entry: AuditEntry) -> str:
    match entry.event:
        case "create" | "import" | "adopt":
            return f"version {version} was stored"
        case "quarantine":
            return f"version {version} was quarantined and never serves again"
        case "promote" if entry.to_version == version:
            return f"version {version} became the champion{_before(entry.from_version)}"
        case "rollback" if entry.to_version == version:
            return f"version {version} became the champion again{_before(entry.from_version)}"
        case "promote" | "rollback":
            return f"version {version} ceased to be the champion; version {entry.to_version} is"
        case "alias" if entry.to_version == version:
            return f"version {version} became {entry.alias}"
        case "alias":
            return f"version {version} ceased to be {entry.alias}"
    return f"{entry.event} of version {version}"


def _before(version: int | None) -> str:
    return "" if version is None else f" in place of version {version}"


def _numbers(figures: Mapping[str, object]) -> str:
    """The evidence of a rollout's decision; nothing where an entry has none."""
    if not {"pairs", "mean", "lower", "upper", "alpha"} <= figures.keys():
        return ""
    guard = f" The guard {figures['guard']} stopped it." if "guard" in figures else ""
    mean, lower, upper = (_percent(figures[name]) for name in ("mean", "lower", "upper"))
    told = (
        f" Measured: {mean} in speed against version {figures.get('control')}, between {lower} and {upper} at an error"
        f" probability of {figures['alpha']:.2g} a side, over {figures['pairs']} pairs; margin {figures.get('margin')}."
    )
    workload = figures.get("workload")
    if isinstance(workload, Mapping) and workload.get("subject_tokens"):
        told += (
            f" Workload: {workload['subject_tokens_per_second']:.1f} against"
            f" {workload['control_tokens_per_second']:.1f} tokens/s over"
            f" {workload['subject_tokens']} and {workload['control_tokens']} tokens,"
            f" {workload['batch_size']:.1f} sequences a step, {workload['context_length']:.0f} tokens of context."
        )
    return guard + told


def _percent(share: object) -> str:
    return f"{share:+.1%}".replace("%", " %") if isinstance(share, float) else str(share)
