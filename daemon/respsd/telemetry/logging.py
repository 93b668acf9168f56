"""The daemon's log: one JSON document a line on standard error, or readable lines on a terminal.

Lines of the standard library's loggers (grpc, alembic, transformers, warnings) take the same road. Prompts and
outputs are never logged; tracebacks leave out local variables for the same reason.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import Processor

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_CHATTY = ("apscheduler", "asyncio", "filelock", "httpcore", "httpx", "httpx2", "httpcore2", "urllib3")
"""Libraries whose info and debug lines say nothing to an operator."""


def configure_logging(level: str = "info", form: str = "auto", stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging; a later call replaces an earlier one.

    `level` is debug, info, warning or error. `form` is json, console, or auto: console where `stream` (default:
    standard error) is a terminal.
    """
    stream = stream or sys.stderr
    console = form == "console" or (form == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # loggers of modules outlive a reconfiguration
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.PositionalArgumentsFormatter()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(_console_renderers(stream) if console else _json_renderers()),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    _adopt_transformers(progress_bars=console)


def _json_renderers() -> list[Processor]:
    without_locals = ExceptionDictTransformer(show_locals=False)
    return [
        structlog.processors.ExceptionRenderer(without_locals),
        structlog.processors.JSONRenderer(default=str),
    ]


def _console_renderers(stream: TextIO) -> list[Processor]:
    colors = stream.isatty() and not os.environ.get("NO_COLOR")
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]


def _adopt_transformers(*, progress_bars: bool) -> None:
    """Take away transformers' own handler, and the progress bars that would stand between JSON lines."""
    if not progress_bars:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()
    if not progress_bars:
        transformers_logging.disable_progress_bar()
