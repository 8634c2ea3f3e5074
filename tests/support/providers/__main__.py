"""``python -m tests.support.providers module:scenario [tokens per second]``: the servers in a process of their own.

Prints the environment in which SDKs find them, one ``NAME=value`` per line, then serves until it is interrupted.
"""

from __future__ import annotations

import importlib
import signal
import sys

from tests.support.providers.server import Providers, hello


def main() -> None:
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    target, speed = [*sys.argv[1:], None, None][:2]
    providers = Providers(speed=float(speed) if speed else None)
    module, _, name = (target or "").partition(":")
    providers.scenario = getattr(importlib.import_module(module), name) if target else hello
    with providers.serving():
        for variable, value in providers.environment.items():
            print(f"{variable}={value}", flush=True)
        signal.sigwait(signals)


main()
