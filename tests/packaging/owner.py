"""Run as a script: owns both servers until it is killed or its stdin ends. Prints one line of JSON about them.

With the argument `fork`, a child process that holds copies of all its descriptors outlives it.
"""

import json
import os
import signal
import sys

from runyard_backends.embedded import EmbeddedPostgres, EmbeddedRedis

with EmbeddedPostgres() as postgres, EmbeddedRedis() as redis:
    heir = 0
    if "fork" in sys.argv:
        heir = os.fork()
        if not heir:
            signal.pause()
    facts = {
        "urls": [postgres.url, redis.url],
        "pids": [postgres.pid, redis.pid],
        "homes": [str(postgres.home), str(redis.home), str((postgres.home / "cluster").resolve())],
        "heir": heir,
        "uid": os.geteuid(),
    }
    print(json.dumps(facts), flush=True)
    sys.stdin.read()
