"""`optiml completion SHELL`: print the script that completes commands and options in a shell."""

import argparse
import sys
from pathlib import Path


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0."""
    # Only this verb needs it.
    import shtab

    parser: argparse.ArgumentParser = arguments.parser
    for action in _actions(parser):
        if action.type is Path or "FILE" in str(action.metavar):
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks for it
    sys.stdout.write(shtab.complete(parser, arguments.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    found = []
    for action in parser._actions:
        found.append(action)
        if isinstance(action, argparse._SubParsersAction):
            found += [inner for verb in action.choices.values() for inner in _actions(verb)]
    return found
