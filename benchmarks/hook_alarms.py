"""False alarms of `optiml-check` on other people's kernels that nvcc compiles.

    python benchmarks/hook_alarms.py CHECKOUT ... --record benchmarks/results/hook_alarms.json

A checkout is a git working tree at a commit that hook_alarms.toml pins. The installed hook looks at every pinned file as it would in that
repository, without settings, again while something ran out of time (on a busy machine). All of these files compile with nvcc for the same
target. What the hook calls an error is therefore a false alarm; a warning of spills is one where ptxas of nvcc reports no spill for that
kernel. Notes are counted by their first words. Exit code 0, 1 where there is a false alarm.

    python benchmarks/hook_alarms.py CHECKOUT ... --draw

writes the files and kernels of the pinned folders that nvcc compiles into hook_alarms.toml. Headers that a project needs beside the
toolkit's (cuBLAS for llm.c, PyTorch for apex, with CUTLASS and flashinfer for sglang) are found through CPATH.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from engine.compile.compiler import parse_resources  # noqa: E402
from engine.compile.nvcc import find_nvcc  # noqa: E402
from engine.cuda.parse import parse  # noqa: E402
from engine.errors import SourceError  # noqa: E402

SCHEMA = "optiml.hook_alarms/1"
LIST = ROOT / "benchmarks" / "hook_alarms.toml"
ARCH, STD, NVCC_S = "sm_90", "c++17", 300
_PLACE = re.compile(r"(?P<path>[^:]+):(?P<line>\d+): (?P<kernel>[^:]+(?:::[^:]+)*): (?P<text>.*)")
_LATE = ("the compiler did not finish", "out of time")
_NOTES = ("not certain", "not compiled: a template", *_LATE)


@dataclass(frozen=True)
class Pinned:
    """One repository of the list: kernels by file, and folders that its build gives to nvcc."""

    name: str
    commit: str
    under: tuple[str, ...]
    include: tuple[str, ...]
    files: Mapping[str, Sequence[str]]


def pinned() -> list[Pinned]:
    """The list."""
    return [
        Pinned(r["name"], r["commit"], tuple(r["under"]), tuple(r.get("include", ())), r.get("files", {}))
        for r in tomllib.loads(LIST.read_text())["repository"]
    ]


def checkouts(folders: Sequence[Path]) -> dict[str, Path]:
    """The folders by their commit."""
    heads = (
        subprocess.run(["git", "rev-parse", "HEAD"], cwd=f, capture_output=True, text=True, check=True) for f in folders
    )
    return {head.stdout.strip(): folder.resolve() for head, folder in zip(heads, folders, strict=True)}


def by_nvcc(root: Path, path: str, include: Sequence[str]) -> tuple[bool, str]:
    """Whether nvcc compiles a file's device code, and what it and ptxas say."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [str(find_nvcc()), "-cubin", f"-arch={ARCH}", f"-std={STD}", "-Xptxas", "-v"]
        command += [f"-I{root / folder}" for folder in include]
        command += ["-o", f"{scratch}/out.cubin", str(root / path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=NVCC_S, cwd=root, errors="replace")
        except subprocess.TimeoutExpired:
            return False, f"nvcc did not finish within {NVCC_S} s"
    return done.returncode == 0, done.stdout + done.stderr


def by_hook(root: Path, files: Sequence[str], cache: Path) -> dict[str, Any]:
    """What the installed hook prints of files. Raises RuntimeError where it ends by an error of its own."""
    command = [str(Path(sys.executable).parent / "optiml-check"), "--all", "--format", "json", *files]
    done = subprocess.run(
        command, cwd=root, env=os.environ | {"OPTIML_CACHE": str(cache)}, capture_output=True, text=True
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"optiml-check ended with {done.returncode}: {done.stderr[-500:]}")
    return dict(json.loads(done.stdout))


def by_version() -> str:
    """nvcc's version."""
    said = subprocess.run([str(find_nvcc()), "--version"], capture_output=True, text=True, check=True).stdout
    return said.strip().splitlines()[-1]


def spills(log: str, kernel: str) -> bool:
    """Whether ptxas reports a spill for an entry of this kernel."""
    name = kernel.rpartition("::")[2]
    return any(
        f"{len(name)}{name}" in entry and (found.spill_store_bytes or found.spill_load_bytes)
        for entry, found in parse_resources(log).items()
    )


def measure(one: Pinned, root: Path, cache: Path, passes: int) -> dict[str, Any]:
    """One repository's counts, and each of its alarms."""
    files = list(one.files)
    said, number = by_hook(root, files, cache), 1
    while number < passes and any(words in note for note in said["notes"] for words in _LATE):
        said, number = (
            by_hook(root, files, cache),
            number + 1,
        )  # what was compiled in time is kept, so that each goes further
    wanted = {(path, kernel) for path in files for kernel in one.files[path]}
    found = [f for f in said["findings"] if (f["path"], f["kernel"]) in wanted]
    logs = {path: by_nvcc(root, path, one.include)[1] for path in {f["path"] for f in found if f["kind"] == "spills"}}
    alarms = [
        f
        for f in found
        if f["level"] == "error" or (f["kind"] == "spills" and not spills(logs[f["path"]], f["kernel"]))
    ]
    notes = [note for note in said["notes"] if _of(note, wanted)]
    return {
        "repository": one.name,
        "commit": one.commit,
        "files": len(files),
        "kernels": len(wanted),
        "passes": number,
        "failures": sum(f["level"] == "error" for f in found),
        "warnings": sum(f["level"] == "warning" for f in found),
        "false_alarms": [{key: f[key] for key in ("path", "line", "kernel", "kind", "text")} for f in alarms],
        "notes": dict(collections.Counter(_class(note) for note in notes)),
        "note_texts": notes,
    }


def _of(note: str, wanted: set[tuple[str, str]]) -> bool:
    place = _PLACE.match(note)
    return place is None or (place["path"], place["kernel"]) in wanted


def _class(note: str) -> str:
    return next((words for words in _NOTES if words in note), "other")


def names(root: Path, path: str) -> list[str]:
    """The kernels of a file; none of one that is no UTF-8 text."""
    with contextlib.suppress(SourceError):
        return [kernel.qualified for kernel in parse((root / path).read_bytes(), path).kernels]
    return []


def draw(one: Pinned, root: Path, jobs: int) -> list[str]:
    """Lines of the list: the kernels of the pinned folders' files, where nvcc compiles the file."""
    found = {p for part in one.under for p in (root / part).rglob("*.cu")} | {root / part for part in one.under}
    paths = sorted(str(p.relative_to(root)) for p in found if p.is_file())
    kernels = {path: names(root, path) for path in paths}
    paths = [path for path in paths if kernels[path]]
    with ThreadPoolExecutor(jobs) as pool:
        fine = dict(zip(paths, pool.map(lambda path: by_nvcc(root, path, one.include)[0], paths), strict=True))
    lines = ["[[repository]]", f'name = "{one.name}"', f'commit = "{one.commit}"']
    lines += [f"under = {json.dumps(one.under)}", f"include = {json.dumps(one.include)}", "", "[repository.files]"]
    return [*lines, *(f"{json.dumps(path)} = {json.dumps(kernels[path])}" for path in paths if fine[path]), ""]


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="False alarms of optiml-check on kernels that nvcc compiles.")
    parser.add_argument(
        "checkouts", nargs="+", type=Path, metavar="CHECKOUT", help="working trees at the pinned commits"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs of nvcc at once for --draw (default: 2)")
    parser.add_argument("--passes", type=int, default=8, help="of the hook, until nothing ran out of time (default: 8)")
    parser.add_argument("--draw", action="store_true", help="write the list anew")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    options = parser.parse_args(given)
    there = checkouts(options.checkouts)
    missing = [one.name for one in pinned() if one.commit not in there]
    if missing:
        parser.error(f"no checkout is at the pinned commit of {', '.join(missing)}")
    if find_nvcc() is None:
        parser.error("there is no nvcc; pip install 'optiml-cuda[nvcc]'")
    if options.draw:
        head = LIST.read_text().partition("[[repository]]")[0].rstrip("\n")
        drawn = [line for one in pinned() for line in draw(one, there[one.commit], options.jobs)]
        LIST.write_text("\n".join([head, "", *drawn]))
        return 0
    with tempfile.TemporaryDirectory() as cache:
        rows = [measure(one, there[one.commit], Path(cache), options.passes) for one in pinned()]
    record = {
        "schema": SCHEMA,
        "command": "python benchmarks/hook_alarms.py CHECKOUT ...",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "nvcc": by_version(),
        "machine": machine(),
        "arch": ARCH,
        "kernels": sum(row["kernels"] for row in rows),
        "failures": sum(row["failures"] for row in rows),
        "warnings": sum(row["warnings"] for row in rows),
        "false_alarms": sum(len(row["false_alarms"]) for row in rows),
        "notes": sum(sum(row["notes"].values()) for row in rows),
        "repositories": rows,
    }
    text = json.dumps(record, indent=1) + "\n"
    if options.record:
        options.record.write_text(text)
    print(text, end="")
    return int(bool(record["false_alarms"]))


if __name__ == "__main__":
    sys.exit(main())
