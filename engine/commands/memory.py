"""`optiml memory list|export|import|forget`: what earlier runs taught, seen, moved and deleted."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from engine.commands.json_answer import print_json
from engine.cuda.load import repository_root
from engine.errors import UsageError
from engine.llm.lesson_store import Memory
from engine.report.console import Console
from engine.settings.memory_settings import default_path

SCHEMA = "optiml.memory/1"


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0; 1 where the memory cannot be used, 2 for a file that is no export."""
    wants = arguments.action in ("export", "import")
    if wants and arguments.lines is None:
        raise UsageError("needs a file", f"memory {arguments.action}", "give a JSON-lines file")
    if not wants and arguments.lines is not None:
        raise UsageError("takes no file", f"memory {arguments.action} {arguments.lines}", "omit it")

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
