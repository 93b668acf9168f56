"""Stored policy versions as methods: read from a state folder, which is not written to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from policy_store import PolicyStore, StoreError, StoreNotFound, VersionUnknown
from respsd.control.action import OFF, Action
from respsd.control.batch_plan import BatchPlan, planned
from respsd.control.controller import Controller
from respsd.control.loader import PolicyLoader
from respsd.control.observation import ObservationSchema
from respsd.control.router import BASELINE, CHAMPION, NAMED, PolicyRouter
from respsd.control.static import StaticController
from respsd.errors import PolicyRefused, StorageError, UnknownPolicy
from respsd.paths import POLICIES


@dataclass(frozen=True, slots=True)
class StoredPolicies:
    """The versions that the methods of a run name."""

    folder: Path
    versions: Mapping[str, int]
    """By the name that was asked for, a version or an alias."""
    actions: tuple[Action, ...]
    """Every action that one of them may choose."""
    schema: ObservationSchema | None
    """What their observations are built by; None where they are all constant."""

    def router(
        self, schema: ObservationSchema, reserved: Action, temperature: float | None, plan: BatchPlan | None
    ) -> PolicyRouter:
        """A router that knows these versions, by number.

        :param temperature: at which a policy's action is drawn; None takes the most probable one
        :param plan: what the baseline's version does by the number of streams, as in the daemon

        Raises PolicyRefused where one of them cannot serve.
        """
        temperatures = {} if temperature is None else {NAMED: temperature}
        with _store(self.folder) as store:
            loader = PolicyLoader(store, schema, reserved, temperatures)
            controllers = {version: loader.controller(version, NAMED) for version in self.versions.values()}
            baseline = store.aliases().get(BASELINE)
        if baseline in controllers:
            controllers[baseline] = planned(controllers[baseline], plan)

        def load(version: int) -> Controller:
            if version not in controllers:
                raise UnknownPolicy(str(version))
            return controllers[version]

        plain = {arm: StaticController(OFF, None, arm) for arm in (BASELINE, CHAMPION)}
        return PolicyRouter(plain, load, reserved)


def read_policies(state_dir: Path, names: Sequence[str]) -> StoredPolicies:
    """Look up policies by version or alias; raises UnknownPolicy, PolicyRefused or StorageError."""
    folder = state_dir / POLICIES
    versions: dict[str, int] = {}
    actions: list[Action] = []
    schemas: dict[str, ObservationSchema] = {}
    with _store(folder) as store:
        for name in names:
            try:
                manifest = store.load(int(name) if name.isdecimal() else name).manifest
            except VersionUnknown as fault:
                raise UnknownPolicy(name) from fault
            versions[name] = manifest.version
            actions += [Action(*triple) for triple in manifest.action_table]
            if manifest.observation_schema is not None:
                try:
                    schema = ObservationSchema.from_dict(manifest.observation_schema)
                except ValueError as fault:
                    raise PolicyRefused(manifest.version, str(fault)) from fault
                schemas[schema.fingerprint] = schema
                if len(schemas) > 1:
                    other = "it sees other observations than a policy before it; measure them in runs of their own"
                    raise PolicyRefused(manifest.version, other)
    return StoredPolicies(folder, versions, tuple(actions), next(iter(schemas.values()), None))


@contextmanager
def _store(folder: Path) -> Iterator[PolicyStore]:
    try:
        with PolicyStore(folder, read_only=True) as store:
            yield store
    except StoreNotFound as fault:
        raise StorageError(f"{fault}; `respsd serve` makes it, --state-dir says where to look") from fault
    except StoreError as fault:
        raise StorageError(str(fault)) from fault
