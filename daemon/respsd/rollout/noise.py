"""Measured noise: what the windows of real requests did under one and the same action.

A noise file is one JSON document: `about` says what was measured and where, `requests` holds for each request its
windows in order, each `[steps, tokens, nanoseconds]` without the first step and a cut last one (see `pairing`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import fmean, pstdev

from respsd.errors import SettingsError
from respsd.rollout.pairing import BLOCKS, Measured, observe

FORMAT = 1
_DEFAULT = "default_noise.json"


@dataclass(frozen=True, slots=True)
class Noise:
    """Windows to simulate with."""

    about: Mapping[str, object]
    requests: tuple[tuple[Measured, ...], ...]
    """By request, then by window in order."""

    def figures(self) -> dict[str, float]:
        """The noise in numbers: how much the log ratio of equal policies scatters, for a pair and for a quad."""
        quads = [each for windows in self.requests for each in _ratios(windows, BLOCKS)]
        pairs = [each for windows in self.requests for each in _ratios(windows, 2)]
        speeds = [_log_speed(windows) for windows in self.requests]
        return {
            "requests": len(self.requests),
            "windows": sum(map(len, self.requests)),
            "windows_per_request": fmean(map(len, self.requests)),
            "quads": len(quads),
            "quad_log_ratio_sd": pstdev(quads),
            "quad_log_ratio_mean": fmean(quads),
            "pair_log_ratio_sd": pstdev(pairs),
            "request_log_speed_sd": pstdev(speeds),
            "tokens_per_second": math.exp(fmean(speeds)),
        }

    def to_json(self) -> str:
        """The file's text."""
        rows = [[[each.steps, each.tokens, each.ns] for each in windows] for windows in self.requests]
        lines = ",\n".join(json.dumps(row) for row in rows)
        return f'{{"format": {FORMAT},\n"about": {json.dumps(dict(self.about))},\n"requests": [\n{lines}\n]}}\n'


def read_noise(path: Path | None = None) -> Noise:
    """A noise file, or the one that the package has; raises SettingsError naming the file and the fault."""
    name = str(path or _DEFAULT)
    try:
        text = path.read_text() if path else resources.files(__package__).joinpath(_DEFAULT).read_text()
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise SettingsError(f"{name}: format is {document['format']!r}; this code reads {FORMAT}")
        requests = tuple(tuple(Measured(*map(int, each)) for each in windows) for windows in document["requests"])
        noise = Noise(document["about"], requests)
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise SettingsError(f"{name}: is no noise file: {fault}") from fault
    if not any(len(windows) >= BLOCKS for windows in requests):
        raise SettingsError(f"{name}: no request has {BLOCKS} windows")
    return noise


def write_noise(noise: Noise, path: Path) -> None:
    """Write a noise file; raises SettingsError where it cannot be."""
    try:
        path.write_text(noise.to_json())
    except OSError as fault:
        raise SettingsError(f"{path}: cannot be written: {fault}") from fault


def _ratios(windows: Sequence[Measured], blocks: int) -> list[float]:
    """Log ratios of equal policies, of consecutive quads (ABBA) or pairs (AB)."""
    order = (False, True, True, False)
    found = []
    for first in range(0, len(windows) - blocks + 1, blocks):
        quad = [*windows[first : first + blocks], *[Measured()] * (BLOCKS - blocks)]
        observation = observe(order, [quad])
        if observation is not None:
            found.append(observation.log_ratio)
    return found


def _log_speed(windows: Sequence[Measured]) -> float:
    return math.log(sum(each.tokens for each in windows) * 1e9 / sum(each.ns for each in windows))
