"""`respsd status`, `ps` and `top` against a daemon over the stub engine."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.forbidden import forbid
from support.serving import ServerThread
from typer.testing import CliRunner

from respsd.cli import main, top
from respsd.cli.connection import usual_address
from respsd.cli.rates import rates
from respsd.cli.status import duration
from respsd.engine.stub import StubEngine
from respsd.paths import SOCKET
from respsd_client import Client, DaemonStatus, Load
from respsd_client.status_result import ArmTotals, Totals

runner = CliRunner()
NOTHING = Totals({}, 0, 0, {}, {})
IDLE = DaemonStatus(
    phase="ready",
    healthy=True,
    daemon_version="1",
    pid=7,
    started=datetime(2026, 1, 1, tzinfo=UTC),
    addresses=("127.0.0.1:1",),
    target="m",
    drafter=None,
    dtype="float32",
    device="cpu",
    load=Load(0, 0, 0, 100, 0.0, accepting=True),
    policies={"champion": 2, "baseline": None},
    totals=NOTHING,
)


def with_totals(totals: Totals, **others: object) -> DaemonStatus:
    return replace(IDLE, totals=totals, **others)  # type: ignore[arg-type]


def test_status_of_a_good_daemon_is_code_0() -> None:
    with ServerThread(StubEngine()) as server:
        table = runner.invoke(main.app, ["status", "--address", server.address])
        document = runner.invoke(main.app, ["status", "--address", server.address, "-o", "json"])
    assert (table.exit_code, document.exit_code) == (0, 0)
    assert "ready" in table.stdout
    found = json.loads(document.stdout)
    assert (found["phase"], found["target"], found["load"]["accepting"]) == ("ready", "stub", True)
    assert found["addresses"] == [server.address]
    assert datetime.fromisoformat(found["started"]) <= datetime.now(UTC)


def test_status_of_a_wedged_daemon_is_code_1() -> None:
    now = [0.0]
    engine = StubEngine(clock=lambda: now[0])
    with ServerThread(engine) as server, Client(server.address) as client:
        engine.gate.close()
        stream = client.stream("x", max_new_tokens=1)
        while not engine.load().waiting:
            pass
        now[0] = 90.0
        result = runner.invoke(main.app, ["status", "--address", server.address])
        engine.gate.open()
        assert list(stream)
    assert result.exit_code == 1
    assert "no progress for 1m 30s" in result.stdout


@pytest.mark.parametrize("command", [["status"], ["ps"], ["top", "--once"]])
def test_no_daemon_is_code_3(command: list[str], tmp_path: Path) -> None:
    result = runner.invoke(main.app, [*command, "--address", f"unix:{tmp_path / 'none.sock'}"])
    assert result.exit_code == 3
    assert result.stdout == ""
    assert "none.sock" in result.stderr


def test_an_address_that_is_none_is_a_usage_error() -> None:
    assert runner.invoke(main.app, ["status", "--address", "nowhere"]).exit_code == 2


@pytest.mark.parametrize(
    "command",
    [["status"], ["ps"], ["top", "--once"], ["generate", "x"], ["policy", "list"], ["policy", "promote", "2"]],
    ids=" ".join,
)
def test_a_file_of_authorities_that_is_missing_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    monkeypatch.setenv("RESPSD_CA", str(tmp_path / "none.pem"))
    result = runner.invoke(main.app, [*command, "--address", "127.0.0.1:1"])
    assert result.exit_code == 2, result.exception
    assert "none.pem cannot be read: No such file" in result.stderr


def test_ps_lists_requests_and_never_their_text() -> None:
    engine = StubEngine(max_running=1)
    with ServerThread(engine) as server, Client(server.address) as client:
        engine.gate.close()
        stream = client.stream("a secret prompt", max_new_tokens=9, request_id="first")
        while not engine.load().waiting:
            pass
        table = runner.invoke(main.app, ["ps", "--address", server.address])
        document = runner.invoke(main.app, ["ps", "--address", server.address, "-o", "json"])
        engine.gate.open()
        assert list(stream)
        after = runner.invoke(main.app, ["ps", "--address", server.address, "-o", "json"])
    (listed,) = json.loads(document.stdout)
    assert (listed["request_id"], listed["state"], listed["prompt_tokens"]) == ("first", "waiting", 15)
    assert "first" in table.stdout
    assert "secret" not in table.stdout + document.stdout
    assert json.loads(after.stdout) == []


def test_top_once_prints_one_look() -> None:
    with ServerThread(StubEngine()) as server:
        table = runner.invoke(main.app, ["top", "--once", "--interval", "0.1", "--address", server.address])
        document = runner.invoke(
            main.app, ["top", "--once", "--interval", "0.1", "-o", "json", "--address", server.address]
        )
    assert table.exit_code == 0
    assert "0 running, 0 waiting" in table.stdout
    found = json.loads(document.stdout)
    assert found["tokens_per_second"] == 0
    assert found["acceptance"] is None


def test_top_needs_a_terminal_to_be_live(tmp_path: Path) -> None:
    with ServerThread(StubEngine()) as server:
        assert runner.invoke(main.app, ["top", "--address", server.address]).exit_code == 2
        assert runner.invoke(main.app, ["top", "-o", "json", "--address", server.address]).exit_code == 2


def test_rates_are_differences_by_time() -> None:
    before = with_totals(Totals({"champion": ArmTotals(100, 2.0)}, 50, 20, {"off": 5, "4,1,2": 5}, {"OK": 1}, 7))
    after = with_totals(
        Totals(
            {"champion": ArmTotals(160, 3.5), "learner": ArmTotals(20, 1.0)},
            70,
            25,
            {"off": 6, "4,1,2": 8, "8,2,2": 0},
            {"OK": 5, "CANCELLED": 0},
            9,
        )
    )
    found = rates(before, after, 4.0)
    assert found.tokens_per_second == 20
    assert (found.arms["champion"].tokens_per_second, found.arms["champion"].sequence_tokens_per_second) == (15, 40)
    assert (found.arms["learner"].tokens_per_second, found.arms["learner"].sequence_tokens_per_second) == (5, 20)
    assert found.acceptance == 0.25
    assert found.actions == {"4,1,2": 0.75, "off": 0.25}
    assert list(found.actions) == ["4,1,2", "off"]
    assert found.requests_per_second == {"OK": 1.0}
    assert found.switches_per_second == 0.5


def test_a_daemon_that_started_anew_counts_from_zero() -> None:
    before = with_totals(Totals({"champion": ArmTotals(1000, 2.0)}, 50, 20, {}, {}, 40))
    started = datetime(2026, 1, 2, tzinfo=UTC)
    after = with_totals(Totals({"champion": ArmTotals(10, 1.0)}, 4, 1, {}, {}, 3), started=started)
    assert rates(before, after, 2.0).tokens_per_second == 5
    assert rates(before, after, 2.0).acceptance == 0.25
    assert rates(before, after, 2.0).switches_per_second == 1.5


def test_a_screen_shows_arms_actions_queue_and_versions(capsys: pytest.CaptureFixture[str]) -> None:
    totals = Totals({"champion": ArmTotals(60, 1.5)}, 20, 5, {"off": 1, "4,1,2": 3}, {"OK": 4}, 7)
    found = with_totals(totals, load=Load(2, 3, 50, 100, 0.1, accepting=True))
    top._print_once(found, rates(IDLE, found, 2.0), top.OutputFormat.TABLE)
    screen = capsys.readouterr().out
    for part in (
        "champion  30.0      40.0",
        "2 running, 3 waiting, KV cache 50%",
        "OK 2.0/s",
        "25% of drafted tokens",
        "3.5 switches/s",
    ):
        assert part in screen, screen
    assert "policies: champion 2, baseline built-in" in screen
    assert screen.index("4,1,2") < screen.index("off ")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0s"), (61, "1m 1s"), (3661, "1h 1m"), (90_000, "1d 1h"), (-5, "0s")]
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_users_own_socket_is_tried_before_the_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr("respsd.cli.connection.SYSTEM_SOCKET", tmp_path / "system.sock")
    assert usual_address() == "127.0.0.1:7470"
    with ServerThread(StubEngine(), f"unix:{tmp_path / 'system.sock'}"):
        assert usual_address() == f"unix:{tmp_path / 'system.sock'}"
        with ServerThread(StubEngine(), f"unix:{tmp_path / SOCKET}"):
            assert usual_address() == f"unix:{tmp_path / SOCKET}"
            assert runner.invoke(main.app, ["status"]).exit_code == 0
            assert runner.invoke(main.app, ["generate", "x", "--max-new-tokens", "2"]).exit_code == 0
        # Whoever names a folder means its daemon, and not the system's.
        assert usual_address(tmp_path / "other") == "127.0.0.1:7470"


def test_a_socket_that_this_user_may_not_look_at_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setattr("respsd.cli.connection.SYSTEM_SOCKET", tmp_path / "run" / SOCKET)
    forbid(monkeypatch, tmp_path / "run")
    assert usual_address() == "127.0.0.1:7470"


def test_completion_knows_the_commands_and_their_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the bash script asks."""

    def completed(words: str) -> list[str]:
        asked = {"_RESPSD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return runner.invoke(main.app, [], env=asked, prog_name="respsd").stdout.split()

    assert completed("respsd st") == ["status"]
    assert completed("respsd db b") == ["backup"]
    assert "--interval" in completed("respsd top --i")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(shell: str) -> None:
    result = runner.invoke(main.app, ["completion", shell])
    assert result.exit_code == 0
    assert "respsd" in result.stdout
    assert "_RESPSD_COMPLETE" in result.stdout
