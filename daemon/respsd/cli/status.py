"""`respsd status` and `respsd ps`: how the daemon does, and what it is doing."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from respsd.cli.connection import TIMEOUT_SECONDS, AddressOption, connected
from respsd.cli.exit_codes import ExitCode
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_table

if TYPE_CHECKING:
    from respsd_client import DaemonStatus, Load, RunningRequest


def status(*, address: AddressOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Tell what the daemon serves and how it does; exit code 0: it takes requests, 1: it does not, 3: there is none."""
    with connected(address) as client:
        found = client.status(timeout=TIMEOUT_SECONDS)
    if output is OutputFormat.JSON:
        print_json(status_document(found))
    else:
        print_table(("what", "value"), _status_rows(found, datetime.now(UTC)))
    raise typer.Exit(ExitCode.OK if found.load.accepting else ExitCode.FAILED)


def ps(*, address: AddressOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """List the requests that are queued or generated now."""
    with connected(address) as client:
        requests = client.list_requests(timeout=TIMEOUT_SECONDS)
    if output is OutputFormat.JSON:
        print_json([asdict(request) for request in requests])
    else:
        headers = ("request", "caller", "state", "age", "prompt", "generated", "of")
        print_table(headers, [_request_row(request) for request in requests])


def status_document(found: DaemonStatus) -> dict[str, object]:
    """The status as `-o json` prints it."""
    started = found.started.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {**asdict(found), "started": started, "load": load_document(found.load)}


def load_document(load: Load) -> dict[str, object]:
    """The load as JSON can say it: no number stands for an engine that died, so that is null."""
    age = load.seconds_since_progress
    return {**asdict(load), "seconds_since_progress": age if math.isfinite(age) else None}


def policies_text(found: DaemonStatus) -> str:
    """What each alias serves, in a line."""
    serving = (f"{alias} {'built-in' if version is None else version}" for alias, version in found.policies.items())
    return ", ".join(serving)


def duration(seconds: float) -> str:
    """A length of time in its two largest units."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    return (
        f"{whole // 3600}h {whole % 3600 // 60}m" if whole < 86_400 else f"{whole // 86_400}d {whole % 86_400 // 3600}h"
    )


def _status_rows(found: DaemonStatus, now: datetime) -> list[tuple[str, object]]:
    load = found.load
    kv_share = load.kv_tokens_reserved / load.kv_tokens_total if load.kv_tokens_total else 0.0
    return [
        ("phase", found.phase),
        ("health", "good" if found.healthy else f"no progress for {duration_or_never(load.seconds_since_progress)}"),
        ("target", found.target),
        ("drafter", found.drafter or "none: decoding is plain"),
        ("runs on", f"{found.device}, {found.dtype}"),
        ("addresses", ", ".join(found.addresses)),
        ("policies", policies_text(found)),
        ("learning", "on" if found.learning_paused is None else f"paused: {found.learning_paused}"),
        *(("rollout", line) for line in found.rollout),
        *(("put right", line) for line in found.notices),
        ("requests", f"{load.running} of {load.max_running} running, {load.waiting} of {load.max_waiting} waiting"),
        *(("queue", text) for text in _queue_texts(load)),
        ("KV cache", f"{kv_share:.0%} of {load.kv_tokens_total} tokens reserved"),
        ("up", duration((now - found.started).total_seconds())),
        ("version", f"{found.daemon_version}, pid {found.pid}"),
    ]


def _queue_texts(load: Load) -> list[str]:
    """What there is to say of requests that wait, if any do."""
    if not load.waiting:
        return []
    room = "" if load.max_waiting_tokens is None else f" of {load.max_waiting_tokens}"
    shares = ", ".join(f"{count} {name}" for name, count in load.waiting_by_priority.items() if count)
    wait = load.expected_wait_seconds
    ahead = "" if wait is None else f"; a new request would wait {duration(wait)}"
    return [
        f"{shares}; {load.waiting_tokens}{room} tokens; the oldest for {duration(load.oldest_waiting_seconds)}{ahead}"
    ]


def duration_or_never(seconds: float) -> str:
    """`duration`, or what an infinite one means."""
    return duration(seconds) if math.isfinite(seconds) else "ever: the engine died"


def _request_row(request: RunningRequest) -> tuple[object, ...]:
    return (
        request.request_id,
        request.caller,
        request.state,
        duration(request.age_seconds),
        request.prompt_tokens or None,
        request.generated_tokens,
        request.max_new_tokens or None,
    )
