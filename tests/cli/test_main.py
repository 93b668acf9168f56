from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from respsd import __version__
from respsd.cli import main
from respsd.errors import SettingsError, UnknownPolicy

runner = CliRunner()


def test_version() -> None:
    result = runner.invoke(main.app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"respsd {__version__}\n")


def test_help_names_the_commands() -> None:
    result = runner.invoke(main.app, ["--help"])
    assert result.exit_code == 0
    for command in ("serve", "generate", "policy", "doctor", "bench", "drafter"):
        assert f" {command} " in result.stdout


@pytest.mark.parametrize("arguments", [["frobnicate"], ["serve", "--frobnicate"], ["policy", "frobnicate"]])
def test_what_is_not_known_is_a_usage_error(arguments: list[str]) -> None:
    assert runner.invoke(main.app, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SettingsError("listen: 'x' is not allowed"), 2, "respsd: listen: 'x' is not allowed\n"),
        (UnknownPolicy("7"), 4, "respsd: there is no policy version or alias '7'\n"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int, line: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == code
    assert capsys.readouterr() == ("", line)


def test_a_refused_setting_ends_serve_with_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["respsd", "serve", "--listen", "nowhere"])
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "respsd: listen (--listen): 'nowhere' is not allowed; write HOST:PORT, for instance 127.0.0.1:7470\n"
    )


def test_openmp_is_told_not_to_spin_for_long_unless_the_user_says_so(monkeypatch) -> None:
    from respsd.cli import main as module

    monkeypatch.setattr(module, "app", lambda: None)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    module.main()
    assert int(module.os.environ["GOMP_SPINCOUNT"]) == 3000
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    module.main()
    assert module.os.environ["GOMP_SPINCOUNT"] == "7"
