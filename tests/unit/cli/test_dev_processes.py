"""The processes of `runyard dev`, before they are started."""

from __future__ import annotations

import io
import os
import pty
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from runyard.errors import InvalidInputError
from runyard_api.cli.dev import browser
from runyard_api.cli.dev.api_process import HOST, ApiProcess
from runyard_api.cli.dev.servers import check_servers

BOUND = 30.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def appears(path: Path) -> str:
    """The text of a file that another process makes."""
    deadline = time.monotonic() + BOUND
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path.read_text(encoding="utf-8")


def test_the_api_of_dev_on_port_0_names_the_port_that_it_gets() -> None:
    port = ApiProcess("postgresql://", "redis://", 0).port
    assert port > 0
    socket.create_server((HOST, port)).close()


def test_the_api_of_dev_takes_another_port_if_its_own_is_taken() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        assert ApiProcess("postgresql://", "redis://", port).port not in (0, port)


class TestBrowser:
    @pytest.fixture(autouse=True)
    def desktop(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        """A person at a desktop of Linux: in a terminal, on this machine, with a display."""
        for name in (
            "CI",
            "SSH_CONNECTION",
            "SSH_CLIENT",
            "SSH_TTY",
            "container",
            "KUBERNETES_SERVICE_HOST",
            "WAYLAND_DISPLAY",
        ):
            monkeypatch.delenv(name, raising=False)
        for name in ("WSL_DISTRO_NAME", "BROWSER"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("DISPLAY", ":0")
        process = SimpleNamespace(stdin=Terminal(), stdout=Terminal(), platform="linux", executable=sys.executable)
        monkeypatch.setattr(browser, "sys", process)
        monkeypatch.setattr(browser, "CONTAINER_FILES", ())
        return process

    def test_a_person_at_a_desktop_sees_a_page(self) -> None:
        assert browser.has_viewer()

    @pytest.mark.parametrize("stream", ["stdin", "stdout"])
    @pytest.mark.parametrize("kind", ["pipe", "none", "closed"])
    def test_without_a_terminal_nobody_sees_a_page(self, desktop: SimpleNamespace, stream: str, kind: str) -> None:
        """A service without a standard stream has None in its place."""
        pipe = io.StringIO()
        if kind == "closed":
            pipe.close()
        setattr(desktop, stream, None if kind == "none" else pipe)
        assert not browser.has_viewer()

    @pytest.mark.parametrize(
        ("variables", "seen"),
        [
            ({"CI": "true"}, False),
            ({"CI": "1"}, False),
            ({"CI": "false"}, True),
            ({"CI": ""}, True),
            ({"DISPLAY": ""}, False),
            ({"DISPLAY": "", "WAYLAND_DISPLAY": "wayland-0"}, True),
            ({"DISPLAY": "", "WSL_DISTRO_NAME": "Debian"}, True),
            ({"SSH_CONNECTION": "192.0.2.1 5 192.0.2.2 22"}, False),
            ({"SSH_TTY": "/dev/pts/3"}, False),
            ({"SSH_TTY": "/dev/pts/3", "WAYLAND_DISPLAY": "wayland-0"}, False),
            ({"SSH_TTY": "/dev/pts/3", "DISPLAY": "localhost:10.0"}, True),
            ({"container": "podman"}, False),
            ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
        ],
        ids=str,
    )
    def test_who_sees_a_page_on_linux(self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], seen: bool) -> None:
        """A display over ssh is that of the person if ssh forwards it. Another display stands at the other machine."""
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert browser.has_viewer() is seen

    def test_a_page_in_a_container_is_seen_by_nobody(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(browser, "CONTAINER_FILES", (str(tmp_path),))
        assert not browser.has_viewer()

    def test_a_mac_needs_no_display(self, desktop: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        desktop.platform = "darwin"
        monkeypatch.delenv("DISPLAY")
        assert browser.has_viewer()
        monkeypatch.setenv("SSH_TTY", "/dev/ttys001")
        assert not browser.has_viewer()

    def test_windows_shows_the_page_of_its_linux(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The Linux inside Windows has no display, and webbrowser finds no browser there."""
        program = script(tmp_path / "wslview", f'echo "$1" > {tmp_path}/opened.new; mv {tmp_path}/opened.new {tmp_path}/opened')
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("WSL_DISTRO_NAME", "Debian")
        browser.open_page("http://127.0.0.1:1/console")
        assert appears(tmp_path / "opened") == "http://127.0.0.1:1/console\n"

    def test_a_browser_for_terminals_gets_no_terminal(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """It has neither the streams nor the controlling terminal of `dev`."""
        text_browser = script(
            tmp_path / "w3m",
            f"{{ [ -t 0 ] || [ -t 1 ] || [ -t 2 ] || (: < /dev/tty) 2> /dev/null; }} && echo taken > {tmp_path}/w.new "
            f"|| echo none > {tmp_path}/w.new; mv {tmp_path}/w.new {tmp_path}/w",
        )
        monkeypatch.setenv("BROWSER", str(text_browser))
        program = (
            "import sys; from runyard_api.cli.dev.browser import open_page; "
            "open_page('http://127.0.0.1:1/'); sys.stdin.readline()"
        )
        child, terminal = pty.fork()
        if child == 0:
            os.execv(sys.executable, [sys.executable, "-c", program])
        try:
            assert appears(tmp_path / "w") == "none\n"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(terminal)

    def test_without_python_or_a_browser_no_page_opens(self, desktop: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BROWSER", "/missing")
        browser.open_page("http://127.0.0.1:1/console")
        desktop.executable = "/missing"
        browser.open_page("http://127.0.0.1:1/console")


def test_servers_elsewhere_are_refused_without_a_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNYARD_POSTGRES_URL", "postgresql://db.example/x")
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InvalidInputError, match="another machine"):
        check_servers()
