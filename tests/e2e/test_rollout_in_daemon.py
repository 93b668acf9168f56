"""A candidate under rollout in the real daemon: it serves some windows, and no token changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.daemons import STILL, daemon, respsd, tiny_flags

from policy_store import PolicyStore
from respsd.control.action import Action
from respsd.control.manifests import static_manifest
from respsd.experience.database import open_log
from respsd.paths import POLICIES, TRANSITIONS
from respsd_client import Client

pytestmark = pytest.mark.slow
PROMPTS = [[1, 40 + number, 17, 99] for number in range(6)]
ROLLOUT = {
    **STILL,
    "RESPSD_ROLLOUT__ENABLED": "true",
    "RESPSD_ROLLOUT__SHADOW_WINDOWS": "1",
    "RESPSD_ROLLOUT__MIN_PAIRS": "1000",  # no verdict: how fast it is here is not what is tested
}


def _propose(state_dir: Path, action: Action) -> int:
    """Make a constant policy the candidate while no daemon runs."""
    with PolicyStore(state_dir / POLICIES) as store:
        version = store.create(static_manifest(action, code_version="test", note="a trial"), actor="test")
        store.set_alias("candidate", version, actor="test", reason="to be tried")
    return version


def _arms(state_dir: Path) -> set[str]:
    log = open_log(state_dir / TRANSITIONS)
    try:
        with log.engine.connect() as connection:
            return {arm for (arm,) in connection.exec_driver_sql("SELECT DISTINCT arm FROM transitions")}
    finally:
        log.engine.dispose()


def test_a_candidate_is_tried_told_of_and_gone_on_with_after_a_restart(tmp_path: Path) -> None:
    with daemon(tmp_path, *tiny_flags(), environment=STILL) as first, Client(first.address) as client:
        plain = [client.generate(prompt, action="off", max_new_tokens=180, ignore_eos=True) for prompt in PROMPTS]
        assert first.stop() == 0
    version = _propose(tmp_path, Action(8, 2, 3))

    for _ in range(2):
        with daemon(tmp_path, *tiny_flags(), environment=ROLLOUT) as running, Client(running.address) as client:
            for prompt, expected in zip(PROMPTS, plain, strict=True):
                answer = client.generate(prompt, max_new_tokens=180, ignore_eos=True)
                assert answer.token_ids == expected.token_ids
            (line,) = [line for line in client.status().rollout if line.startswith("candidate")]
            assert f"version {version} against 1" in line
            assert running.stop() == 0

    assert {"champion", "candidate"} <= _arms(tmp_path)
    rounds = json.loads(respsd("policy", "explain", str(version), "--state-dir", str(tmp_path), "-o", "json"))
    assert rounds
    log = open_log(tmp_path / TRANSITIONS)
    with log.engine.connect() as connection:
        query = "SELECT count(*) FROM rollout_rounds WHERE kind = 'candidate'"
        assert connection.exec_driver_sql(query).scalar() == 1
    log.engine.dispose()
