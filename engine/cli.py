"""The command `optiml`. Each verb is a module in engine.commands; nothing heavy is imported before a verb runs."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from engine.commands.options import Parser
from engine.process.cores import ONE_THREAD
from engine.process.plain_output import adapt

_VERBS = (
    "optimize",
    "all",
    "list",
    "generate",
    "tune",
    "init",
    "doctor",
    "cluster",
    "show",
    "selftest",
    "memory",
    "bench",
    "report",
    "capture",
    "nvcc",
    "completion",
    "mcp",
)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="optiml", description="Find faster versions of CUDA kernels, checked against the original and measured."
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND")
    for verb in _VERBS:
        importlib.import_module(f"engine.commands.{verb}").add_parser(verbs)
    return parser


class _Output:
    """Standard output that keeps the first error of writing it: argparse passes over it, rich raises another."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """As the stream's."""
        with self._watched():
            return self._stream.write(text)

    def flush(self) -> None:
        """As the stream's."""
        with self._watched():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Exit codes: 0 nothing to say or done, 1 findings or refused, 2 wrong use, 3 internal error, 130 interrupted. Who reads the output
    may go away or have closed it; where it cannot be written for another reason, that is said and the code is 1.
    """
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
    adapt(sys.stdout)
    adapt(sys.stderr)
    before = sys.stdout
    # None: closed. A file that is opened would else get its number, and what is printed beside it.
    out = _Output(before if before is not None else open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process
    sys.stdout = cast(TextIO, out)
    try:
        code = _command(list(sys.argv[1:] if arguments is None else arguments), out)
    except SystemExit:  # of the parser: wrong use, or its help, of which it does not notice that it cannot be written
        if not _lost(out):
            raise
        code = 0
    finally:
        sys.stdout = before
    if not _lost(out):
        return code
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # the interpreter writes what is left when it ends
    if isinstance(out.error, BrokenPipeError):
        return code
    why = out.error.strerror if out.error is not None else ""
    _say(f"standard output cannot be written: {why}; free some space, or send it elsewhere")
    return code or 1


def _lost(out: _Output) -> bool:
    with suppress(OSError):
        out.flush()
    return out.error is not None


def _say(text: str) -> None:
    with suppress(OSError):  # nobody may listen here either
        print(f"optiml: {text}", file=sys.stderr)


def _command(given: Sequence[str], out: _Output) -> int:
    from engine.errors import OptimlError

    parser = _parser()
    parsed = parser.parse_args(given)
    parsed.given, parsed.parser = tuple(given), parser
    try:
        if parsed.version:
            from importlib import metadata

            print(metadata.version("optiml-cuda"))
            return 0
        if parsed.verb is None:
            parser.print_help()
            return 2
        code: int = importlib.import_module(f"engine.commands.{parsed.verb}").run(parsed)
        return code
    except OptimlError as error:
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        _say(f"interrupted{'; ' if str(interrupt) else ''}{interrupt}")
        return 130
    except Exception as error:
        if isinstance(error, OSError) and out.error is not None:
            return 0  # broken off, and nothing else is wrong
        if os.environ.get("OPTIML_DEBUG"):
            raise
        _say(
            f"internal error: {type(error).__name__}: {error}; please report it, with the output of the same command "
            "under OPTIML_DEBUG=1"
        )
        return 3


if __name__ == "__main__":
    sys.exit(main())
