"""`respsd db` on files without a daemon; `tests/e2e` has it beside one."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result
from support.forbidden import forbid
from support.recorders import LONG, NOON, count
from typer.testing import CliRunner

from policy_store import PolicyStore, StoreUnavailable
from policy_store.presence import in_service
from respsd.cli import db
from respsd.cli.exit_codes import ExitCode
from respsd.control.action import Action
from respsd.control.controller import Decision
from respsd.errors import DatabaseDamaged, InvalidRequest, SettingsError, StorageError
from respsd.experience.database import open_log
from respsd.experience.migrate import head_revision
from respsd.experience.recorder import Recorder
from respsd.experience.records import RequestRecord, TransitionRecord
from respsd.experience.rows import Origin

DAY = 24 * 3600 * 10**9


def run(command: str, state: Path, *arguments: str) -> Result:
    return CliRunner().invoke(db.app, [command, "--state-dir", str(state), *arguments])


def document(command: str, state: Path, *arguments: str) -> object:
    result = run(command, state, *arguments, "-o", "json")
    assert (result.exit_code, result.stderr) == (0, ""), result
    return json.loads(result.stdout)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Five requests of two windows, a day apart; the last three are explorers'."""
    path = tmp_path / "transitions.db"
    recorder = Recorder(lambda: open_log(path), Origin("h", "i", "t", None, "float32", "cpu", "hash"))
    for number in range(5):
        arm = "learner" if number > 1 else "champion"
        decision = Decision(Action(16, 4, 4), -1.0, arm, 1 + (number > 1), 0, "table")
        windows = [
            TransitionRecord(
                each, NOON, bytes(400), "schema", decision, Action(16, 4, 4), 0, 10, 150, 20, 30, 0, 10**9, 0, 9, 1.0,
                truncated=False,
            )
            for each in range(2)
        ]  # fmt: skip
        at = NOON + number * DAY
        recorder.record(
            RequestRecord(f"r-{number}", at, at, 9, 30, "eos", 0.0, 1.0, 0, 1, 10, 150, 20, 0, 0, 1, 1, 1), windows
        )
    assert recorder.close(LONG)
    return path


@pytest.fixture
def state(tmp_path: Path, log: Path) -> Path:
    PolicyStore(tmp_path / "policies").close()
    return tmp_path


@pytest.mark.parametrize("command", ["migrate", "check", "backup", "export", "prune"])
@pytest.mark.parametrize("output", ["table", "json"])
def test_where_there_is_no_database_nothing_is_made_and_the_exit_code_says_so(
    tmp_path: Path, command: str, output: str
) -> None:
    result = run(command, tmp_path, "-o", output)
    assert (result.exit_code, result.stdout) == (4, "")
    assert str(tmp_path) in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_check_describes_sound_databases(state: Path) -> None:
    found = document("check", state)
    assert isinstance(found, dict)
    registry, transitions = found["databases"]
    assert (registry["database"], registry["state"]) == ("registry.db", "sound")
    assert (transitions["database"], transitions["state"], transitions["faults"]) == ("transitions.db", "sound", [])
    assert transitions["schema"] == transitions["schema_of_this_release"] == head_revision()
    assert (transitions["rows"]["requests"], transitions["rows"]["transitions"]) == (5, 10)
    assert transitions["gives_back_free_space"] is True
    assert found["set_aside"] == []


def test_check_leaves_no_trace(state: Path) -> None:
    before = sorted(state.rglob("*"))
    run("check", state)
    assert sorted(state.rglob("*")) == before


def test_check_of_a_damaged_log_fails_and_says_what_is_wrong(state: Path, log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    log.write_bytes(data)
    result = run("check", state, "-o", "json")
    assert result.exit_code == 1
    registry, transitions = json.loads(result.stdout)["databases"]
    assert (registry["state"], transitions["state"]) == ("sound", "damaged")
    assert transitions["faults"]
    assert transitions["faults"][0] in result.stderr
    assert log.read_bytes() == data  # setting it aside is the daemon's


def test_check_names_logs_that_were_set_aside(state: Path) -> None:
    aside = state / "transitions.db.damaged-20261130T120000.000000Z"
    aside.touch()
    aside.with_name(aside.name + "-wal").touch()
    result = run("check", state, "-o", "json")
    assert json.loads(result.stdout)["set_aside"] == [str(aside)]
    assert "was set aside" in result.stderr


@pytest.mark.parametrize("revision", ["0001", "9999"])
def test_check_fails_on_another_releases_schema(state: Path, log: Path, revision: str) -> None:
    with closing(sqlite3.connect(log)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])
        connection.commit()
    result = run("check", state)
    assert result.exit_code == 1
    assert f"it has schema {revision}, this release has {head_revision()}" in result.stderr


def test_migrate_says_what_was_and_is(state: Path) -> None:
    found = document("migrate", state)
    assert isinstance(found, list)
    assert [(each["database"], each["before"] == each["after"]) for each in found] == [
        ("registry.db", True),
        ("transitions.db", True),
    ]


def test_migrate_brings_an_older_log_up_to_date(tmp_path: Path) -> None:
    from alembic.command import upgrade

    from policy_store.sqlite import writer_engine
    from respsd.experience.migrate import _config

    engine = writer_engine(tmp_path / "transitions.db", synchronous="NORMAL")
    with engine.begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        upgrade(config, "0001")
    engine.dispose()
    [found] = document("migrate", tmp_path)  # type: ignore[misc]
    assert (found["before"], found["after"]) == ("0001", head_revision())
    assert run("check", tmp_path).exit_code == 0


