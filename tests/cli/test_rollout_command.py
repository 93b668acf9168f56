from __future__ import annotations

import json
import subprocess
import sys

from respsd.cli.exit_codes import ExitCode

SIMULATE = (sys.executable, "-m", "respsd", "rollout", "simulate", "--runs", "3")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SIMULATE, *arguments], capture_output=True, text=True, check=False)


def test_simulate_prints_one_json_document() -> None:
    result = run("--effect", "-0.3", "-o", "json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert {"wrong_rollback_rate", "found_rate", "median_requests", "promoted_rate"} <= document.keys()
    assert (document["runs"], document["found_rate"]) == (3, 1.0)


def test_simulate_names_a_noise_file_that_is_none(tmp_path: object) -> None:
    result = run("--noise-file", f"{tmp_path}/none.json")
    assert result.returncode == ExitCode.USAGE
    assert "none.json" in result.stderr
