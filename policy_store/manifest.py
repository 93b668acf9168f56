"""The manifest: what a policy version is, as JSON with a fixed set of keys.

`ManifestDraft` is what the author of a version knows; the store adds number, time and hash and makes it a `Manifest`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal, cast

from policy_store.errors import InvalidManifest
from policy_store.fields import FieldReader

FORMAT_VERSION = 1

Kind = Literal["static", "resps"]
Triple = tuple[int, int, int]
"""An action: total_tokens, depth, top_k; plain decoding is (1, 0, 0)."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The actor's hidden layers, in the tensor names of Stable-Baselines3's MlpPolicy."""

    hidden_sizes: tuple[int, ...] = (128, 128)
    activation: str = "tanh"

    @classmethod
    def read(cls, fields: FieldReader) -> Architecture:
        return cls(fields.integers("hidden_sizes"), fields.text("activation"))


@dataclass(frozen=True, slots=True)
class Normaliser:
    """Frozen statistics: the network sees `(observation - mean) / std`."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def read(cls, fields: FieldReader) -> Normaliser:
        return cls(fields.floats("mean"), fields.floats("std"))


@dataclass(frozen=True, slots=True)
class Golden:
    """An observation and the logits that the weights gave for it when the version was made."""

    observation: tuple[float, ...]
    logits: tuple[float, ...]

    @classmethod
    def read(cls, fields: FieldReader) -> Golden:
        return cls(fields.floats("observation"), fields.floats("logits"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestDraft:
    """A version before it has a number."""

    kind: Kind
    action_table: tuple[Triple, ...]
    """Output i of the policy is `action_table[i]`; a static version's table is its one action."""
    parent: int | None = None
    action: Triple | None = None
    """What a static version always chooses."""
    architecture: Architecture | None = None
    observation_schema: Mapping[str, object] | None = None
    """The schema as its owner describes it; the store reads `width` and keeps the rest."""
    normaliser: Normaliser | None = None
    golden: Golden | None = None
    training_window: Mapping[str, object] | None = None
    """Which rows the version was trained on, as its trainer describes it."""
    origin: Mapping[str, object] | None = None
    """Of an imported version: what it was in the store that it came from. Its parent there is no parent here."""
    code_version: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def observation_width(self) -> int:
        """Numbers in an observation; 0 for a static version, which looks at none."""
        return 0 if self.observation_schema is None else cast("int", self.observation_schema["width"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(ManifestDraft):
    """A published version's manifest."""

    version: int
    created: str
    """RFC 3339, UTC."""
    weights_sha256: str | None
    """Of `policy.safetensors`; None for a static version."""

    @classmethod
    def publish(cls, draft: ManifestDraft, *, version: int, created: str, weights_sha256: str | None) -> Manifest:
        """Complete a draft."""
        known = {field.name: getattr(draft, field.name) for field in fields(ManifestDraft)}
        return cls(**known, version=version, created=created, weights_sha256=weights_sha256)

    def to_json(self) -> bytes:
        """The file's bytes: one key a line, so that people can read and compare them."""
        document = {"format_version": FORMAT_VERSION, **asdict(self)}
        if self.origin is None:
            del document["origin"]  # as releases that knew no imports wrote it
        return ("{\n" + ",\n".join(_line(key, value) for key, value in sorted(document.items())) + "\n}\n").encode()

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Read a manifest; raises InvalidManifest on anything that `to_json` would not have written."""
        read = FieldReader.parse(text)
        if (found := read.integer("format_version")) != FORMAT_VERSION:
            raise InvalidManifest("format_version", f"is {found}; this code reads {FORMAT_VERSION}")
        read.only({"format_version", *(field.name for field in fields(cls))})
        return cls(
            kind=cast("Kind", read.text("kind")),
            action_table=read.triples("action_table"),
            parent=read.optional("parent", read.integer),
            action=read.optional("action", read.triple),
            architecture=read.section("architecture", Architecture.read),
            observation_schema=read.optional("observation_schema", read.mapping),
            normaliser=read.section("normaliser", Normaliser.read),
            golden=read.section("golden", Golden.read),
            training_window=read.optional("training_window", read.mapping),
            origin=read.optional("origin", read.mapping) if read.has("origin") else None,
            code_version=read.text("code_version"),
            note=read.text("note"),
            version=read.integer("version"),
            created=read.text("created"),
            weights_sha256=read.optional("weights_sha256", read.text),
        )


def _line(key: str, value: object) -> str:
    try:
        return f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}"
    except (TypeError, ValueError) as fault:
        raise InvalidManifest(key, f"cannot be written as JSON: {fault}") from fault


def _check(draft: ManifestDraft) -> None:
    """Raise InvalidManifest where the parts contradict each other."""
    if draft.kind not in ("static", "resps"):
        raise InvalidManifest("kind", f"is {draft.kind!r}, not 'static' or 'resps'")
    if not draft.action_table:
        raise InvalidManifest("action_table", "is empty")
    if len(set(draft.action_table)) != len(draft.action_table):
        raise InvalidManifest("action_table", "holds an action twice")
    for action in draft.action_table:
        _check_action(action)
    if draft.kind == "static":
        _check_static(draft)
    else:
        _check_resps(draft)


def _check_action(action: Triple) -> None:
    total_tokens, depth, top_k = action
    if action != (1, 0, 0) and (total_tokens < 2 or depth < 0 or top_k < 1):
        raise InvalidManifest("action_table", f"holds {list(action)}, which is no action")


def _check_static(draft: ManifestDraft) -> None:
    if draft.action is None or draft.action_table != (draft.action,):
        raise InvalidManifest("action", f"is {draft.action}; a static version's table is exactly its action")
    for name in ("architecture", "observation_schema", "normaliser", "golden"):
        if getattr(draft, name) is not None:
            raise InvalidManifest(name, "is set on a static version")


def _check_resps(draft: ManifestDraft) -> None:
    if draft.action is not None:
        raise InvalidManifest("action", "is set on a version that chooses by its weights")
    if draft.architecture is None or draft.observation_schema is None or draft.golden is None:
        raise InvalidManifest("architecture, observation_schema or golden", "is missing")
    if draft.architecture.activation != "tanh":
        raise InvalidManifest("architecture.activation", f"is {draft.architecture.activation!r}, not 'tanh'")
    if not draft.architecture.hidden_sizes or min(draft.architecture.hidden_sizes) < 1:
        raise InvalidManifest("architecture.hidden_sizes", f"is {list(draft.architecture.hidden_sizes)}")
    width = draft.observation_schema.get("width")
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise InvalidManifest("observation_schema.width", f"is {width!r}, not a positive integer")
    _check_numbers("golden.observation", draft.golden.observation, width)
    _check_numbers("golden.logits", draft.golden.logits, len(draft.action_table))
    if draft.normaliser is not None:
        _check_numbers("normaliser.mean", draft.normaliser.mean, width)
        _check_numbers("normaliser.std", draft.normaliser.std, width)
        if min(draft.normaliser.std) <= 0:
            raise InvalidManifest("normaliser.std", "holds a number that is not positive")


def _check_numbers(name: str, numbers: tuple[float, ...], length: int) -> None:
    if len(numbers) != length:
        raise InvalidManifest(name, f"has {len(numbers)} numbers, not {length}")
    if not all(map(math.isfinite, numbers)):
        raise InvalidManifest(name, "holds a number that is not finite")
