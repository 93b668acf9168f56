"""The learner's line of descent in the policy store: which versions an update builds on, which rows they have seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from policy_store import PolicyStore, StoredPolicy
from respsd.control.action import Action, ActionTable
from respsd.control.observation import ObservationSchema
from respsd.control.router import LEARNER
from respsd.tuning.experience import Watermark
from respsd.tuning.report import UpdateRefused
from respsd.tuning.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Lineage:
    """The learner and what its manifest says about where it stands."""

    learner: StoredPolicy
    table: ActionTable
    schema: ObservationSchema
    watermark: Watermark
    statistics: Statistics
    versions: tuple[int, ...]
    """The learner and its ancestors, the newest first."""

    @property
    def version(self) -> int:
        """The learner's."""
        return self.learner.manifest.version

    @property
    def hidden_sizes(self) -> tuple[int, ...]:
        """The learner's."""
        architecture = self.learner.manifest.architecture
        assert architecture is not None
        return architecture.hidden_sizes


def training_window(watermark: Watermark, statistics: Statistics, report: Mapping[str, object]) -> dict[str, object]:
    """What a version's manifest keeps for the next update."""
    return {"watermark": asdict(watermark), "windows_seen": statistics.count, "report": dict(report)}


def watermark_of(stored: Mapping[str, object] | None) -> Watermark:
    """Where the rows end that a version and its ancestors were trained on; at the log's start for a first version."""
    mark = (stored or {}).get("watermark")
    if not isinstance(mark, Mapping):
        return Watermark()
    return Watermark(int(mark["request_row"]), int(mark["finished_at_ns"]))


def learner_watermark(store: PolicyStore) -> Watermark:
    """Of the store's learner; at the log's start where there is none. Raises StoreError."""
    version = store.aliases().get(LEARNER)
    return Watermark() if version is None else watermark_of(store.load(version).manifest.training_window)


def read_lineage(store: PolicyStore, generations: int) -> Lineage:
    """The learner and up to `generations` ancestors.

    Raises UpdateRefused where there is no learner that can be trained, StoreError where the store cannot be read.
    """
    version = store.aliases().get(LEARNER)
    if version is None:
        raise UpdateRefused("no_learner", "the policy store has no learner")
    learner = store.load(version)
    manifest = learner.manifest
    if manifest.kind != "resps" or manifest.observation_schema is None:
        raise UpdateRefused("no_learner", f"the learner is version {version}, a constant")
    try:
        schema = ObservationSchema.from_dict(manifest.observation_schema)
    except ValueError as fault:
        raise UpdateRefused("other_observation_schema", str(fault)) from fault
    seen = (manifest.training_window or {}).get("windows_seen")
    return Lineage(
        learner=learner,
        table=ActionTable(tuple(Action(*triple) for triple in manifest.action_table)),
        schema=schema,
        watermark=watermark_of(manifest.training_window),
        statistics=Statistics.of_version(manifest.normaliser, seen if isinstance(seen, int) else 0, schema.width),
        versions=_ancestors(store, learner, generations),
    )


def _ancestors(store: PolicyStore, learner: StoredPolicy, generations: int) -> tuple[int, ...]:
    parents = {each.version: each.parent for each in store.list()}
    line = [learner.manifest.version]
    while len(line) <= generations and (parent := parents.get(line[-1])) is not None:
        line.append(parent)
    return tuple(line)
