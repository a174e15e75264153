"""The command line that goes on with a run that was interrupted."""

import argparse
import shlex
from collections.abc import Sequence


def again(arguments: argparse.Namespace, *, add: Sequence[str] = (), drop: Sequence[str] = ()) -> str:
    """The command line as given, with these flags and without those."""
    given = [word for word in getattr(arguments, "given", ()) if word not in (*drop, *add)]
    return shlex.join(["optiml", *given, *add])


def go_on(arguments: argparse.Namespace, *, add: Sequence[str] = (), drop: Sequence[str] = ()) -> str:
    """What an interrupted command says: the command that goes on."""
    return f"continue with: {again(arguments, add=add, drop=drop)}"
