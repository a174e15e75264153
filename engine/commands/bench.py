"""`optiml bench NAME …`: measure tables of the project's figures, by name. Needs a checkout of the project."""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from engine.errors import UsageError


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when the tables are whole, 4 when rows are missing. Raises UsageError, MachineError."""
    root = find_checkout(arguments.checkout)
    sys.path.insert(0, str(root))
    command: Any = importlib.import_module("benchmarks.bench_command")
    code: int = command.run(arguments, root)
    return code


def find_checkout(named: Path | None) -> Path:
    """The folder that holds `benchmarks/tables.py`.

    Never the working directory unasked: that may be the checkout of a stranger's pull request, and its code would run.
    Raises UsageError.
    """
    root = (named or Path(__file__).parent.parent.parent).resolve()
    if not (root / "benchmarks" / "tables.py").is_file():
        raise UsageError(
            "the benchmarks are not part of the installed package, and this is not a checkout of the project", str(root),
            "clone it and name it with --checkout DIR",
        )  # fmt: skip
    return root
