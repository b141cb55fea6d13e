"""Starts child processes that end when their parent ends, even when the parent is killed."""

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

# From <linux/prctl.h>; Python has no constant for it.
PR_SET_PDEATHSIG = 1

# Loaded here and not in the child, which must do as little as possible between fork and exec.
LIBC = ctypes.CDLL(None, use_errno=True)


def end_with(parent: int) -> None:
    """Let the kernel send this process SIGTERM when its parent, the process `parent`, dies."""
    if LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    # If the parent died before the call above, there is no signal, but another parent now.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def start(
    command: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    keep: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a command that ends with this process. Its output is appended to `log`.

    The file descriptors `keep` stay open in it. It gets its own session, so that Ctrl-C reaches
    only this process, which then ends its children in order.
    """
    # The kernel watches the thread that forks, and would end the child when that thread ends.
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a child process is tied to the thread that starts it: use the main one")
    parent = os.getpid()
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            pass_fds=keep,
            start_new_session=True,
            preexec_fn=lambda: end_with(parent),
        )


def end(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Send SIGTERM to a child, and kill it and its children after `seconds`; its exit status."""
    process.terminate()
    return await_end(process, seconds)


def await_end(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Wait for a child that has got SIGTERM already: a second one would end a program at once."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def last_lines(log: Path, count: int = 15) -> str:
    """The last lines of a log, indented, for an error message; "" when there is no log."""
    if not log.exists():
        return ""
    lines = log.read_text(errors="replace").splitlines()[-count:]
    return "\n".join(f"    {line}" for line in lines)
