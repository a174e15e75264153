"""Standard output of a command: its reader may go away, have closed it, or its disk be full."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from engine.process.plain_output import adapt


class Output:
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

    def broke(self, error: Exception) -> bool:
        """Whether an error is that of writing this output, and not one of the command."""
        return isinstance(error, OSError) and self.error is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error
            raise


def run_command(name: str, command: Callable[[Output], int]) -> int:
    """The exit code of a command that prints.

    That nobody reads is no failure; where the output cannot be written for another reason, that is reported and the code is 1.
    """
    adapt(sys.stdout)
    adapt(sys.stderr)
    before = sys.stdout
    # None: closed. A file that is opened would else get its number, and what is printed beside it.
    out = Output(before if before is not None else open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process
    sys.stdout = cast(TextIO, out)
    try:
        code = command(out)
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
    say(name, f"standard output cannot be written: {why}; free some space, or redirect it")
    return code or 1


def say(name: str, text: str) -> None:
    """One line of a command on standard error."""
    with suppress(OSError):  # nobody may listen here either
        print(f"{name}: {text}", file=sys.stderr)


def _lost(out: Output) -> bool:
    with suppress(OSError):
        out.flush()
    return out.error is not None
