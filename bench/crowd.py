"""Who asks the server many times a second must not share one interpreter: a process for each."""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any, TypeVar

from local import children

T = TypeVar("T")

# Longer than any of them takes; who does not answer by then has met a fault.
ANSWER_SECONDS = 300.0


def crowd(count: int, act: Callable[..., T], *values: object) -> list[T]:
    """What `act(ready, *values)` returned in each of `count` processes; RuntimeError if one failed.

    Each calls `ready.wait()` when it could begin, so that all begin together.
    """
    # Forked from us they would share our sockets.
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(count, timeout=ANSWER_SECONDS)
    pipes, processes = [], []
    for _ in range(count):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_run, args=(os.getpid(), theirs, act, ready, values), daemon=True
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        answers = [_answer(pipe) for pipe in pipes]
    finally:
        for process in processes:
            process.terminate()
            process.join()
    failed = [said for done, said in answers if not done]
    if failed:
        raise RuntimeError(f"{len(failed)} of {count} processes failed:\n{failed[0]}")
    return [said for _, said in answers]


def _answer(pipe: Any) -> tuple[bool, Any]:
    if not pipe.poll(ANSWER_SECONDS):
        return False, f"no answer within {ANSWER_SECONDS:g} s"
    try:
        answer: tuple[bool, Any] = pipe.recv()
    except EOFError:
        return False, "the process has ended without a word"
    return answer


def _run(
    parent: int, pipe: Any, act: Callable[..., Any], ready: Barrier, values: tuple[object, ...]
) -> None:
    children.end_with(parent)
    try:
        pipe.send((True, act(ready, *values)))
    except Exception:
        # Whatever it was, the one who waits must hear of it, and so must the others.
        ready.abort()
        pipe.send((False, traceback.format_exc()))
