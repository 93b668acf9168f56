"""Addresses as people write them: `HOST:PORT`, `[IPv6]:PORT`, `unix:PATH`."""

from __future__ import annotations

import ipaddress


def split_host_port(text: str) -> tuple[str, int]:
    """Host (without brackets) and port; raises ValueError saying what is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError("write HOST:PORT, for instance 127.0.0.1:7470")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("write an IPv6 host in brackets, for instance [::1]:7470")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError("the port must be a number from 0 to 65535")
    return host, int(port)


def check_host_port(text: str) -> str:
    """Return the text, or raise ValueError where it is no HOST:PORT."""
    split_host_port(text)
    return text


def check_listen(text: str) -> str:
    """Return the text, or raise ValueError where it is neither HOST:PORT nor unix:PATH."""
    if text.startswith("unix:"):
        if not text.removeprefix("unix:"):
            raise ValueError("name a path after unix:")
        return text
    return check_host_port(text)


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches a HOST:PORT; a name other than localhost counts as public."""
    host, _ = split_host_port(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
