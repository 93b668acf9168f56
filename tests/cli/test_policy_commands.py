"""The other policy commands on the files: what people and scripts see, and what is refused with which exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import typer
import yaml
from click.testing import Result
from typer.testing import CliRunner

from policy_store import PolicyStore
from policy_store.presence import in_service
from respsd.cli import policy
from respsd.cli.exit_codes import ExitCode, of_error
from respsd.control.action import Action
from respsd.control.bootstrap import open_policies
from respsd.control.observation import ObservationSchema
from respsd.errors import RespsdError
from respsd.settings import ControlSettings

app = typer.Typer()
app.add_typer(policy.app, name="policy")
NOON = 1_796_040_000_000_000_000


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a daemon that ran once: baseline and champion 1, learner 2, eagle3 3."""
    monkeypatch.setenv("RESPSD_STATE_DIR", str(tmp_path))
    with PolicyStore(tmp_path / "policies", lambda: NOON) as store:
        open_policies(
            store,
            ControlSettings().table(),
            ObservationSchema(feature_width=12),
            Action(16, 4, 4),
            rng=np.random.default_rng(0),
            code_version="0.1.0",
        )
    return tmp_path


@pytest.fixture
def store(state: Path) -> Iterator[PolicyStore]:
    with PolicyStore(state / "policies") as opened:
        yield opened


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["policy", *arguments], input=stdin)


def code_of(result: Result) -> int:
    """The exit code, as `respsd` makes it of errors."""
    return of_error(result.exception) if isinstance(result.exception, RespsdError) else result.exit_code


def said(*arguments: str) -> str:
    result = run(*arguments)
    assert code_of(result) == 0, result.output
    return result.stdout


def test_a_person_promotes_and_rolls_back_offline(state: Path) -> None:
    assert said("promote", "learner", "--offline", "--reason", "try it").splitlines() == [
        "promote: champion 1 -> 2  (audit 8)",
        "last-good none -> 1  (audit 9)",
    ]
    again = run("promote", "2", "--offline")
    assert (again.stdout, again.exit_code) == ("", 0)
    assert "unchanged" in again.stderr
    dry = run("rollback", "--offline", "--dry-run")
    assert dry.stdout.splitlines() == ["rollback: champion 2 -> 1", "quarantine: 2"]
    assert "nothing was changed" in dry.stderr
    assert said("rollback", "--offline").splitlines()[-1] == "quarantine: 2  (audit 11)"
    assert code_of(run("promote", "2", "--offline")) == ExitCode.PRECONDITION


def test_a_person_nominates_and_withdraws_a_candidate_offline(state: Path) -> None:
    dry = run("nominate", "learner", "--offline", "--dry-run")
    assert dry.stdout.splitlines() == ["candidate none -> 2"]
    assert said("nominate", "learner", "--offline", "--reason", "try it") == "candidate none -> 2  (audit 8)\n"
    assert said("withdraw", "--offline") == "candidate 2 -> none  (audit 9)\n"
    assert "unchanged" in run("withdraw", "--offline").stderr
    refused = run("nominate", "champion", "--offline")
    assert code_of(refused) == ExitCode.PRECONDITION
    assert "is the champion already" in str(refused.exception)
    assert code_of(run("nominate", "404", "--offline")) == ExitCode.NOT_FOUND


def test_scripts_read_changes_as_json_and_yaml(state: Path) -> None:
    document = json.loads(said("freeze", "--offline", "--reason", "drift", "-o", "json"))
    assert (document["changed"], document["dry_run"]) == (True, False)
    (change,) = document["changes"]
    assert (change["id"], change["event"], change["reason"], change["from"], change["to"]) == (
        8,
        "freeze",
        "drift",
        None,
        None,
    )
    assert change["actor"].startswith("operator:")
    dry = yaml.safe_load(said("unfreeze", "--offline", "--dry-run", "-o", "yaml"))
    assert (dry["dry_run"], dry["changes"][0]["id"]) == (True, None)


def test_offline_is_refused_while_a_daemon_runs_and_needs_its_flag(state: Path) -> None:
    with in_service(state / "policies"):
        result = run("promote", "2", "--offline")
        assert code_of(result) == ExitCode.PRECONDITION
        assert "a daemon runs" in str(result.exception)
    nobody = run("promote", "2", "--address", f"unix:{state}/nobody")
    assert nobody.exit_code == ExitCode.UNREACHABLE
    assert "no daemon serves at" in nobody.stderr
    with PolicyStore(state / "policies", read_only=True) as reader:
        assert reader.aliases()["champion"] == 1


def test_offline_without_a_store_makes_none(tmp_path: Path) -> None:
    result = run("promote", "2", "--offline", "--state-dir", str(tmp_path))
    assert result.exit_code == ExitCode.NOT_FOUND
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("promote", "404", "--offline"), ExitCode.NOT_FOUND),
        (("rollback", "--to", "2", "--offline"), ExitCode.PRECONDITION),
        (("rm", "champion", "--yes", "--offline"), ExitCode.PRECONDITION),
        (("rm", "2", "--offline"), ExitCode.USAGE),
        (("show", "nobody"), ExitCode.NOT_FOUND),
        (("history", "nobody"), ExitCode.NOT_FOUND),
        (("history", "77"), ExitCode.NOT_FOUND),
        (("diff", "1", "77"), ExitCode.NOT_FOUND),
        (("export", "77"), ExitCode.NOT_FOUND),
        (("import", "/nowhere", "--offline"), ExitCode.FAILED),
        (("show", "1", "--address", "127.0.0.1:1"), ExitCode.USAGE),
        (("promote",), ExitCode.USAGE),
    ],
)
def test_refusals_have_their_exit_codes_and_change_nothing(
    state: Path, store: PolicyStore, arguments: tuple[str, ...], code: ExitCode
) -> None:
    before = store.audit()
    result = run(*arguments)
    assert code_of(result) == code
    assert result.stdout == ""
    assert store.audit() == before


