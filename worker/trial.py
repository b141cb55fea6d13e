"""A handler is tried on one text before it meets a database: `python -m worker try`."""

import argparse
import asyncio
import json
import sys
import time
from typing import Any

from partway.worker.compute import Compute
from partway.worker.handler import HandlerError
from partway.worker.process import Ending, Work

# A trial is for looking at the result, so it is never cut for being long.
MAX_OUTPUT_CHARACTERS = 10_000_000


def param(argument: str) -> tuple[str, Any]:
    """The name and the value of key=value; a value that is no JSON is the string it looks like."""
    key, equals, value = argument.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{argument!r} is not key=value")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def seconds(argument: str) -> float:
    """A number of seconds above 0 that a clock can count."""
    number = float(argument)
    if not 0 < number <= 86_400:
        raise argparse.ArgumentTypeError("must be above 0 and at most 86400")
    return number


async def run_one(handler: str, text: str, params: dict[str, Any], limit_seconds: float) -> Ending:
    """How one attempt at the text ends, in a child as in production; HandlerError as at a start."""
    compute = Compute(handler, 1, limit_seconds, MAX_OUTPUT_CHARACTERS)
    try:
        await compute.start()
        # The limit ends it, not a deadline: there is no request that could have one.
        return await compute.run(Work(0, 0, 1, text, params, time.monotonic() + 2 * limit_seconds))
    finally:
        await compute.close()


def main(argv: list[str]) -> int:
    """The exit status: 0 when the segment was done, 1 when not; wrong usage exits with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m worker try", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--handler", required=True, help="package.module:name, or a short name")
    parser.add_argument("--text", help="the segment; without it, standard input")
    parser.add_argument(
        "--param", type=param, action="append", default=[], metavar="KEY=VALUE", help="repeatable"
    )
    parser.add_argument("--seconds", type=seconds, default=30.0, help="the time limit (30)")
    given = parser.parse_args(argv)
    text = given.text
    if text is None:
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            parser.error(f"standard input is not UTF-8: {error}")
    try:
        ending = asyncio.run(run_one(given.handler, text, dict(given.param), given.seconds))
    except HandlerError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    said = f"{ending.kind} after {ending.run_seconds:.3f} s"
    if ending.after_seconds is not None:
        said = f"asks for another try in {ending.after_seconds:g} s"
    print(f"{said}: {ending.error}" if ending.error else said, file=sys.stderr)
    if ending.kind != "done":
        return 1
    print(ending.result)
    return 0
