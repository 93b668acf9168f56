"""Describes every setting out of `Settings` itself: its values, default, variable, flag, and what it is for."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from respsd.control.action import Action
from respsd.settings import Settings
from respsd.settings_loader import FLAGS, PREFIX, Key, section_of
from respsd.settings_reload import is_live

_WORDS = ("auto", "argmax", "unlimited")
"""Words that some settings take for None."""
_NAMES: dict[Any, str] = {int: "integer", float: "number", str: "text", bool: "true or false", Path: "path"}
_LIMITS = ((Ge, "ge", "at least {}"), (Gt, "gt", "over {}"), (Le, "le", "at most {}"), (Lt, "lt", "under {}"))


@dataclass(frozen=True, slots=True)
class SettingDoc:
    """One setting, in words."""

    key: Key
    values: str
    default: str
    description: str
    is_live: bool
    """Whether a running daemon takes a new value on SIGHUP."""

    @property
    def name(self) -> str:
        """As messages say it: `engine.max_running`."""
        return ".".join(self.key)

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + "__".join(self.key).upper()

    @property
    def flag(self) -> str | None:
        """The flag of `respsd serve`, where there is one."""
        return FLAGS.get(self.key)


def describe(model: type[BaseModel] = Settings, above: Key = ()) -> Iterator[SettingDoc]:
    """Every setting in the order of the settings' classes, a section's own after those outside sections."""
    sections: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        section = section_of(field)
        if section is not None:
            sections.append((name, section))
            continue
        key = (*above, name)
        description = " ".join((field.description or "").split())
        yield SettingDoc(key, _values(field), default_text(field), description, is_live(key))
    for name, section in sections:
        yield from describe(section, (*above, name))


def value_text(field: FieldInfo, value: object) -> str:
    """A setting's value as a person would write it into the file, without quotes."""
    if value is None:
        return _none_word(field)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


def default_text(field: FieldInfo) -> str:
    """The default as `value_text` writes it; one that depends on the machine is said to."""
    return "by machine" if field.default_factory is not None else value_text(field, field.default)


def markdown() -> str:
    """The reference of all settings, a table for each section."""
    lines = [_INTRODUCTION]
    section = ""
    for doc in describe():
        opened = doc.key[0] if len(doc.key) > 1 else "General"
        if opened != section:
            section = opened
            heading = section if section == "General" else f"[{section}]"
            lines += ["", f"## {heading}", "", "| setting | values | default | what it is |", "|---|---|---|---|"]
        lines.append(_row(doc))
    return "\n".join(lines) + "\n"


_INTRODUCTION = """\
# Settings

Made by `respsd config reference`. A value comes, weakest first, from its default, from the settings file (TOML), from
the environment, or from a flag of `respsd serve`; `respsd config show --origin` tells which. The variable of `name` in
`[section]` is `RESPSD_SECTION__NAME`, of a general setting `RESPSD_NAME`. Settings marked *live* are read again on
SIGHUP (`systemctl reload respsd`); the others need a restart, and the log says so."""


def _row(doc: SettingDoc) -> str:
    name = f"`{doc.key[-1]}`" + (f", `{doc.flag}`" if doc.flag else "") + (" (live)" if doc.is_live else "")
    cells = (name, doc.values, f"`{doc.default}`" if doc.default else "", doc.description)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _values(field: FieldInfo) -> str:
    words = [f"`{word}`" for word in _words(field)]
    limits = [text.format(getattr(part, name)) for kind, name, text in _LIMITS for part in _parts(field, kind)]
    if any(part.min_length for part in _parts(field, MinLen)):
        limits.append("not empty")
    return " or ".join([", ".join([_kind(field.annotation), *limits]), *words])


def _kind(annotation: Any) -> str:
    """What sort of value an annotation allows."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_kind(choice) for choice in arguments if choice is not type(None))
    if origin is tuple:
        return f"list of {_kind(arguments[0])}s"
    if annotation is Action:
        return "`off` or `TT,d,k`"
    return _NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _parts(field: FieldInfo, kind: type) -> Iterator[Any]:
    """Constraints of one kind on the field itself or inside its annotation."""
    yield from (part for part in field.metadata if isinstance(part, kind))
    pending: list[Any] = [field.annotation]
    while pending:
        annotation = pending.pop()
        if get_origin(annotation) is Annotated:
            for part in annotation.__metadata__:
                if isinstance(part, kind):
                    yield part
                elif isinstance(part, FieldInfo):
                    yield from (inner for inner in part.metadata if isinstance(inner, kind))
            pending.append(get_args(annotation)[0])
        elif get_origin(annotation) in (Union, types.UnionType, tuple):
            pending += [inner for inner in get_args(annotation) if inner is not Ellipsis]


def _words(field: FieldInfo) -> list[str]:
    """The words that the field reads as None."""
    annotated: Any = Annotated[field.annotation, "", *field.metadata]
    adapter: TypeAdapter[Any] = TypeAdapter(annotated)
    return [word for word in _WORDS if _reads_none(adapter, word)]


def _reads_none(adapter: TypeAdapter[Any], word: str) -> bool:
    try:
        return adapter.validate_python(word) is None
    except ValidationError:
        return False


def _none_word(field: FieldInfo) -> str:
    return next(iter(_words(field)), "none")
