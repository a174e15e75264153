"""`optiml report DIR [DIR]`: one HTML file of a run, or of two runs beside each other."""

import argparse
from pathlib import Path

from engine.commands.json_answer import print_json
from engine.errors import MachineError, UsageError
from engine.report.folder_pages import comparison_page, run_page


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0; what cannot be read raises."""
    # numpy and the whole engine behind it; the command line is made without them

    folder, other = arguments.folder, arguments.other
    out: Path = arguments.out or (folder / "report.html" if other is None else other / "comparison.html")
    if out.exists() and not out.is_file():  # the page takes the place of what stands there: of a device too
        kind = "a folder" if out.is_dir() else "not a regular file"
        raise UsageError(f"is {kind}", str(out), "give a file with --out")
    text = run_page(folder) if other is None else comparison_page(folder, other)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f".{out.name}.part")
        partial.write_text(text, encoding="utf-8", newline="\n")
        partial.replace(out)
    except OSError as error:
        raise MachineError(f"the page cannot be written: {error.strerror}", str(out), "choose another --out") from None
    if arguments.format == "json":
        print_json("optiml.report/1", page=str(out.resolve()))
    else:
        print(out)
    return 0
