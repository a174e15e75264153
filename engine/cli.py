"""The command `optiml`. Each verb is a module in engine.commands; nothing heavy is imported before a verb runs."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from engine.commands.options import Parser

_VERBS = ("optimize", "generate", "tune", "init", "doctor", "show", "selftest", "memory", "bench", "report")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="optiml", description="Find faster versions of CUDA kernels, checked against the original and measured."
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND")
    for verb in _VERBS:
        importlib.import_module(f"engine.commands.{verb}").add_parser(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Exit codes: 0 nothing to say or done, 1 findings or refused, 2 wrong use, 3 internal error, 130 interrupted.
    """
    from engine.errors import OptimlError

    parser = _parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    parsed = parser.parse_args(given)
    if parsed.version:
        from importlib import metadata

        print(metadata.version("optiml"))
        return 0
    if parsed.verb is None:
        parser.print_help()
        return 2
    try:
        code: int = importlib.import_module(f"engine.commands.{parsed.verb}").run(parsed)
        return code
    except OptimlError as error:
        print(f"optiml: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        kept = "what was evaluated is in the journal, --resume goes on with it" if "resume" in parsed else ""
        said = str(interrupt) or kept  # a verb may know better what is left
        print(f"optiml: interrupted{'; ' if said else ''}{said}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("OPTIML_DEBUG"):
            raise
        print(
            f"optiml: internal error: {type(error).__name__}: {error}; please report it, with the output of the same command "
            "under OPTIML_DEBUG=1",
            file=sys.stderr,
        )
        return 3


if __name__ == "__main__":
    sys.exit(main())
