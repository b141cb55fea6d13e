"""`partway` and `python -m partway` begin here, where nothing that takes time is imported."""

import sys


def main() -> int:
    """The exit status of the command that the words of the shell name."""
    import signal

    # So that Ctrl-C while modules load shows no stack; and later too, in each command that has
    # nothing to finish.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from partway.command import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    # Python puts the current folder first, where a user's own click.py would stand in for Click.
    if not sys.flags.safe_path:
        sys.path.append(sys.path.pop(0))
    sys.exit(main())
