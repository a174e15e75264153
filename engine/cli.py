"""The command `optiml`. Each verb is a module in engine.commands, imported when it runs: nothing heavy is imported before."""

import importlib
import os
import sys
from collections.abc import Sequence

from engine.commands.command_line import make_parser
from engine.errors import OptimlError
from engine.process.cores import ONE_THREAD
from engine.process.standard_output import Output, run_command, say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Exit codes: 0 nothing to say or done, 1 findings or refused, 2 wrong use, 3 internal error, 130 interrupted. Who reads the output
    may go away or have closed it; where it cannot be written for another reason, that is said and the code is 1.
    """
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
    return run_command("optiml", lambda out: _command(list(sys.argv[1:] if arguments is None else arguments), out))


def _command(given: Sequence[str], out: Output) -> int:
    parser = make_parser()
    parsed = parser.parse_args(given)
    parsed.given, parsed.parser = tuple(given), parser
    try:
        if parsed.version:
            # Only this option pays for it.
            from importlib import metadata

            print(metadata.version("optiml-cuda"))
            return 0
        if parsed.verb is None:
            parser.print_help()
            return 2
        code: int = importlib.import_module(f"engine.commands.{parsed.verb}").run(parsed)
        return code
    except OptimlError as error:
        say("optiml", str(error))
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        say("optiml", f"interrupted{'; ' if str(interrupt) else ''}{interrupt}")
        return 130
    except Exception as error:
        if out.broke(error):
            return 0  # broken off, and nothing else is wrong
        if os.environ.get("OPTIML_DEBUG"):
            raise
        say(
            "optiml",
            f"internal error: {type(error).__name__}: {error}; please report it, with the output of the same command "
            "under OPTIML_DEBUG=1",
        )
        return 3


if __name__ == "__main__":
    sys.exit(main())
