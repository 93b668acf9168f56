"""Files of one JSON object a line that grow over many runs: a line is whole or does not exist.

What a kill or a full disk left behind the last newline is cut off before anything is appended, a failed append is
undone, and no two processes append at once.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from respsd.errors import TrainingDataError


class LineFile:
    """A file open for appending lines; each append is on the disk when it returns."""

    def __init__(self, path: Path) -> None:
        """Open or create the file; raises TrainingDataError where that fails."""
        self.path = path
        if path.suffix == ".gz":
            raise TrainingDataError(str(path), "cannot be appended to, for .gz means compressed; name it otherwise")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():
                raise TrainingDataError(str(path), "cannot be appended to: it is no file")
            self._file: BinaryIO = path.open("r+b" if path.exists() else "w+b", buffering=0)
        except OSError as error:
            raise self._not_opened(error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes with the process, however that ends
            self._end = _mend_last_line(self._file)
        except BlockingIOError as error:
            self._file.close()
            raise TrainingDataError(str(path), "is being appended to by another process") from error
        except OSError as error:
            self._file.close()
            raise self._not_opened(error) from error

    def append_lines(self, lines: Sequence[str]) -> None:
        """Write lines, given without newlines, and wait for the disk; on failure the file stays as it was."""
        content = "".join(line + "\n" for line in lines).encode()
        try:
            written = 0
            while written < len(content):
                written += self._file.write(content[written:])
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):  # where even that fails, the next run cuts the rest off
                self._file.truncate(self._end)
                self._file.seek(self._end)
            raise TrainingDataError(
                str(self.path), f"cannot be appended to: {error}; what was written before is kept, run again to go on"
            ) from error
        self._end += len(content)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _not_opened(self, error: OSError) -> TrainingDataError:
        return TrainingDataError(str(self.path), f"cannot be opened for appending: {error}")


def _mend_last_line(file: BinaryIO) -> int:
    """Make the file end with a newline and return its size: a torn last line goes, a whole one only gets its end."""
    end = _end_of_last_line(file)
    file.seek(end)
    rest = file.read()
    if _is_object(rest):
        file.write(b"\n")
        return file.tell()
    file.truncate(end)
    return file.seek(end)


def _end_of_last_line(file: BinaryIO, block: int = 1 << 16) -> int:
    """Offset behind the last newline; 0 where there is none."""
    position = file.seek(0, os.SEEK_END)
    while position > 0:
        start = max(0, position - block)
        file.seek(start)
        found = file.read(position - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0


def _is_object(line: bytes) -> bool:
    """Whether this is a whole JSON object, of which no beginning is one."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:  # UnicodeDecodeError is one
        return False
