"""`optiml memory list|export|import|forget`: what earlier runs taught, seen, moved and deleted."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from engine.commands.options import add_format, print_json
from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.llm.lesson_store import Memory

SCHEMA = "optiml.memory/1"


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this verb to the command line."""
    parser = verbs.add_parser(
        "memory",
        help="list, export, import or delete the lessons of earlier runs",
        description="List, export, import or delete the lessons that runs with --memory wrote.",
    )
    parser.add_argument("action", choices=("list", "export", "import", "forget"), help="the action")
    parser.add_argument(
        "lines", nargs="?", type=Path, metavar="FILE", help="JSON-lines file to write (export) or read (import)"
    )
    parser.add_argument(
        "--memory-file", type=Path, metavar="FILE", help="database of lessons (default: in the user's cache)"
    )
    parser.add_argument(
        "--repository", type=Path, metavar="DIR", help="repository of the lessons (default: the current one)"
    )
    parser.add_argument("--all", action="store_true", help="lessons of all repositories")
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0; 1 where the memory cannot be used, 2 for a file that is no export."""
    wants = arguments.action in ("export", "import")
    if wants and arguments.lines is None:
        raise UsageError("needs a file", f"memory {arguments.action}", "give a JSON-lines file")
    if not wants and arguments.lines is not None:
        raise UsageError("takes no file", f"memory {arguments.action} {arguments.lines}", "omit it")
    from engine.cuda.load import repository_root
    from engine.llm.lesson_store import Memory
    from engine.llm.lessons import default_path

    path = arguments.memory_file or default_path()
    if not path.is_file() and arguments.action != "import":
        raise UsageError("there are no lessons yet", str(path), "runs with --memory create it")
    repository = None if arguments.all else str(repository_root((arguments.repository or Path.cwd()) / "_"))
    memory = Memory(path)
    try:
        if arguments.action == "list":
            _list(memory, repository, arguments.format)
            return 0
        if arguments.action == "export":
            count, said = memory.export(arguments.lines, repository), f"lessons in {arguments.lines}"
        elif arguments.action == "import":
            count, said = memory.load(arguments.lines, repository), "lessons imported"
        else:
            count, said = memory.forget(repository), "lessons forgotten"
        if arguments.format == "json":
            print_json(SCHEMA, action=arguments.action, count=count)
        else:
            print(f"{count} {said}")
    finally:
        memory.close()
    return 0


def _list(memory: Memory, repository: str | None, form: str) -> None:
    if form == "json":
        lessons = [{**asdict(lesson), "sentence": lesson.sentence} for lesson in memory.lessons(repository)]
        print_json(SCHEMA, action="list", count=len(lessons), lessons=lessons)
        return
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
