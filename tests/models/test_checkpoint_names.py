from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from respsd.errors import CheckpointError
from respsd.models import hub
from respsd.models.target import resolve_checkpoint


class FakeHub:
    """Holds one repository's files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, files: Sequence[str]) -> None:
        self.folder, self.files = folder, files
        self.asked: list[tuple[str, str | None]] = []
        self.cached: Path | None = None
        self.fault: str | None = None
        monkeypatch.setattr(hub, "download", self.download)
        monkeypatch.setattr(hub, "cached_snapshot", lambda repo, revision: self.cached)

    def download(self, repo: str, revision: str | None, patterns: Sequence[str]) -> Path:
        self.asked.append((repo, revision))
        if self.fault:
            raise ConnectionError(self.fault)
        for name in self.files:
            if any(Path(name).match(pattern) for pattern in patterns):
                (self.folder / name).touch()
        return self.folder


def checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_a_folder_is_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "owner" / "model")
    assert resolve_checkpoint(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert resolve_checkpoint("owner/model") == Path("owner/model")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_checkpoint("~/owner/model") == folder


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        resolve_checkpoint(str(tmp_path))


@pytest.mark.parametrize("name", ["/no/such/folder", "./model", "a/b/c", "", "owner/model@"])
def test_what_is_neither_folder_nor_hub_id_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "download", pytest.fail)
    with pytest.raises(CheckpointError, match=r"no such folder.*OWNER/MODEL|no config\.json"):
        resolve_checkpoint(name)


def test_a_hub_id_may_pin_its_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeHub(monkeypatch, tmp_path, ["config.json", "model.safetensors"])
    assert resolve_checkpoint("owner/model-1.0") == tmp_path
    assert resolve_checkpoint("owner/model-1.0@0123abc") == tmp_path
    assert fake.asked == [("owner/model-1.0", None), ("owner/model-1.0", "0123abc")]


def test_pickled_weights_are_fetched_only_where_there_are_no_safetensors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "both").mkdir()
    FakeHub(monkeypatch, tmp_path / "both", ["config.json", "model.safetensors", "pytorch_model.bin"])
    assert not (resolve_checkpoint("owner/both") / "pytorch_model.bin").exists()
    (tmp_path / "old").mkdir()
    FakeHub(monkeypatch, tmp_path / "old", ["config.json", "pytorch_model.bin"])
    assert (resolve_checkpoint("owner/old") / "pytorch_model.bin").exists()


def test_without_the_hub_an_earlier_download_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeHub(monkeypatch, tmp_path, [])
    fake.fault = "ConnectError: no route"
    with pytest.raises(CheckpointError, match=r"owner/model: .*no route.*name its folder"):
        resolve_checkpoint("owner/model")
    fake.cached = tmp_path
    assert resolve_checkpoint("owner/model") == tmp_path
