"""The processes of `runyard dev`, before they are started."""

from __future__ import annotations

import socket

from runyard_api.cli.dev.api_process import HOST, ApiProcess


def test_the_api_of_dev_on_port_0_names_the_port_that_it_gets() -> None:
    port = ApiProcess("postgresql://", "redis://", 0).port
    assert port > 0
    socket.create_server((HOST, port)).close()


def test_the_api_of_dev_takes_another_port_if_its_own_is_taken() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        assert ApiProcess("postgresql://", "redis://", port).port not in (0, port)
