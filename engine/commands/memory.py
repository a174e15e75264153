"""`optiml memory list|export|import|forget`: what earlier runs taught, seen, moved and deleted."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.llm.memory import Memory


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this verb to the command line."""
    parser = verbs.add_parser(
        "memory",
        help="list, export, import or forget what earlier runs taught",
        description="List, move or delete the lessons that runs with --memory wrote.",
    )
    parser.add_argument("action", choices=("list", "export", "import", "forget"), help="what to do with them")
    parser.add_argument(
        "lines", nargs="?", type=Path, metavar="FILE", help="of JSON lines: to write (export), to read (import)"
    )
    parser.add_argument(
        "--memory-file", type=Path, metavar="FILE", help="where lessons are (default: the user's cache)"
    )
    parser.add_argument(
        "--repository", type=Path, metavar="DIR", help="whose lessons (default: the repository around this folder)"
    )
    parser.add_argument("--all", action="store_true", help="the lessons of every repository")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0; 1 where the memory cannot be used, 2 for a file that is no export."""
    wants = arguments.action in ("export", "import")
    if wants and arguments.lines is None:
        raise UsageError("needs a file", f"memory {arguments.action}", "name the file of JSON lines")
    if not wants and arguments.lines is not None:
        raise UsageError("takes no file", f"memory {arguments.action} {arguments.lines}", "leave it away")
    from engine.llm.lessons import default_path
    from engine.llm.memory import Memory
    from engine.source.load import repository_root

    path = arguments.memory_file or default_path()
    if not path.is_file() and arguments.action != "import":
        raise UsageError("there is no memory", str(path), "runs with --memory write one")
    repository = None if arguments.all else str(repository_root((arguments.repository or Path.cwd()) / "_"))
    memory = Memory(path)
    try:
        if arguments.action == "list":
            _list(memory, repository)
        elif arguments.action == "export":
            print(f"{memory.export(arguments.lines, repository)} lessons in {arguments.lines}")
        elif arguments.action == "import":
            print(f"{memory.load(arguments.lines, repository)} lessons taken over")
        else:
            print(f"{memory.forget(repository)} lessons forgotten")
    finally:
        memory.close()
    return 0


def _list(memory: Memory, repository: str | None) -> None:
    from rich.markup import escape
    from rich.table import Table

    from engine.report.console import Console

    table = Table()
    for column in ("repository", "bound by", "who", "lesson"):
        table.add_column(column)
    count = 0
    for lesson in memory.lessons(repository):
        count += 1
        row = (Path(lesson.repository).name, ", ".join(lesson.signature), lesson.proposer, lesson.sentence)
        table.add_row(*(escape(cell) for cell in row))
    Console(file=sys.stdout, highlight=False).print(table)
    print(f"{count} lessons")
