"""Addresses and the channel's options."""

from __future__ import annotations

import ipaddress

DEFAULT_ADDRESS = "127.0.0.1:7470"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

ChannelOptions = list[tuple[str, str | int]]


def target_of(address: str) -> str:
    """gRPC's name of an address `HOST:PORT` or `unix:PATH`; raises ValueError on anything else."""
    if address.startswith("unix:"):
        if address == "unix:":
            raise ValueError("address 'unix:' names no path")
        return address
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"address {address!r} is neither HOST:PORT nor unix:PATH")
    return address


def options_for(address: str) -> ChannelOptions:
    """Options of a channel: a daemon that is gone is noticed within a minute, even while a long call waits."""
    options: ChannelOptions = [
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ]
    if _is_loopback(address.rpartition(":")[0]):
        options.append(("grpc.enable_http_proxy", 0))  # http_proxy would take the call off this machine
    return options


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