def test_a_pin_and_a_freeze_are_told_beside_the_list(state: Path) -> None:
    said("pin", "champion", "--offline", "--reason", "demo day")
    said("freeze", "--offline")
    listed = run("list")
    assert "version 1 is pinned as the champion by operator:" in listed.stderr
    assert "demo day" in listed.stderr
    assert "learning is frozen by operator:" in listed.stderr
    assert len(listed.stdout.splitlines()) == 4
    assert run("list", "-o", "json").stderr == ""


def test_show_tells_a_person_everything_in_lines(state: Path) -> None:
    lines = said("show", "learner").splitlines()
    facts = {line.split()[0]: line.split(maxsplit=1)[1].strip() for line in lines[: lines.index("")]}
    assert facts["VERSION"] == "2"
    assert facts["network"] == "95 > 128 > 128 > 392, tanh"
    assert facts["actions"] == "392, off and trees of up to 128,8,32"
    assert facts["files"] == "verified"
    assert [line.split()[3] for line in lines[lines.index("") + 2 :]] == ["create:", "learner"]
    assert said("show", "learner", "-o", "name") == "2\n"


def test_show_says_what_is_wrong_with_a_damaged_version(state: Path) -> None:
    (state / "policies" / "versions" / "2" / "policy.safetensors").write_bytes(b"")
    document = json.loads(said("show", "2", "-o", "json"))
    assert "hash" in document["fault"]
    assert document["manifest"] is None
    assert document["history"]
    assert "hash" in said("show", "2")
    assert "hash" in said("diff", "1", "2")


def test_show_as_json_and_yaml_is_the_same_document(state: Path) -> None:
    document = json.loads(said("show", "1", "-o", "json"))
    assert document["manifest"]["action"] == [16, 4, 4]
    assert yaml.safe_load(said("show", "1", "-o", "yaml")) == document
    assert yaml.safe_load(said("list", "-o", "yaml")) == json.loads(said("list", "-o", "json"))


def test_diff_names_what_differs_and_nothing_else(state: Path) -> None:
    document = json.loads(said("diff", "1", "eagle3", "-o", "json"))
    assert (document["a"], document["b"], document["tokens_per_second_ratio"]) == (1, 3, None)
    assert set(document["differences"]) == {"action", "action_table", "aliases", "note"}
    assert document["differences"]["action"] == {"a": "16,4,4", "b": "60,7,10"}
    lines = said("diff", "1", "eagle3").splitlines()
    assert [line.split()[0] for line in lines] == ["DIFFERS", "aliases", "action", "note"]
    assert len(said("diff", "1", "1").splitlines()) == 1


def test_history_is_told_by_version_alias_and_number(state: Path) -> None:
    said("promote", "2", "--offline", "--reason", "try it")
    lines = said("history", "--limit", "2").splitlines()
    assert [line.split()[:1] for line in lines] == [["ID"], ["8"], ["9"]]
    assert "promote: champion 1 -> 2" in lines[1]
    assert said("history", "--alias", "champion", "-o", "name") == "3\n8\n"
    assert [each["event"] for each in json.loads(said("history", "2", "-o", "json"))] == ["create", "alias", "promote"]
    wide = said("history", "-o", "wide").splitlines()
    assert wide[0].split() == ["ID", "AT", "ACTOR", "CHANGE", "REASON", "FIGURES"]
    assert "2026-11-30T12:00:00" in wide[1]


def test_a_version_leaves_as_a_file_and_comes_back_under_a_new_number(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("export", "learner")
    assert (result.exit_code, result.stdout) == (0, "")
    file = tmp_path / "policy-learner.tar"
    assert file.exists()
    assert code_of(run("export", "learner")) == ExitCode.USAGE
    assert run("export", "learner", "--force").exit_code == 0
    assert run("export", "2", "--to", "-").stdout_bytes == file.read_bytes()
    dry = run("import", str(file), "--offline", "--dry-run")
    assert dry.stdout == "import: a new version\n"
    assert said("import", str(file), "--offline") == "import: 4  (audit 8)\n"
    assert run("import", "-", "--offline", stdin=file.read_bytes()).stdout == "import: 5  (audit 9)\n"
    assert "version 2 of another store" in said("show", "4")
    assert said("rm", "4", "--yes", "--offline") == "remove: 4  (audit 10)\n"
    assert said("list", "-o", "name") == "1\n2\n3\n5\n"
    assert [each["event"] for each in json.loads(said("history", "4", "-o", "json"))] == ["import", "remove"]


def test_what_is_no_archive_is_refused_by_name(state: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.zip"
    file.write_bytes(b"PK\3\4" + bytes(100))
    result = run("import", str(file), "--offline")
    assert code_of(result) == ExitCode.USAGE
    assert "it is a zip" in str(result.exception)


def test_training_needs_a_daemon(state: Path) -> None:
    result = run("train-now", "--address", f"unix:{state}/nobody")
    assert result.exit_code == ExitCode.UNREACHABLE


def test_a_daemons_socket_in_the_state_folder_is_the_usual_address(state: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(state / "respsd.sock"))
    assert f"unix:{state}/respsd.sock" in run("unpin").stderr
