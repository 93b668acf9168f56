"""A target's or drafter's name, as settings write it, to the folder that holds its checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

import structlog

from respsd.errors import CheckpointError
from respsd.models import hub

log = structlog.get_logger(__name__)

_HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?)(@(?P<revision>[\w./-]+))?")
_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
_PICKLED_FILES = ("*.json", "*.bin")


def resolve_checkpoint(name: str) -> Path:
    """The folder of a checkpoint that is named by a path or by a hub id, `ID` or `ID@REVISION`.

    A folder of that name wins over a hub id. Raises CheckpointError saying what was looked for.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise CheckpointError(str(folder), "this folder holds no config.json, so it is no checkpoint")
        return folder
    match = _HUB_ID.fullmatch(name)
    if match is None:
        raise CheckpointError(name, "there is no such folder, and it is no hub id (OWNER/MODEL) either")
    return _from_hub(name, match["repo"], match["revision"])


def _from_hub(name: str, repo: str, revision: str | None) -> Path:
    try:
        log.info("asking the hub for a checkpoint", name=name)
        folder = hub.download(repo, revision, _FILES)
        if not any(folder.glob("*.safetensors")):
            folder = hub.download(repo, revision, _PICKLED_FILES)
    except ConnectionError as error:
        cached = hub.cached_snapshot(repo, revision)
        if cached is None:
            raise CheckpointError(
                name,
                f"there is no such folder here, and the hub did not give it ({error}); "
                "download it on a connected machine and name its folder",
            ) from error
        log.warning("the hub does not answer; using the copy that an earlier download left", name=name)
        return cached
    return folder
