"""The whole daemon on damaged files and a full disk: it serves on, says what is wrong, and mends itself."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.daemons import STILL, DaemonProcess, daemon, respsd, tiny_flags

from respsd_client import Client
from respsd_client.status_result import DaemonStatus

pytestmark = pytest.mark.slow
PROMPT = [1, 40, 17, 99]
LONG = 60.0
LEARNING = {**STILL, "RESPSD_EXPLORATION__SHARE": "1", "RESPSD_LEARNING__INTERVAL_SECONDS": "0.3"}


def events(served: DaemonProcess, name: str) -> list[dict[str, object]]:
    documents = (json.loads(line) for line in served.lines if line.startswith("{"))
    return [document for document in documents if document["event"] == name]


def damage(file: Path) -> None:
    """Leave the header, so that it still looks like a database, and overwrite the rest."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(4096)
        opened.write(b"\xff" * (size - 4096))


def until(client: Client, wanted: Callable[[DaemonStatus], object]) -> DaemonStatus:
    """The status once it is as wanted."""
    deadline = time.monotonic() + LONG
    while not wanted(status := client.status()):
        assert time.monotonic() < deadline, status
        time.sleep(0.02)
    return status


def rows(state: Path) -> int:
    with closing(sqlite3.connect(f"file:{state / 'transitions.db'}?mode=ro", uri=True, timeout=30)) as connection:
        return int(connection.execute("SELECT count(*) FROM requests").fetchone()[0])


def test_a_damaged_registry_is_replaced_by_its_backup_and_without_one_built_from_the_folders(tmp_path: Path) -> None:
    registry = tmp_path / "policies" / "registry.db"
    with daemon(tmp_path, *tiny_flags()) as first, Client(f"unix:{tmp_path}/respsd.sock") as client:
        client.promote_policy("eagle3", reason="before the backup")
        respsd("db", "backup", "--state-dir", str(tmp_path))
        after = client.import_policy(client.export_policy("learner")).entries[0].to_version
        assert client.status().notices == ()
        assert first.stop() == 0

    damage(registry)
    with daemon(tmp_path, *tiny_flags()) as second, Client(f"unix:{tmp_path}/respsd.sock") as client:
        (notice,) = client.status().notices
        assert "backup registry-" in notice
        (said,) = events(second, "registry_restored")
        assert Path(str(said["set_aside"])).exists()
        assert client.status().policies["champion"] == 3
        assert client.generate(PROMPT, max_new_tokens=5, ignore_eos=True).policy_version_first == 3
        assert [each.version for each in client.list_policies()] == [1, 2, 3, after]
        assert any(each.event == "restore" and each.reason == notice for each in client.policy_history())
        assert "put right" in respsd("status", "--address", second.address)
        assert second.stop() == 0

    damage(registry)
    for backup in (tmp_path / "backups").glob("registry-*"):
        backup.unlink()
    with daemon(tmp_path, *tiny_flags()) as third, Client(f"unix:{tmp_path}/respsd.sock") as client:
        assert "built again from the version folders" in client.status().notices[0]
        serving = client.status().policies
        assert (serving["champion"], serving["baseline"], serving["learner"]) == (1, 1, after)
        assert client.generate(PROMPT, max_new_tokens=5, ignore_eos=True).policy_version_first == 1
        assert [each.version for each in client.list_policies()] == [1, 2, 3, after]
        assert all(client.get_policy(version).fault is None for version in (1, 2, 3, after))
        assert third.stop() == 0


def test_a_log_that_is_damaged_while_it_serves_is_set_aside_and_begun_anew(tmp_path: Path) -> None:
    with daemon(tmp_path, *tiny_flags(), environment=LEARNING) as served, Client(served.address) as client:
        expected = client.generate(PROMPT, max_new_tokens=60, ignore_eos=True).token_ids
        until(client, lambda status: status.learning_paused is None)
        while rows(tmp_path) == 0:
            time.sleep(0.02)
        with client.stream(PROMPT, max_new_tokens=60, ignore_eos=True) as stream:
            tokens = list(next(stream).token_ids)
            damage(tmp_path / "transitions.db")
            tokens += [token for chunk in stream for token in chunk.token_ids]
        assert tuple(tokens) == expected
        status = until(client, lambda status: status.notices and status.learning_paused is None)
        assert "damaged experience log was set aside" in status.notices[0]
        assert client.generate(PROMPT, max_new_tokens=60, ignore_eos=True).token_ids == expected
        while rows(tmp_path) < 1:
            time.sleep(0.02)
        assert served.stop() == 0
    assert events(served, "experience_log_degraded")
    assert events(served, "experience_log_recovered")
    checked = json.loads(respsd("db", "check", "--state-dir", str(tmp_path), "-o", "json"))
    assert len(checked["set_aside"]) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("only root may mount a file system")
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Leave not a byte."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 18, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


def test_on_a_full_disk_it_serves_on_says_why_it_does_not_learn_and_goes_on_once_there_is_room(
    small_disk: Path,
) -> None:
    with daemon(small_disk, *tiny_flags(), environment=LEARNING) as served, Client(served.address) as client:
        expected = client.generate(PROMPT, max_new_tokens=60, ignore_eos=True).token_ids
        until(client, lambda status: status.learning_paused is None)
        ballast = fill(small_disk)
        asked = 1
        status = client.status()
        while status.learning_paused is None:  # until the write-ahead log's own pages are used up
            assert client.generate(PROMPT, max_new_tokens=60, ignore_eos=True).token_ids == expected
            asked, status = asked + 1, client.status()
        assert "the experience log cannot be written" in status.learning_paused
        assert "full" in status.learning_paused
        assert status.healthy
        assert "paused: the experience log cannot be written" in respsd("status", "--address", served.address)
        with Client(f"unix:{small_disk}/respsd.sock") as admin:
            admin.promote_policy("eagle3", dry_run=True)
        assert client.generate(PROMPT, max_new_tokens=60, ignore_eos=True).token_ids == expected
        ballast.unlink()
        until(client, lambda status: status.learning_paused is None)
        while rows(small_disk) < asked + 1:  # nothing was lost meanwhile: it waited in memory
            time.sleep(0.02)
        assert served.stop() == 0
    assert events(served, "experience_log_recovered")
