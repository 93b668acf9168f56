"""The update as a process: `python -m respsd.tuning.job` reads its order from standard input and prints a report.

It makes way for others first (niceness, one thread, a bound on its memory), and ends by itself when whoever started it
is gone.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from respsd.settings_learning import LearningSettings
from respsd.tuning.baseline_speed import SpeedPoint
from respsd.tuning.report import UpdateReport

_LOOK_SECONDS = 0.5
_ORPHANED = 3
"""Exit code of a job whose parent has gone."""


@dataclass(frozen=True, slots=True)
class UpdateOrder:
    """Everything that the process needs to know."""

    store: Path
    log: Path
    settings: LearningSettings
    seed: int
    code_version: str
    calibration: tuple[SpeedPoint, ...] = ()

    def to_json(self) -> str:
        """For the process's standard input."""
        return json.dumps(
            {
                "store": str(self.store),
                "log": str(self.log),
                "settings": self.settings.model_dump(),
                "seed": self.seed,
                "code_version": self.code_version,
                "calibration": [asdict(point) for point in self.calibration],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> UpdateOrder:
        """Read `to_json`'s form."""
        fields = json.loads(text)
        return cls(
            store=Path(fields["store"]),
            log=Path(fields["log"]),
            settings=LearningSettings.model_validate(fields["settings"]),
            seed=fields["seed"],
            code_version=fields["code_version"],
            calibration=tuple(SpeedPoint(**point) for point in fields["calibration"]),
        )


def main() -> None:
    """Run one update; the report is the only line on standard output."""
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    order = UpdateOrder.from_json(sys.stdin.readline())
    os.nice(order.settings.nice)
    report = _run(order)
    sys.stdout.write(json.dumps(report.to_dict(), allow_nan=False) + "\n")


def _run(order: UpdateOrder) -> UpdateReport:
    try:
        import torch  # slow, and here only: the order is read and the process niced by now

        from policy_store import PolicyStore
        from respsd.tuning.experience import LoggedExperience
        from respsd.tuning.update import UpdateContext, update_learner

        # Allocations beyond it fail; the parent's own watch on the memory in use is for what this does not count.
        # Not before the imports: a library that cannot be loaded wholly, such as CUDA's, may crash the process.
        limit = order.settings.memory_limit_mib << 20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        torch.set_num_threads(1)
        with PolicyStore(order.store) as store:
            return update_learner(
                UpdateContext(
                    store=store,
                    experience=LoggedExperience(order.log),
                    settings=order.settings,
                    seed=order.seed,
                    code_version=order.code_version,
                    calibration=order.calibration,
                )
            )
    except MemoryError as fault:
        return UpdateReport.failed("memory_limit", str(fault) or "an allocation failed")
    except Exception as fault:  # noqa: BLE001 - whatever it is, the parent is to hear of it
        out_of_memory = "can't allocate memory" in str(fault) or "Cannot allocate memory" in str(fault)
        return UpdateReport.failed("memory_limit" if out_of_memory else "error", f"{type(fault).__name__}: {fault}")


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(_ORPHANED)


if __name__ == "__main__":
    main()
