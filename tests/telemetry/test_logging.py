from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import structlog

from respsd.telemetry.logging import configure_logging


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_document_with_utc_time() -> None:
    stream = io.StringIO()
    configure_logging("info", "auto", stream)
    structlog.get_logger("respsd.x").info("ready", address="127.0.0.1:1")
    (line,) = lines(stream)
    stamp = str(line.pop("timestamp"))
    assert line == {"event": "ready", "address": "127.0.0.1:1", "level": "info", "logger": "respsd.x"}
    assert stamp.endswith("Z")
    assert abs(datetime.fromisoformat(stamp) - datetime.now(UTC)) < timedelta(minutes=5)


def test_less_severe_lines_than_the_level_are_left_out() -> None:
    stream = io.StringIO()
    configure_logging("warning", "json", stream)
    structlog.get_logger().info("no")
    logging.getLogger("alembic").info("no")
    structlog.get_logger().warning("yes")
    assert [line["event"] for line in lines(stream)] == ["yes"]


def test_context_is_on_every_line_until_it_is_cleared() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    structlog.contextvars.bind_contextvars(request_id="r1")
    structlog.get_logger().info("a")
    logging.getLogger("other").warning("b")
    structlog.contextvars.clear_contextvars()
    structlog.get_logger().info("c")
    assert [line.get("request_id") for line in lines(stream)] == ["r1", "r1", None]


def test_library_loggers_and_warnings_take_the_same_road() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    logging.getLogger("grpc").warning("lost %d of %s", 3, "x")
    warnings.warn("careful", UserWarning, stacklevel=1)
    from transformers.utils import logging as transformers_logging

    transformers_logging.get_logger("transformers.modeling").warning("a weight is missing")
    found = lines(stream)
    assert [line["logger"] for line in found] == ["grpc", "py.warnings", "transformers.modeling"]
    assert found[0]["event"] == "lost 3 of x"
    assert "careful" in str(found[1]["event"])


def test_tracebacks_are_structured_and_keep_local_values_out() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    try:
        prompt = "a private text"
        raise RuntimeError("broken")
    except RuntimeError:
        structlog.get_logger().exception("a request failed")
    (line,) = lines(stream)
    assert line["exception"][0]["exc_type"] == "RuntimeError"
    assert prompt not in stream.getvalue()


def test_a_terminal_gets_lines_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    configure_logging("info", "auto", stream)
    structlog.get_logger("respsd.x").info("ready", address="a")
    assert "ready" in stream.getvalue()
    assert "address=a" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    monkeypatch.delenv("NO_COLOR")
    configure_logging("info", "auto", stream)
    structlog.get_logger("respsd.x").info("ready")
    assert "\x1b" in stream.getvalue()


def test_configuring_again_replaces_the_stream() -> None:
    first, second = io.StringIO(), io.StringIO()
    logger = structlog.get_logger()
    configure_logging("info", "json", first)
    logger.info("one")
    configure_logging("info", "json", second)
    logger.info("two")
    assert [line["event"] for line in lines(first)] == ["one"]
    assert [line["event"] for line in lines(second)] == ["two"]
