"""A killed run leaves nothing: its folder is removed by a shell that waits for us to be gone."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A line says that we removed it ourselves; the end of its input, that we are gone. Then whoever
# wrote there is ending too, and may write until then.
REMOVE = 'read -r _ && exit; for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$1"; sleep 1; done'


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder with a short path, gone soon after we are, however we end."""
    folder = tempfile.mkdtemp(prefix="partway-")
    remover = subprocess.Popen(
        ("sh", "-c", REMOVE, "sh", folder), stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder)
        remover.communicate(b"removed\n")
