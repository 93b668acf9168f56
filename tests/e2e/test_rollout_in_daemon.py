"""A candidate under rollout in the real daemon: it serves some windows, and no token changes."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from support.daemons import STILL, daemon, respsd, tiny_flags

from policy_store import PolicyStore
from respsd.control.action import Action
from respsd.control.manifests import static_manifest
from respsd.paths import TRANSITIONS
from respsd_client import Client, GenerateResult, ServiceError

pytestmark = pytest.mark.slow
PROMPTS = [[1, 40 + number, 17, 99] for number in range(6)]
ROLLOUT = {
    **STILL,
    "RESPSD_ROLLOUT__ENABLED": "true",
    "RESPSD_ROLLOUT__SHADOW_WINDOWS": "1",
    "RESPSD_ROLLOUT__MIN_PAIRS": "1000",  # no verdict, and no guard: how fast it is here is not what is tested
    "RESPSD_ROLLOUT__STEP_TIME_FACTOR": "1e6",
    "RESPSD_ROLLOUT__POLICY_MILLISECONDS": "1e6",
}


def _constant(folder: Path, action: Action) -> bytes:
    """A policy that always takes `action`, as another store exported it."""
    with PolicyStore(folder) as other:
        version = other.create(static_manifest(action, code_version="test", note="a trial"), actor="test")
        return other.export(version)


def _policy(state_dir: Path, *arguments: str) -> str:
    return respsd("policy", *arguments, "--state-dir", str(state_dir))


def _arms(state_dir: Path) -> set[str]:
    with closing(sqlite3.connect(f"file:{state_dir / TRANSITIONS}?mode=ro", uri=True)) as log:
        return {arm for (arm,) in log.execute("SELECT DISTINCT arm FROM transitions")}


def _tried(client: Client) -> list[str]:
    """What the status says of the candidate."""
    return [line for line in client.status().rollout if line.startswith("candidate")]


def test_a_nominated_candidate_is_tried_gone_on_with_after_a_restart_and_forgotten_once_withdrawn(
    tmp_path: Path,
) -> None:
    plain: list[GenerateResult] = []
    version = 0
    for start in range(2):
        with (
            daemon(tmp_path, *tiny_flags(), environment=ROLLOUT) as running,
            Client(f"unix:{tmp_path}/respsd.sock") as client,
        ):
            if start == 0:
                options = {"action": "off", "max_new_tokens": 180, "ignore_eos": True}
                plain = [client.generate(prompt, **options) for prompt in PROMPTS]
                (imported,) = client.import_policy(_constant(tmp_path / "elsewhere", Action(8, 2, 3))).entries
                version = imported.to_version
                said = _policy(tmp_path, "nominate", str(version), "--reason", "to be tried")
                assert said.startswith(f"candidate none -> {version}  (audit ")
            while not _tried(client):  # the rollout hears of a nomination, or of one before its start, a moment later
                time.sleep(0.05)
            for prompt, expected in zip(PROMPTS, plain, strict=True):
                answer = client.generate(prompt, max_new_tokens=180, ignore_eos=True)
                assert answer.token_ids == expected.token_ids
            (line,) = _tried(client)
            assert f"version {version} against 1" in line
            while not {"champion", "candidate"} <= _arms(tmp_path):  # each window is drawn for one of them
                client.generate(PROMPTS[0], max_new_tokens=180, ignore_eos=True)
            if start == 1:
                assert _policy(tmp_path, "withdraw").startswith(f"candidate {version} -> none")
                with pytest.raises(ServiceError, match="candidate") as caught:
                    client.generate(PROMPTS[0], policy="candidate")
                assert caught.value.code is grpc.StatusCode.NOT_FOUND
                assert "candidate" not in client.status().policies
            assert running.stop() == 0

    rounds = json.loads(respsd("policy", "explain", str(version), "--state-dir", str(tmp_path), "-o", "json"))
    assert rounds
    with closing(sqlite3.connect(tmp_path / TRANSITIONS)) as log:
        assert log.execute("SELECT count(*) FROM rollout_rounds WHERE kind = 'candidate'").fetchone() == (1,)
