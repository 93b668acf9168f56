"""A finished calibration and the files that keep it, one for each machine setup that was measured.

Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog
from pydantic import TypeAdapter, ValidationError

from respsd.control.action import EAGLE3, OFF, Action
from respsd.control.batch_plan import BatchPlan, batch_plan
from respsd.control.cost_model import CostModel
from respsd.control.reserve import excess

log = structlog.get_logger(__name__)

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Setup:
    """What a calibration is true for; another value of any of these is another machine."""

    target: str
    drafter: str
    dtype: str
    device: str
    """cpu, or the GPU's name."""
    threads: int
    engine_version: str
    exact: bool = False
    """`engine.exact`."""
    shapes: str | None = None
    """`engine.shapes`, None for `auto`."""

    @property
    def fingerprint(self) -> str:
        """A short hash, for a file's name."""
        return hashlib.sha256(repr(asdict(self)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured."""

    setup: Setup
    model: CostModel
    largest: Action
    """Larger trees were not looked at."""
    created: str
    """UTC, ISO 8601."""
    seconds: float
    """How long it took."""
    format: int = FORMAT

    def covers(self, largest: Action) -> bool:
        """Whether actions up to this one were looked at."""
        return excess(largest, self.largest) is None

    def baseline(self, table: Iterable[Action]) -> Action:
        """The best constant action: of the table, `off`, or EAGLE-3's own default where the table reaches so far."""
        candidates = [OFF, *table]
        if self.covers(EAGLE3):
            candidates.append(EAGLE3)
        return self.model.best(dict.fromkeys(candidates))

    def plan(self, table: Iterable[Action], most: int) -> BatchPlan:
        """The baseline by the number of sequences that share a step, up to `most`."""
        actions = tuple(table)
        return batch_plan(self.model, self.baseline(actions), actions, most)


_READER = TypeAdapter(Calibration)


@dataclass(frozen=True, slots=True)
class CalibrationFiles:
    """The calibrations of one state directory."""

    folder: Path

    def path(self, setup: Setup) -> Path:
        """Where a setup's calibration is."""
        return self.folder / f"{setup.fingerprint}.json"

    def load(self, setup: Setup, largest: Action) -> Calibration | None:
        """The calibration of a setup; None where there is none that can be used for actions up to `largest`."""
        path = self.path(setup)
        try:
            found = _READER.validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as fault:
            log.warning("calibration_unreadable", file=str(path), fault=str(fault))
            return None
        return found if (found.setup, found.format) == (setup, FORMAT) and found.covers(largest) else None

    def save(self, calibration: Calibration) -> Path:
        """Write it whole or not at all, in place of an older one; raises OSError."""
        path = self.path(calibration.setup)
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".calibration-", dir=self.folder)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_READER.dump_json(calibration, indent=2))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return path
