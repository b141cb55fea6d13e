"""The start of `partway` and `python -m partway`, without imports that take time."""

import sys


def main() -> int:
    """Run the command line; returns the exit status."""
    import signal

    # With the default action, Ctrl-C shows no stack trace while modules load. A command that has
    # something to finish sets its own handler later.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from partway.command import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    # Python searches the current folder first, where a user's click.py would replace Click.
    if not sys.flags.safe_path:
        sys.path.append(sys.path.pop(0))
    sys.exit(main())
