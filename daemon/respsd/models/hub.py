"""The Hugging Face hub, asked once and with a short deadline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

ANSWER_SECONDS = 5.0


def check_reachable(repo: str, revision: str | None) -> None:
    """Raise ConnectionError unless the hub says within seconds that it has this repository.

    The hub's own downloads retry for minutes where no network is; this question is asked once.
    """
    import huggingface_hub

    try:
        huggingface_hub.HfApi().model_info(repo, revision=revision, timeout=ANSWER_SECONDS)
    except Exception as error:  # its HTTP library's errors share no public base class
        raise ConnectionError(_one_line(error)) from error


def download(repo: str, revision: str | None, files: Sequence[str], into: Path | None = None) -> Path:
    """Fetch the files that match the patterns; the folder that holds them, `into` or a snapshot in the hub's cache.

    Raises ConnectionError where the hub does not answer, refuses, or may not be asked (HF_HUB_OFFLINE).
    """
    import huggingface_hub

    check_reachable(repo, revision)
    try:
        return Path(
            huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=list(files), local_dir=into)
        )
    except Exception as error:
        raise ConnectionError(_one_line(error)) from error


def cached_snapshot(repo: str, revision: str | None) -> Path | None:
    """What an earlier download left in the hub's own cache, without asking the network."""
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(repo, revision=revision, local_files_only=True))
    except huggingface_hub.errors.LocalEntryNotFoundError:
        return None


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
