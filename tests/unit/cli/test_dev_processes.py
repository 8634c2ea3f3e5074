"""The processes of `runyard dev`, before they are started."""

from __future__ import annotations

import socket

import pytest

from runyard_api.cli.dev import browser
from runyard_api.cli.dev.api_process import HOST, ApiProcess


def test_the_api_of_dev_on_port_0_names_the_port_that_it_gets() -> None:
    port = ApiProcess("postgresql://", "redis://", 0).port
    assert port > 0
    socket.create_server((HOST, port)).close()


def test_the_api_of_dev_takes_another_port_if_its_own_is_taken() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        assert ApiProcess("postgresql://", "redis://", port).port not in (0, port)


@pytest.mark.parametrize(("input", "output"), [(False, True), (True, False)])
def test_without_a_terminal_nobody_sees_a_page(monkeypatch: pytest.MonkeyPatch, input: bool, output: bool) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: input, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: output, raising=False)
    assert not browser.has_terminal()


def test_without_python_or_a_browser_no_page_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER", "/missing")
    browser.open_page("http://127.0.0.1:1/console")
    monkeypatch.setattr("sys.executable", "/missing")
    browser.open_page("http://127.0.0.1:1/console")
