"""Guards against servers that change roles, stop answering or lose a client."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

POSTGRES: Final = "backends/runyard_backends/postgres"
REDIS: Final = "backends/runyard_backends/redis"
REDIS_TESTS: Final = "tests/integration/redis/test_failovers.py"
CLUSTER_TESTS: Final = "tests/integration/redis/test_cluster.py"
TIMEOUTS: Final = "tests/integration/postgres/test_timeouts.py"
WAITING_CALLS: Final = "tests/integration/postgres/test_waiting_calls.py"

FAILOVERS: Final[tuple[Mutant, ...]] = (
    mutant(
        "calls stay on a replica of Redis", f"{REDIS}/connection.py",
        "                if isinstance(reply, ResponseError) and cannot_serve(reply):\n",
        "                if False:\n",
        REDIS_TESTS, "-k", "leaves_the_replica", "--timeout", "30",
    ),
    mutant(
        "a replica of Redis is flooded with connections", f"{REDIS}/connection.py",
        "            self._pause.failed(str(error))\n            await self._leave(",
        "            await self._leave(",
        REDIS_TESTS, "-k", "few_connections",
    ),
    mutant(
        "a subscriber stays on a replica of Redis", f"{REDIS}/connection.py",
        "        self._pubsub.lose(seldom=seldom)\n", "",
        REDIS_TESTS, "-k", "only_reads",
    ),
    mutant(
        "each write that a primary refuses ends all subscriptions", f"{REDIS}/connection.py",
        "_leave(seldom=refuses_writes(error))", "_leave()",
        REDIS_TESTS, "-k", "seldom",
    ),
    mutant(
        "a worker whose Redis takes no writes is ready", f"{REDIS}/connection.py",
        'await self.command("SET", self.keys.ping(self.own_shard), "", "XX")', 'await self.command("PING")',
        REDIS_TESTS, "-k", "full_server",
    ),
    mutant(
        "connections stay on a primary that the sentinels have replaced", f"{REDIS}/connection.py",
        "            if self._usable:  # the sentinels name another primary\n", "            if False:\n",
        REDIS_TESTS, "-k", "frozen_primary",
    ),
    mutant(
        "a server of a cluster keeps the connections for a slot that has moved", f"{REDIS}/driver_errors.py",
        "|CLUSTERDOWN|MOVED|", "|CLUSTERDOWN|",
        CLUSTER_TESTS, "-k", "moved",
    ),
    mutant(
        "a slot that is moved takes calls as refused", f"{REDIS}/driver_errors.py",
        "str(error).startswith(_MOVES)", "False",
        CLUSTER_TESTS, "-k", "moved",
    ),
    mutant(
        "the slots of a cluster are not read again", f"{REDIS}/cluster.py",
        "        except (RedisError, OSError, BackendUnavailableError):\n            self._is_stale = True\n",
        "        except (RedisError, OSError, BackendUnavailableError):\n",
        CLUSTER_TESTS, "-k", "loss_of_their_server",
    ),
    mutant(
        "the schedule is spread over the servers of a cluster", f"{REDIS}/cluster.py",
        "found[self._places[self.keys.shard_of(call.key)]]", "found[self._places[1]]",
        CLUSTER_TESTS, "-k", "scheduled_by_one_server",
    ),
    mutant(
        "a host may have the certificate of another", f"{REDIS}/connecting.py",
        'options.setdefault("ssl_check_hostname", options.get("ssl_cert_reqs") != "none")', "pass",
        "tests/unit/backends/test_redis_parts.py", "-k", "certificate",
    ),
    mutant(
        "a grant leaves the rights that a role had", f"{POSTGRES}/queries.sql",
        "    ('REVOKE ALL ON ALL TABLES IN SCHEMA runyard FROM %I'),\n", "",
        "tests/acceptance/test_least_rights.py", "-k", "other_rights",
    ),
    mutant(
        "a function that clients call has the rights of its caller", f"{POSTGRES}/functions/workers.sql",
        ") RETURNS boolean\nLANGUAGE plpgsql SECURITY DEFINER SET", ") RETURNS boolean\nLANGUAGE plpgsql SET",
        "tests/acceptance/test_schema_rights.py", "-k", "rights_of_their_owner",
    ),
    mutant(
        "a job of another clock is held for offered", f"{REDIS}/lua/missing_jobs.lua",
        "later and tonumber(later) <= now + SOON", "later",
        "tests/integration/redis/test_scheduler.py", "-k", "far_due_time",
    ),
    mutant(
        "a standby of Postgres is used", f"{POSTGRES}/connecting.py",
        "        if refused:\n", "        if False:\n",
        TIMEOUTS, "-k", "chooses_its_servers",
    ),
    mutant(
        "a standby of Postgres is flooded with connections", f"{POSTGRES}/connecting.py",
        "        self._pause.check()\n", "",
        TIMEOUTS, "-k", "few_connections",
    ),
    mutant(
        "a connection that takes no writes is kept", f"{POSTGRES}/database.py",
        "                    connection.terminate()\n                    self._connector.refuse(error)\n",
        "                    pass\n",
        TIMEOUTS, "-k", "takes_no_writes_is_closed", "--timeout", "30",
    ),
    mutant(
        "a call waits for a connection without end", f"{POSTGRES}/database.py",
        "            async with asyncio.timeout(self._command_timeout):\n                send = partial(",
        "            if True:\n                send = partial(",
        TIMEOUTS, "-k", "no_longer_than", "--timeout", "20",
    ),
    mutant(
        "a call waits for the end of its cancelled statement", f"{POSTGRES}/database.py",
        "await _release(connection, RELEASE_SECONDS)", "await _release(connection, None)",
        TIMEOUTS, "-k", "frozen", "--timeout", "30",
    ),
    mutant(
        "sessions have no timeouts", f"{POSTGRES}/connecting.py",
        "server_settings={**self._timeouts, **named}", "server_settings=named",
        TIMEOUTS, "-k", "session_has",
    ),
    mutant(
        "calls that wait for a lock keep their connections", f"{POSTGRES}/connecting.py",
        "LOCK_WAIT_SECONDS: Final = 0.1", "LOCK_WAIT_SECONDS: Final = 15.0",
        WAITING_CALLS, "-k", "leave_connections",
    ),
    mutant(
        "all calls that wait for a lock are sent again at once", f"{POSTGRES}/database.py",
        "asyncio.Semaphore(locked_calls)", "asyncio.Semaphore(1000)",
        WAITING_CALLS, "-k", "few_connections",
    ),
    mutant(
        "a timeout of the role ends a migration", f"{POSTGRES}/migrate.py",
        '        await connection.execute("SET LOCAL lock_timeout = 0")\n', "",
        "tests/acceptance/test_schema_versions.py", "-k", "concurrent_calls",
    ),
)  # fmt: skip
