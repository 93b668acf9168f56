from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import numpy as np
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from policy_store import PolicyStore
from respsd.cli import policy
from respsd.cli.policy.wording import age
from respsd.control.action import Action
from respsd.control.bootstrap import open_policies
from respsd.control.controller import Decision
from respsd.control.observation import ObservationSchema
from respsd.errors import StorageError
from respsd.experience.database import open_log
from respsd.experience.recorder import Recorder
from respsd.experience.records import RequestRecord, TransitionRecord
from respsd.experience.rows import Origin
from respsd.settings import ControlSettings
from respsd_client.v1 import action_pb2, policy_pb2, policy_pb2_grpc

NOON = 1_796_040_000_000_000_000
BASELINE = Action(16, 4, 4)

app = typer.Typer()
app.add_typer(policy.app, name="policy")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["policy", "list", *arguments])


def start_daemon_once(state: Path) -> None:
    with PolicyStore(state / "policies", lambda: NOON) as store:
        schema = ObservationSchema(feature_width=12)
        table = ControlSettings().table()
        open_policies(store, table, schema, BASELINE, rng=np.random.default_rng(0), code_version="0.1.0")


def log_a_window(state: Path, version: int, committed: int, seconds: float) -> None:
    recorder = Recorder(
        lambda: open_log(state / "transitions.db"), Origin("h", "i", "t", None, "float32", "cpu", "hash")
    )
    decision = Decision(BASELINE, 0.0, "champion", version, 0, "table")
    window = TransitionRecord(
        0, NOON, b"", "schema", decision, BASELINE, 0, 10, 150, 20, committed, 0, int(seconds * 1e9), 0, 9, 1.0, False
    )
    request = RequestRecord("r", NOON, NOON, 9, 30, "eos", 0.0, 1.0, 0, 1, 10, 150, 20, 0, 0, 1, version, version)
    recorder.record(request, [window])
    assert recorder.close(30.0)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    start_daemon_once(tmp_path)
    return tmp_path


def test_json_is_one_document_with_every_version(state: Path) -> None:
    log_a_window(state, version=1, committed=30, seconds=0.5)
    result = run("--state-dir", str(state), "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == [
        {
            "version": 1,
            "aliases": ["baseline", "champion"],
            "state": "good",
            "created": "2026-11-30T12:00:00Z",
            "kind": "static",
            "parent": None,
            "tokens_per_second": 60.0,
            "action": "16,4,4",
        },
        {
            "version": 2,
            "aliases": ["learner"],
            "state": "good",
            "created": "2026-11-30T12:00:00Z",
            "kind": "resps",
            "parent": None,
            "tokens_per_second": None,
            "action": None,
        },
        {
            "version": 3,
            "aliases": ["eagle3"],
            "state": "good",
            "created": "2026-11-30T12:00:00Z",
            "kind": "static",
            "parent": None,
            "tokens_per_second": None,
            "action": "60,7,10",
        },
    ]


def test_listing_leaves_no_trace(state: Path) -> None:
    log_a_window(state, version=1, committed=30, seconds=0.5)
    before = sorted(state.rglob("*"))
    run("--state-dir", str(state))
    assert sorted(state.rglob("*")) == before


def test_it_works_beside_a_daemon_that_has_the_files_open(state: Path) -> None:
    with PolicyStore(state / "policies") as store:
        store.set_alias("candidate", 2, actor="test", reason="")
        result = run("--state-dir", str(state), "-o", "json")
    assert json.loads(result.stdout)[1]["aliases"] == ["candidate", "learner"]


def test_the_table_is_a_line_a_version_however_narrow_the_pipe(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    log_a_window(state, version=1, committed=30, seconds=0.5)
    lines = run("--state-dir", str(state)).stdout.splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["VERSION", "ALIASES", "STATE", "KIND", "ACTION", "TOKENS/S", "AGE"],
        ["1", "baseline,champion", "good", "static", "16,4,4", "60.0", lines[1].split()[-1]],
    ]
    assert lines[2].split()[:4] == ["2", "learner", "good", "resps"]
    assert len(lines) == 4


