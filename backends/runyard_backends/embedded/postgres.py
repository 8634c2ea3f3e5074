"""A private Postgres server."""

import os
import shutil
import signal
import stat
import subprocess
import tempfile
from pathlib import Path

from .binaries import EmbeddedServerError, PostgresInstall, find_postgres, reachable, server_user
from .process import EmbeddedServer

SUPERUSER = "postgres"
PLACES = ("/var/tmp", "/tmp", tempfile.gettempdir())
"""Directories for a cluster that cannot be in the data directory. The first usable one is taken."""
PREFIX = "runyard-"
MEMORY = Path("/dev/shm")
"""The directory of Linux whose files are in memory."""
MEMORY_BYTES = 2 << 30
"""Free bytes that MEMORY must have for a cluster."""


class EmbeddedPostgres(EmbeddedServer):
    """Postgres with UTF8, C locale, scram passwords, TCP on 127.0.0.1 and no unix socket.

    data_dir: see EmbeddedServer. If this process is root, the server gets an unprivileged user id. This user cannot access a
    `data_dir` below a private home directory. The cluster is then in a separate directory in one of PLACES, and
    `data_dir/cluster` is a link to this directory.

    durable: False turns fsync and synchronous commits off. A crash of the machine can then lose data, which does not matter in
    tests. If `durable` is False and `data_dir` is None, the files are in memory, provided that the memory has enough space.
    max_connections: the maximum number of connections that the server accepts.
    """

    name = "Postgres"
    graceful = signal.SIGINT  # roll back, write a checkpoint and exit
    immediate = signal.SIGQUIT  # exit at once; the next start recovers from the write-ahead log

    def __init__(self, data_dir: Path | None = None, *, durable: bool = True, max_connections: int = 200) -> None:
        super().__init__(data_dir)
        self._durable = durable
        self._max_connections = max_connections
        self._server_user = server_user()
        self._install: PostgresInstall | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{SUPERUSER}:{self.password}@127.0.0.1:{self.port}/postgres"

    @property
    def _area(self) -> Path:
        """The directory around the cluster. The server's user can access this directory. The directory contains `data`, owned
        by the server's user. If a copy of the install is needed, the directory also contains `install`. The directory itself
        belongs to this process's user. The server's user can therefore not replace `data` or `install`."""
        return (self.home / "cluster").resolve()

    def _user(self) -> tuple[int | None, int | None]:
        user = self._server_user
        return (None, None) if user.uid == os.geteuid() else (user.uid, user.gid)

    def _temporary_parent(self) -> Path | None:
        return None if self._durable else memory_directory()

    def _removals(self) -> list[Path]:
        return [self._area, *super()._removals()] if self._given_dir is None else []

    def _prepare(self) -> None:
        self._make_area()
        if self._install is None or not self._install.bin.is_dir():
            self._install = find_postgres().for_user(self._server_user, self._area / "install")
        if not (self._area / "data").exists():
            self._initdb(self._install)

    def _make_area(self) -> None:
        link = self.home / "cluster"
        user = self._server_user
        if self._given_dir is None and user.uid != os.geteuid():
            self.home.chmod(0o711)  # the server's user must pass through this temporary directory, but not list it
        if link.is_symlink() and not link.exists():
            link.unlink()  # the target in one of PLACES was deleted
        if not link.exists():
            if reachable(self.home, user):
                link.mkdir(mode=0o711)
            else:
                link.symlink_to(self._reachable_directory())
        area = self._area
        if area.stat().st_uid != os.geteuid():
            raise EmbeddedServerError(f"{area} belongs to another user; remove {link}; the next start makes a new directory")
        area.chmod(0o711)

    def _reachable_directory(self) -> Path:
        for place in PLACES:
            parent = Path(place).resolve()
            if parent.is_dir() and reachable(parent, self._server_user):
                return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        raise EmbeddedServerError(
            f"Postgres runs with user id {self._server_user.uid}, but this user can access none of {', '.join(PLACES)}; "
            "give a data_dir that the user can access"
        )

    def _initdb(self, install: PostgresInstall) -> None:
        """Make the cluster under a temporary name and rename it, so that `data` is always a complete cluster."""
        new, secret = self._area / "new", self._area / "secret"
        shutil.rmtree(new, ignore_errors=True)
        secret.unlink(missing_ok=True)
        new.mkdir(mode=0o700)
        uid, gid = self._user()
        try:
            with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write(self.password)
            if uid is not None and gid is not None:
                os.chown(new, uid, gid)
                os.chown(secret, uid, gid)
            login = [f"--username={SUPERUSER}", f"--pwfile={secret}", "--auth=scram-sha-256"]
            made = subprocess.run(
                [install.bin / "initdb", f"--pgdata={new}", *login, "--encoding=UTF8", "--locale=C", "--no-sync"],
                user=uid,
                group=gid,
                extra_groups=None if uid is None else [],
                cwd=self._area,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise EmbeddedServerError(f"initdb could not run as user id {self._server_user.uid}: {error}") from error
        finally:
            secret.unlink(missing_ok=True)
        if made.returncode:
            raise EmbeddedServerError(f"initdb failed: {' | '.join(made.stderr.strip().splitlines()[-5:])}")
        new.rename(self._area / "data")

    def _command(self) -> tuple[list[str], Path]:
        assert self._install is not None
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": self._max_connections,
            "shared_buffers": "128MB",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "fsync": "on" if self._durable else "off",
            "synchronous_commit": "on" if self._durable else "off",
            "full_page_writes": "on" if self._durable else "off",
            "max_wal_size": "1GB" if self._durable else "256MB",  # the log may be in memory
        }
        flags = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return [str(self._install.bin / "postgres"), "-D", str(self._area / "data"), *flags], self._area

    def _is_ready(self) -> bool:
        """Return True if the server is ready. Line 1 of postmaster.pid is the process id, and line 8 is the state. pg_ctl reads
        the same lines."""
        try:
            lines = (self._area / "data" / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"


def memory_directory() -> Path | None:
    """Return MEMORY if its file system executes programs and has MEMORY_BYTES free, else None.

    Files in memory make a database quicker to create and drop. On disk, ext4 searches the inodes of all recently deleted files
    for each new file.
    """
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return None
    room = found.f_bavail * found.f_frsize >= MEMORY_BYTES and not found.f_flag & os.ST_NOEXEC
    return MEMORY if room and os.access(MEMORY, os.W_OK | os.X_OK) else None


def forget_cluster(home: Path) -> None:
    """Remove the cluster to which the link in ``home`` leads. ``home``: the directory of a server that does not run.

    Only a directory like those that `_make_area` makes is removed: it belongs to this user, is directly in one of PLACES, and
    has a name that starts with PREFIX. If the link leads elsewhere, or belongs to another user, the link and its target stay.
    """
    link = home / "cluster"
    if not link.is_symlink() or link.lstat().st_uid != os.geteuid():
        return
    area = link.readlink()
    made_here = area.parent in [Path(place).resolve() for place in PLACES] and area.name.startswith(PREFIX)
    try:
        found = area.lstat()
    except OSError:
        return
    if made_here and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
        shutil.rmtree(area)
        link.unlink()
