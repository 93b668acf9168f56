from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from policy_store import PolicyStore
from respsd.control.action import Action
from respsd.control.catalog import PolicyCatalog, PolicySummary
from respsd.control.manifests import static_manifest
from respsd.errors import StorageError


def test_versions_are_listed_without_speeds_where_there_is_no_log(store: PolicyStore, tmp_path: Path) -> None:
    store.create(static_manifest(Action(16, 4, 4), code_version="0", note=""), actor="test")
    store.set_alias("baseline", 1, actor="test", reason="")
    complaints: list[str] = []
    assert PolicyCatalog(store, tmp_path / "transitions.db", complaints.append).list_policies() == [
        PolicySummary(
            version=1,
            aliases=("baseline",),
            state="good",
            created=datetime(2026, 11, 30, 12, 0, tzinfo=UTC),
            kind="static",
            action=Action(16, 4, 4),
        )
    ]
    assert complaints == []


def test_a_log_that_cannot_be_read_leaves_the_speeds_unknown_and_is_reported(
    store: PolicyStore, tmp_path: Path
) -> None:
    store.create(static_manifest(Action(16, 4, 4), code_version="0", note=""), actor="test")
    log = tmp_path / "transitions.db"
    log.write_bytes(b"no database" * 500)
    complaints: list[str] = []
    (version,) = PolicyCatalog(store, log, complaints.append).list_policies()
    assert version.tokens_per_second is None
    assert "not a database" in complaints[0]


def test_a_store_that_cannot_be_read_is_a_storage_error(store: PolicyStore, tmp_path: Path) -> None:
    store.close()
    for file in store.path.glob("registry.db*"):
        file.unlink()
    with pytest.raises(StorageError):
        PolicyCatalog(store, tmp_path / "transitions.db").list_policies()
