from __future__ import annotations

import pytest

from respsd.address import check_listen, split_host_port


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:7470", ("127.0.0.1", 7470)), ("localhost:0", ("localhost", 0)), ("[::1]:65535", ("::1", 65535))],
)
def test_host_and_port_are_split(text: str, expected: tuple[str, int]) -> None:
    assert split_host_port(text) == expected


@pytest.mark.parametrize("text", ["", "7470", ":7470", "host:", "host:x", "host:65536", "host:-1", "::1:7470"])
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|port must be|brackets"):
        split_host_port(text)


def test_a_socket_file_needs_a_path() -> None:
    assert check_listen("unix:/run/respsd/respsd.sock") == "unix:/run/respsd/respsd.sock"
    with pytest.raises(ValueError, match="path after unix:"):
        check_listen("unix:")
