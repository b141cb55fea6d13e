"""A child process must not outlive its starter, not even one that is killed."""

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

# From <linux/prctl.h>; Python has no name for it.
PR_SET_PDEATHSIG = 1

# Loaded here and not in the child: between fork and exec a child must do as little as it can.
LIBC = ctypes.CDLL(None, use_errno=True)


def end_with(parent: int) -> None:
    """Have the kernel send this process SIGTERM when its parent, the process `parent`, dies."""
    if LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    # A parent that died before the line above sends nothing: then we have another parent by now.
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
    """Start a command that ends when we do, its output appended to `log`; `keep` stays open in it.

    It gets a session of its own, so that Ctrl-C reaches only us and we end our children in order.
    """
    # The kernel watches the thread that forks, and would end the child when that thread returns.
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
    """Ask a child to end, kill it and its own children after `seconds`; return its exit status."""
    process.terminate()
    return await_end(process, seconds)


def await_end(process: subprocess.Popen[bytes], seconds: float) -> int:
    """The same for a child that was asked already: asked twice, our programs end at once."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def last_lines(log: Path, count: int = 15) -> str:
    """The end of a log, indented, to be shown below what went wrong; empty when there is none."""
    if not log.exists():
        return ""
    lines = log.read_text(errors="replace").splitlines()[-count:]
    return "\n".join(f"    {line}" for line in lines)
