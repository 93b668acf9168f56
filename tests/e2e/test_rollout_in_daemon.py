"""A candidate under rollout in the real daemon: it serves some windows, and no token changes."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest
from support.daemons import STILL, daemon, respsd, tiny_flags

from policy_store import PolicyStore
from respsd.control.action import Action
from respsd.control.manifests import static_manifest
from respsd.experience.database import open_log
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
    log = open_log(state_dir / TRANSITIONS)
    try:
        with log.engine.connect() as connection:
            return {arm for (arm,) in connection.exec_driver_sql("SELECT DISTINCT arm FROM transitions")}
    finally:
        log.engine.dispose()


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
            for prompt, expected in zip(PROMPTS, plain, strict=True):
                answer = client.generate(prompt, max_new_tokens=180, ignore_eos=True)
                assert answer.token_ids == expected.token_ids
            (line,) = [line for line in client.status().rollout if line.startswith("candidate")]
            assert f"version {version} against 1" in line
            if start == 1:
                assert _policy(tmp_path, "withdraw").startswith(f"candidate {version} -> none")
                with pytest.raises(ServiceError, match="candidate") as caught:
                    client.generate(PROMPTS[0], policy="candidate")
                assert caught.value.code is grpc.StatusCode.NOT_FOUND
                assert "candidate" not in client.status().policies
            assert running.stop() == 0

    assert {"champion", "candidate"} <= _arms(tmp_path)
    rounds = json.loads(respsd("policy", "explain", str(version), "--state-dir", str(tmp_path), "-o", "json"))
    assert rounds
    log = open_log(tmp_path / TRANSITIONS)
    with log.engine.connect() as connection:
        query = "SELECT count(*) FROM rollout_rounds WHERE kind = 'candidate'"
        assert connection.exec_driver_sql(query).scalar() == 1
    log.engine.dispose()