def test_migrate_refuses_a_newer_schema_and_a_damaged_file_and_leaves_them_alone(tmp_path: Path, log: Path) -> None:
    with closing(sqlite3.connect(log)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    before = log.read_bytes()
    assert isinstance(run("migrate", tmp_path).exception, StorageError)
    assert log.read_bytes() == before
    log.write_bytes(b"rubbish" * 1000)
    assert isinstance(run("migrate", tmp_path).exception, DatabaseDamaged)
    assert log.read_bytes() == b"rubbish" * 1000


def test_migrate_can_rewrite_a_file_that_keeps_its_free_space(state: Path, log: Path) -> None:
    with closing(sqlite3.connect(log, isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("VACUUM")
    assert "db migrate --rewrite" in run("check", state).stderr
    found = document("migrate", state, "--rewrite")
    assert [each["rewritten"] for each in found] == [False, True]  # type: ignore[attr-defined]
    assert document("check", state)["databases"][1]["gives_back_free_space"] is True  # type: ignore[index]
    assert count(log, "transitions") == 10


def test_a_log_is_not_rewritten_under_a_running_daemon(state: Path) -> None:
    with in_service(state / "policies"):
        result = run("migrate", state, "--rewrite")
    assert result.exit_code == 5
    assert "a daemon runs" in result.stderr


def test_backup_copies_both_and_keeps_as_many_as_it_is_told(state: Path) -> None:
    made = document("backup", state, "--keep", "1")
    assert isinstance(made, list)
    assert [(each["database"], each["new"]) for each in made] == [("registry.db", True), ("transitions.db", True)]
    copy = Path(made[1]["path"])
    assert copy.parent == state / "backups"
    assert count(copy, "transitions") == 10
    assert [each["new"] for each in document("backup", state)] == [False, False]  # type: ignore[attr-defined]


def test_backup_can_go_elsewhere(state: Path, tmp_path: Path) -> None:
    run("backup", state, "--to", str(tmp_path / "elsewhere"))
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2
    assert not (state / "backups").exists()


def test_backup_of_a_damaged_log_fails(state: Path, log: Path) -> None:
    log.write_bytes(b"rubbish" * 1000)
    assert isinstance(run("backup", state).exception, DatabaseDamaged)


def test_export_writes_lines_to_standard_output(state: Path) -> None:
    lines = run("export", state).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["request_id"] for row in rows] == [f"r-{number}" for number in range(5) for _ in range(2)]
    assert len(rows[0]["observation"]) == 100


def test_export_selects(state: Path) -> None:
    assert len(run("export", state, "--arm", "learner").stdout.splitlines()) == 6
    assert len(run("export", state, "--policy-version", "1").stdout.splitlines()) == 4
    assert len(run("export", state, "--since", "2026-12-03").stdout.splitlines()) == 4  # the second day after noon


def test_export_to_a_file_replaces_nothing_unasked(state: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    assert document("export", state, "--to", str(target))["windows"] == 10  # type: ignore[call-overload, index]
    assert isinstance(run("export", state, "--to", str(target)).exception, InvalidRequest)
    assert document("export", state, "--to", str(target), "--arm", "learner", "--force")["windows"] == 6  # type: ignore[call-overload, index]
    assert len(target.read_text().splitlines()) == 6
    assert not list(tmp_path.glob(".*.tmp"))


def test_prune_deletes_what_is_over_the_limits_and_spares_what_no_update_has_read(state: Path, log: Path) -> None:
    planned = document("prune", state, "--max-rows", "1", "--dry-run")
    assert isinstance(planned, dict)
    assert (planned["dry_run"], planned["requests"], planned["windows"]) == (True, 2, {"rows": 4})
    assert count(log, "requests") == 5
    done = document("prune", state, "--max-rows", "1", "--yes")
    assert isinstance(done, dict)
    assert (done["dry_run"], done["requests"], done["windows"]) == (False, 2, {"rows": 4})
    assert count(log, "requests") == 3


def test_prune_uses_the_settings_limits(state: Path, log: Path, tmp_path: Path) -> None:
    config = tmp_path / "respsd.toml"
    config.write_text("[retention]\nmax_rows = 8\n")
    assert document("prune", state, "--yes", "--config", str(config))["requests"] == 1  # type: ignore[call-overload, index]


def test_prune_asks_and_where_nobody_can_be_asked_wants_a_word(state: Path, log: Path) -> None:
    result = run("prune", state, "--max-rows", "1")
    assert isinstance(result.exception, InvalidRequest)
    assert "--yes" in str(result.exception)
    assert count(log, "requests") == 5


def test_settings_say_where_the_state_is(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESPSD_STATE_DIR", str(state))
    assert CliRunner().invoke(db.app, ["check"]).exit_code == 0
    monkeypatch.setenv("RESPSD_STATE_DIRR", str(state))
    assert isinstance(CliRunner().invoke(db.app, ["check"]).exception, SettingsError)


def test_no_model_library_is_loaded(state: Path) -> None:
    script = (
        "import sys\n"
        "from respsd.cli import db\n"
        f"db.app(['prune', '--dry-run', '--state-dir', {str(state)!r}], standalone_mode=False)\n"
        "print({'torch', 'transformers', 'stable_baselines3'} & sys.modules.keys(), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n"


def test_a_folder_that_may_not_be_entered_is_an_answer_and_no_traceback(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch, state)
    result = run("check", state)
    assert result.exit_code == ExitCode.NOT_FOUND
    assert f"{state}: there is no database that you may look at" in result.output
    with pytest.raises(StoreUnavailable, match="Permission denied"):
        PolicyStore(state / "policies", read_only=True)