def test_wide_shows_parent_and_time(state: Path) -> None:
    lines = run("--state-dir", str(state), "-o", "wide").stdout.splitlines()
    assert lines[0].split()[-2:] == ["PARENT", "CREATED"]
    assert lines[1].split()[-1] == "2026-11-30T12:00:00Z"


def test_name_prints_version_numbers_alone(state: Path) -> None:
    assert run("--state-dir", str(state), "-o", "name").stdout == "1\n2\n3\n"


@pytest.mark.parametrize("output", ["table", "wide", "json", "yaml", "name"])
def test_without_a_store_nothing_is_printed_and_the_exit_code_says_not_found(tmp_path: Path, output: str) -> None:
    result = run("--state-dir", str(tmp_path), "-o", output)
    assert result.exit_code == 4
    assert result.stdout == ""
    assert f"no policy store at {tmp_path / 'policies'}" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_environment_says_where_the_state_is(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESPSD_STATE_DIR", str(state))
    assert run("-o", "name").stdout == "1\n2\n3\n"
    monkeypatch.delenv("RESPSD_STATE_DIR")
    monkeypatch.setenv("STATE_DIRECTORY", str(state))
    assert run("-o", "name").stdout == "1\n2\n3\n"


def test_a_log_that_cannot_be_read_costs_the_speeds_alone(state: Path) -> None:
    (state / "transitions.db").write_bytes(b"rubbish" * 1000)
    result = run("--state-dir", str(state), "-o", "json")
    assert result.exit_code == 0
    assert [version["tokens_per_second"] for version in json.loads(result.stdout)] == [None, None, None]
    assert "not a database" in result.stderr


def test_a_damaged_registry_is_a_storage_error(state: Path) -> None:
    (state / "policies" / "registry.db").write_bytes(b"rubbish" * 1000)
    result = run("--state-dir", str(state))
    assert isinstance(result.exception, StorageError)


def test_files_and_a_daemon_cannot_both_be_asked(state: Path) -> None:
    result = run("--state-dir", str(state), "--address", "127.0.0.1:1")
    assert result.exit_code == 2
    assert result.stdout == ""


class Policies(policy_pb2_grpc.PolicyServiceServicer):
    def ListPolicies(self, request: object, context: object) -> policy_pb2.ListPoliciesResponse:
        learned = policy_pb2.Policy(
            version=2, aliases=["learner"], state="good", kind="resps", parent=1, tokens_per_second=21.5
        )
        action = action_pb2.Action(total_tokens=1, depth=0, top_k=0)
        baseline = policy_pb2.Policy(version=1, aliases=["baseline"], state="good", kind="static", action=action)
        for each in (learned, baseline):
            each.created.FromNanoseconds(NOON)
        return policy_pb2.ListPoliciesResponse(policies=[baseline, learned])


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    policy_pb2_grpc.add_PolicyServiceServicer_to_server(Policies(), server)
    server.add_insecure_port(f"unix:{tmp_path}/s")
    server.start()
    yield f"unix:{tmp_path}/s"
    server.stop(None).wait()


def test_a_running_daemon_can_be_asked_instead(address: str) -> None:
    baseline, learned = json.loads(run("--address", address, "-o", "json").stdout)
    assert (baseline["version"], baseline["action"], baseline["parent"]) == (1, "off", None)
    assert (learned["version"], learned["action"], learned["parent"]) == (2, None, 1)
    assert (learned["tokens_per_second"], learned["created"]) == (21.5, "2026-11-30T12:00:00Z")


def test_a_daemon_that_does_not_answer_is_unreachable(tmp_path: Path) -> None:
    result = run("--address", f"unix:{tmp_path}/nobody")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "nobody" in result.stderr


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-5, "0s"), (59, "59s"), (60, "1m"), (3599, "59m"), (7200, "2h"), (86_400 * 3, "3d")]
)
def test_ages_are_short(seconds: int, shown: str) -> None:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    assert age(now, now - timedelta(seconds=seconds)) == shown


def test_listing_loads_no_model_library(state: Path) -> None:
    script = (
        "import sys\n"
        "from respsd.cli import policy\n"
        f"policy.app(['list', '--state-dir', {str(state)!r}], standalone_mode=False)\n"
        "print({'torch', 'transformers', 'stable_baselines3', 'alembic', 'grpc'} & sys.modules.keys(), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n"
