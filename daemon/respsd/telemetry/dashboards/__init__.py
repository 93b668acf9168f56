"""The Grafana board and the Prometheus alert rules that come with the daemon.

Both use the metrics of `telemetry` and no others; the board asks for its data source when it is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from respsd.errors import SettingsError

FILES = ("respsd-board.json", "respsd-alerts.yml")


def read(name: str) -> str:
    """One of FILES."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def write(folder: Path) -> Iterator[Path]:
    """Write the files into a folder, which is made; yields each; raises SettingsError where it cannot."""
    for name in FILES:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(read(name), encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"{folder / name} cannot be written: {error.strerror}") from error
        yield folder / name
