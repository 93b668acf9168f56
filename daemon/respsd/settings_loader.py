"""Makes `Settings` out of a TOML file, the environment and flags.

Precedence, weakest first: default, file, environment (`RESPSD_*`, nested by `__`, as in
`RESPSD_ENGINE__MAX_RUNNING=8`), flag. An unknown key is refused, whichever of the three it comes from, and every
error names the key, where it was set, its value and the limit.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource

from respsd.errors import SettingsError
from respsd.paths import is_file
from respsd.settings import Settings

Tree = dict[str, object]
"""Setting names to values, sections as trees of their own."""
Key = tuple[str, ...]

PREFIX = "RESPSD_"
FLAGS: Mapping[Key, str] = {
    ("target",): "--target",
    ("drafter",): "--drafter",
    ("device",): "--device",
    ("dtype",): "--dtype",
    ("listen",): "--listen",
    ("insecure",): "--insecure",
    ("metrics",): "--metrics",
    ("state_dir",): "--state-dir",
    ("engine", "exact"): "--exact",
    ("calibration", "at_start"): "--recalibrate",
}
"""Flags of `respsd serve`, by the setting that they set."""
SYSTEM_FILE = Path("/etc/respsd/respsd.toml")
NOT_SETTINGS = frozenset({"RESPSD_ADDRESS", "RESPSD_TOKEN", "RESPSD_CA", "RESPSD_CERTIFICATE", "RESPSD_KEY"})
"""Variables of the same prefix that client commands read: where the daemon is, and how they prove themselves."""
_SERVICE_LINK = re.compile(r"RESPSD_(SERVICE_(HOST|PORT.*)|PORT(_\d+_.*)?)")
"""What Kubernetes puts into every container beside a service named respsd; no setting may be named like it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checked settings and where each one that was set comes from."""

    settings: Settings
    file: Path | None
    origins: Mapping[Key, str]
    """A file's path, a variable's or a flag's name, by setting; what is not in it has its default."""


def load_settings(flags: Mapping[str, object] | None = None, *, config: Path | None = None) -> Settings:
    """Read all sources and return the checked settings; see `load_with_origins`."""
    return load_with_origins(flags, config=config).settings


def load_with_origins(flags: Mapping[str, object] | None = None, *, config: Path | None = None) -> Loaded:
    """Read all sources and return the checked settings with their origins.

    `flags` maps names (nested mappings for sections) to values; None means that the flag was not given. `config` must
    exist; without it the system's file, else the user's, is read if this user finds one. Raises SettingsError.
    """
    file = config or _default_file()
    return _checked(
        file,
        [
            (str(file), _read(file) if file else {}),
            ("environment", _environment()),
            ("flag", _given(flags or {})),
        ],
    )


def load_file(file: Path) -> Loaded:
    """One file's settings over the defaults, whatever environment and flags say; raises SettingsError."""
    return _checked(file, [(str(file), _read(file))])


def _checked(file: Path | None, sources: Sequence[tuple[str, Tree]]) -> Loaded:
    merged: Tree = {}
    origins: dict[Key, str] = {}
    for origin, tree in sources:
        _merge(merged, tree)
        origins.update((key, _origin(origin, key)) for key in _leaves(tree))
    try:
        return Loaded(Settings.model_validate(merged), file, origins)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(detail, origins) for detail in error.errors())) from error


def _default_file() -> Path | None:
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():
        base = Path.home() / ".config"
    return next((file for file in (SYSTEM_FILE, base / "respsd" / "respsd.toml") if is_file(file)), None)


def _read(file: Path) -> Tree:
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise SettingsError(f"{file}: the settings file cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: this is not TOML: {error}") from error


def _environment() -> Tree:
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in NOT_SETTINGS and not _SERVICE_LINK.fullmatch(name):
            section, _, inner = name.removeprefix(PREFIX).lower().partition("__")
            _check_variable(name, section, inner)
    return EnvSettingsSource(Settings)()


def _check_variable(name: str, section: str, inner: str) -> None:
    """Refuse what pydantic-settings would pass over: a variable that belongs to no field, or a section as a whole."""
    if section not in Settings.model_fields:
        raise SettingsError(f"{name}: there is no such setting{_nearest(section, Settings)}")
    if bool(inner) != (section_of(Settings.model_fields[section]) is not None):
        raise SettingsError(f"{name}: write {PREFIX}SECTION__NAME for a section's setting, {PREFIX}NAME for others")


def _given(flags: Mapping[str, object]) -> Tree:
    return {
        name: _given(value) if isinstance(value, Mapping) else value
        for name, value in flags.items()
        if value is not None
    }


def _merge(into: Tree, tree: Mapping[str, object]) -> None:
    for name, value in tree.items():
        below = into.get(name)
        if isinstance(below, dict) and isinstance(value, Mapping):
            _merge(below, value)
        else:
            into[name] = dict(value) if isinstance(value, Mapping) else value


def _leaves(tree: Mapping[str, object], above: Key = ()) -> Iterator[Key]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name)


def _origin(source: str, key: Key) -> str:
    if source == "environment":
        return PREFIX + "__".join(key).upper()
    if source == "flag":
        return FLAGS.get(key, "flag")
    return source


def _explain(detail: ErrorDetails, origins: Mapping[Key, str]) -> str:
    """One error as `engine.max_running (RESPSD_ENGINE__MAX_RUNNING): 0 is not allowed; ...`."""
    path = tuple(str(part) for part in detail["loc"])
    key = next((path[:size] for size in range(len(path), 0, -1) if path[:size] in origins), path)
    where = f" ({origins[key]})" if key in origins else ""
    name = ".".join(path)
    if detail["type"] == "extra_forbidden":
        return f"{name}{where}: there is no such setting{_nearest(path[-1], _model_at(path[:-1]))}"
    limit = detail["msg"].removeprefix("Value error, ")
    if not path:  # two settings that contradict each other: the message names them
        return limit
    return f"{name}{where}: {detail['input']!r} is not allowed; {limit[:1].lower()}{limit[1:]}"


def _nearest(name: str, model: type[BaseModel]) -> str:
    close = difflib.get_close_matches(name, model.model_fields, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(model.model_fields)}"


def _model_at(path: Key) -> type[BaseModel]:
    model: type[BaseModel] = Settings
    for part in path:
        model = section_of(model.model_fields[part]) or model
    return model


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a field holds; None for a single setting."""
    candidates = (field.annotation, *get_args(field.annotation))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
