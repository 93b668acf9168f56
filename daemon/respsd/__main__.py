"""Where the `respsd` command and `python -m respsd` begin: an interrupt ends them quietly, also while they load."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""`ExitCode.INTERRUPTED`, which is not loaded yet."""


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        from respsd.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
