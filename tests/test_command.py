"""The process that `respsd` and `python -m respsd` start: an interrupt ends it with one code, whenever it comes."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

import pytest

from respsd import __main__ as command
from respsd.cli import main
from respsd.cli.exit_codes import ExitCode


class InterruptedLoad(MetaPathFinder):
    """Interrupts whoever loads the command line."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Nothing, but for the command line, which is not found in time."""
        if name == "respsd.cli.main":
            raise KeyboardInterrupt
        return None


def ended_with() -> object:
    """The code that the command exits with."""
    with pytest.raises(SystemExit) as caught:
        command.main()
    return caught.value.code


def test_an_interrupt_while_the_command_loads_is_its_exit_code_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "respsd.cli.main")
    monkeypatch.setattr(sys, "meta_path", [InterruptedLoad(), *sys.meta_path])
    assert ended_with() == ExitCode.INTERRUPTED


def test_an_interrupt_while_it_runs_is_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "main", interrupted)
    assert ended_with() == ExitCode.INTERRUPTED == command.INTERRUPTED
