"""Draw programs for `benchmarks/capture_cpu.py` from a repository that holds one in each of many folders, by a seed.

    python benchmarks/capture_draw.py CHECKOUT --repository zjin-lcf/HeCBench --folders 'src/*-cuda' --command 'make run' \\
        --seed 1 --count 24 --write benchmarks/capture_hecbench.toml

Every folder that matches may be drawn, whatever is in it; those of the lists `--but` are left out before. Other folders of the same
parent that a program's files name (`../NAME/`) are copied beside it. Exit code 0.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

_BESIDE = re.compile(r"\.\./(\w[\w.-]*)/")
_LIMIT_S = 60  # of a run; ours
_TEXT = 1 << 20  # bytes of a file that is looked at for names of folders


def beside(folder: Path) -> Iterator[str]:
    """The folders of the same parent that a program's files name."""
    found: set[str] = set()
    for file in folder.rglob("*"):
        if file.is_file() and file.stat().st_size <= _TEXT:
            found |= set(_BESIDE.findall(file.read_text(encoding="utf-8", errors="replace")))
    yield from sorted(name for name in found if name != folder.name and (folder.parent / name).is_dir())


def main(given: Sequence[str] | None = None) -> int:
    """Draw and write the list."""
    parser = argparse.ArgumentParser(description="Draw programs of a repository.")
    parser.add_argument("checkout", type=Path, help="the repository's checkout")
    parser.add_argument("--repository", required=True, metavar="OWNER/NAME")
    parser.add_argument("--folders", required=True, metavar="GLOB", help="the folders of programs")
    parser.add_argument("--command", required=True, help="builds and runs a program in its folder")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, required=True, help="how many programs")
    parser.add_argument("--but", type=Path, nargs="*", default=[], help="lists whose programs are left out")
    parser.add_argument("--write", type=Path, required=True, help="the list to write")
    options = parser.parse_args(given)
    asked = ["git", "-C", str(options.checkout), "rev-parse", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    left_out = {
        program["folder"]
        for path in options.but
        for repository in tomllib.loads(path.read_text(encoding="utf-8"))["repository"]
        for program in repository["programs"]
    }
    every = sorted(p for p in options.checkout.glob(options.folders) if p.is_dir())
    open_ = [p for p in every if p.relative_to(options.checkout).as_posix() not in left_out]
    chosen = sorted(random.Random(options.seed).sample(open_, min(options.count, len(open_))))
    lines = [
        f"# Written by benchmarks/capture_draw.py (seed {options.seed}, from {len(open_)} folders); not by hand.",
        "",
        "[[repository]]",
        f'name = "{options.repository}"',
        f'commit = "{commit}"',
        f'command = "{options.command}"',
        f"limit_s = {_LIMIT_S}",
        "programs = [",
    ]
    for folder in chosen:
        place = folder.relative_to(options.checkout)
        names = ", ".join(f'"{(place.parent / name).as_posix()}"' for name in beside(folder))
        lines.append(f'    {{ folder = "{place.as_posix()}"{f", beside = [{names}]" if names else ""} }},')
    options.write.write_text("\n".join([*lines, "]"]) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
