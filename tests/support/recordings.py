"""Parts of a recording of the reference implementation, for tests of what is built on the comparison.

The whole of it is compared in `bench/test_reference.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

CASES = 2


def first_cases(recording: Path, folder: Path) -> Path:
    """A recording with the first cases of another one, whose models it uses."""
    folder.mkdir()
    for name in ("target", "draft"):
        (folder / name).symlink_to(recording / name)
    for name in ("trees.json", "decodes.json"):
        cases = json.loads((recording / name).read_text())
        (folder / name).write_text(json.dumps(cases[:CASES]))
    return folder
