"""`respsd completion`: the script that teaches a shell the commands and their flags."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # typer exports nothing by name


class Shell(StrEnum):
    """Those that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print the completion script of a shell.

    bash: respsd completion bash > ~/.local/share/bash-completion/completions/respsd
    """
    script = get_completion_script(prog_name="respsd", complete_var="_RESPSD_COMPLETE", shell=shell.value)
    sys.stdout.write(script.strip() + "\n")
