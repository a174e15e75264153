"""A recording of `optiml optimize` in a terminal as SVG: what a run prints at its end, in its colours.

    python benchmarks/terminal_recording.py --out docs/images/optimize.svg
    python benchmarks/terminal_recording.py --folder .optiml/softmax-softmax_kernel

Without `--folder` it searches examples/softmax.cu with `--budget` candidates on the CPU path first, which takes minutes. `optiml show` then
prints the result in a terminal of 100 columns; the command in the picture is that of the run. The picture loads nothing.
"""

from __future__ import annotations

import argparse
import io
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from engine.report.run_folder import read_result  # noqa: E402 - the path above makes it importable as a script
from engine.run.result import OptimizationResult  # noqa: E402

_COLUMNS = 100
_FILE = "examples/softmax.cu"
_FONT = re.compile(r"@font-face \{.*?\}", re.S)
_OPTIML = str(Path(sys.executable).parent / "optiml")


def printed(command: Sequence[str]) -> str:
    """What a command writes to a terminal, with its escape sequences."""
    ours, theirs = pty.openpty()
    settings = {"COLUMNS": str(_COLUMNS), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment = {**os.environ, **settings}
    with subprocess.Popen(
        command, stdout=theirs, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, cwd=ROOT, env=environment
    ) as process:
        os.close(theirs)
        found = bytearray()
        while True:
            try:
                chunk = os.read(ours, 1 << 16)
            except OSError:  # how a terminal of Linux says that its last writer has gone
                break
            if not chunk:
                break
            found += chunk
    os.close(ours)
    if process.returncode != 0:
        raise SystemExit(f"{shlex.join(command)} ended with exit code {process.returncode}")
    return found.decode("utf-8", "replace").replace("\r\n", "\n")


def recording(folder: Path, shown: str = "") -> str:
    """The picture of a run's result. `shown` takes the place of the folder's path in it."""
    result = read_result(folder, {"result.json": (OptimizationResult,)})
    words = [str(word) for word in result.provenance.get("command", ())]
    text = printed([_OPTIML, "show", str(folder)])
    if shown:
        text = text.replace(str(folder), shown)
        words = [word.replace(str(folder), shown) for word in words]
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(f"$ {shlex.join(words)}", style="bold green"))
    console.print(Text.from_ansi(text.rstrip("\n")))
    return _FONT.sub("", console.export_svg(title="optiml", unique_id="optiml"))


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="A terminal recording of a run.")
    parser.add_argument("--folder", type=Path, help="of a run (default: a new one)")
    parser.add_argument("--budget", default="150", help="candidates or time of the new run")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "optimize.svg")
    options = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "run"
        if options.folder is None:
            command = ["optimize", _FILE, "--budget", options.budget, "--device", "cpu", "--out", str(folder)]
            subprocess.run([_OPTIML, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        options.out.write_text(recording(folder, ".optiml/softmax-softmax_kernel"), encoding="utf-8")
    print(f"{options.out}: {options.out.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
