"""Peers and their servers go into .run/peers, so that neither our .venv nor the machine gets them.

Python packages go into an environment for each peer, since they disagree about their Redis client.
What Debian has is only unpacked: an installed Redis or PostgreSQL would also start a service.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.peers.known import PEERS, Known

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".run" / "peers"
DEBIAN = PLACE / "debian"


class Missing(Exception):
    """A peer, or what it stands on, cannot be had here; the message says why."""


def python(known: Known) -> Path:
    """The interpreter of a peer's own environment."""
    return PLACE / known.module / "bin" / "python"


def environment() -> dict[str, str]:
    """Our environment, with the libraries that were unpacked, and this tree to import from."""
    libraries = os.pathsep.join(str(path) for path in _library_folders())
    return {**os.environ, "LD_LIBRARY_PATH": libraries, "PYTHONPATH": str(ROOT)}


def program(name: str) -> str | None:
    """The path of a server's program, installed or unpacked; None when there is none."""
    places = [
        os.environ.get("PATH", os.defpath),
        *(
            str(path)
            for tree in (Path("/"), DEBIAN)
            for pattern in ("usr/bin", "usr/lib/postgresql/*/bin")
            for path in sorted(tree.glob(pattern), reverse=True)
        ),
    ]
    return shutil.which(name, path=os.pathsep.join(places))


def prepare(names: Iterable[str]) -> dict[str, str]:
    """Install what these peers need; why not, by name, for those that cannot be installed."""
    missing: dict[str, str] = {}
    for name in names:
        try:
            _prepare(PEERS[name])
        except Missing as why:
            missing[name] = str(why)
    return missing


def _library_folders() -> list[Path]:
    return [*DEBIAN.glob("usr/lib/*-linux-*"), *DEBIAN.glob("lib/*-linux-*")]


def _prepare(known: Known) -> None:
    if known.server == "redis" and program("redis-server") is None:
        _unpack("redis-tools")
        _name_redis()
    if known.server == "postgresql" and program("postgres") is None:
        _unpack("postgresql")
    stamp = PLACE / known.module / "installed"
    if stamp.exists() and stamp.read_text() == "\n".join(known.packages):
        return
    print(f"Installing {' '.join(known.packages)} …", file=sys.stderr)
    _run((sys.executable, "-m", "venv", "--clear", "--without-pip", str(stamp.parent)))
    building = _client_library() if known.module == "django_tasks_db" else {}
    into = ("--python", str(python(known)), "install", *known.packages)
    _run((sys.executable, "-m", "pip", *into), building)
    stamp.write_text("\n".join(known.packages))


def _name_redis() -> None:
    """Give the server its name: it lies in redis-tools as a checker, and does what it is called."""
    checker = program("redis-check-rdb")
    if checker is None:
        raise Missing("redis-tools is installed, but brings no redis-check-rdb")
    named = DEBIAN / "usr" / "bin" / "redis-server"
    named.parent.mkdir(parents=True, exist_ok=True)
    named.symlink_to(checker)


def _client_library() -> dict[str, str]:
    """What lets mysqlclient, which comes as source only, be built."""
    if shutil.which("mariadb_config") is None and shutil.which("mysql_config") is None:
        _unpack("default-libmysqlclient-dev")
    libraries = " ".join(f"-L{path}" for path in _library_folders())
    return {
        "MYSQLCLIENT_CFLAGS": f"-I{DEBIAN}/usr/include/mariadb -I/usr/include/mariadb",
        "MYSQLCLIENT_LDFLAGS": f"{libraries} -l:libmariadb.so.3",
    }


def _unpack(package: str) -> None:
    """Fetch a Debian package with what it needs and this machine has not, and unpack it."""
    if shutil.which("apt-get") is None:
        raise Missing(f"this machine has no apt-get, and no {package}")
    fetched = DEBIAN / "fetched"
    (fetched / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    print(f"Fetching {package} from Debian …", file=sys.stderr)
    if os.geteuid() == 0:
        _run(("apt-get", "update"))
    _run(
        (
            *("apt-get", "install", "--download-only", "--no-install-recommends", "--yes"),
            *("-o", f"Dir::Cache={fetched}", "-o", "Debug::NoLocking=1", package),
        )
    )
    for archive in sorted((fetched / "archives").glob("*.deb")):
        _run(("dpkg-deb", "--extract", str(archive), str(DEBIAN)))
        archive.unlink()


def _run(command: Sequence[str], more: dict[str, str] | None = None) -> None:
    ran = subprocess.run(
        command,
        env={**os.environ, **(more or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ran.returncode != 0:
        last = "\n".join(f"    {line}" for line in ran.stdout.splitlines()[-8:])
        raise Missing(f"{' '.join(command[:4])} … ended with status {ran.returncode}:\n{last}")
