"""Changes made on the files where no daemon runs: the same operator, with nothing that serves behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import typer

from policy_store import PolicyStore, StoredPolicy, StoreError, StoreInService, StoreNotFound
from policy_store.presence import out_of_service
from respsd.cli.exit_codes import ExitCode
from respsd.cli.output import print_message
from respsd.clock import SystemClock
from respsd.control.action import Action, ActionTable
from respsd.control.controller import Controller
from respsd.control.loader import PolicyLoader
from respsd.control.observation import ObservationSchema
from respsd.control.operator import PolicyOperator
from respsd.errors import ChangeRefused, PolicyRefused, StorageError
from respsd.paths import is_file
from respsd.telemetry.logging import configure_logging


@contextmanager
def operator_on_files(path: Path) -> Iterator[PolicyOperator]:
    """The operator of the store at a path, which it keeps daemons from starting on meanwhile."""
    configure_logging("warning", "auto")  # the command itself says what it changed
    try:
        if not is_file(path / "registry.db"):
            raise StoreNotFound(path)
        with out_of_service(path), PolicyStore(path) as store:
            yield PolicyOperator(store, StoredLoader(store), NoRouter(), SystemClock())
    except StoreNotFound as fault:
        print_message(f"{fault}; --state-dir says where to look")
        raise typer.Exit(ExitCode.NOT_FOUND) from fault
    except StoreInService as fault:
        raise ChangeRefused(f"{fault}; leave out --offline and let it make the change") from fault
    except StoreError as fault:
        raise StorageError(str(fault)) from fault


class StoredLoader:
    """Loads versions for no engine in particular: checks files, hash and golden input, not an engine's needs."""

    def __init__(self, store: PolicyStore) -> None:
        self._store = store

    def controller(self, version: int, arm: str) -> Controller:
        """The controller of a stored version; raises UnknownPolicy or PolicyRefused."""
        try:
            policy = self._store.load(version)
        except StoreError as fault:
            raise PolicyRefused(version, str(fault)) from fault
        return self._loader(policy).controller(version, arm)

    def admit(self, policy: StoredPolicy, arm: str) -> Controller:
        """The controller of a version that need not be stored yet; raises PolicyRefused."""
        return self._loader(policy).admit(policy, arm)

    def _loader(self, policy: StoredPolicy) -> PolicyLoader:
        manifest = policy.manifest
        try:
            stored = manifest.observation_schema
            schema = ObservationSchema(feature_width=3) if stored is None else ObservationSchema.from_dict(stored)
        except ValueError as fault:
            raise PolicyRefused(manifest.version, str(fault)) from fault
        largest = ActionTable(tuple(Action(*triple) for triple in manifest.action_table)).largest
        return PolicyLoader(self._store, schema, largest, {})


class NoRouter:
    """Where no daemon runs, nothing serves."""

    def swap(self, alias: str, controller: Controller) -> None:
        """Nothing to swap."""

    def forget(self, alias: str) -> None:
        """Nothing to forget."""

    def forget_named(self) -> None:
        """Nothing to forget."""

    def serving(self) -> Mapping[str, int | None]:
        """No alias."""
        return {}
