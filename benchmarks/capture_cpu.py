"""Capture other people's programs on the CPU and make the specs of their kernels.

    python benchmarks/capture_cpu.py --checkouts DIR --record benchmarks/results/capture_cpu.json

`DIR` holds a checkout `owner__name` of each repository of `benchmarks/capture_cpu.toml`, at its commit and unchanged. Each program's
folders are copied first, so that nothing is written to the checkout. Each program goes through the commands that a user has:
`optiml nvcc` builds it, `optiml capture --cpu` runs it, once for each of its `runs` (the program's own arguments), and `optiml init`
makes and validates the spec of every launched kernel, without a search. A program with a `command` of its own (`make run`) is built by
that.

A program counts as `complete` where every run ended with exit code 0 or at the time limit, and every kernel that it launched has a
spec from the recording that `optiml optimize` accepts. Kernels of the program's files that no run launched are listed.

`--only REGEX` measures some programs; with a record that exists, the rows of the others stay. Exit code 0, or 2 on wrong use.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, head  # noqa: E402 - the path above makes it importable as a script
from engine.capture.manifest import Manifest, load_manifest, recording_folder  # noqa: E402
from engine.cuda.parse import parse  # noqa: E402
from engine.errors import OptimlError  # noqa: E402

SCHEMA = "optiml.capture_cpu/1"
LIST = ROOT / "benchmarks" / "capture_cpu.toml"
_LIMIT_S = 60  # of one run; what was recorded by then counts
# Contents count for ranges and roles alone, and to store them takes longest.
_LESS = ("--launches", "1", "--max-buffer", "4")
_BUILD_S, _SPEC_S = 600.0, 400.0  # ours: many times what the slowest took on an idle machine
_REASON = 400  # characters
_INCLUDED = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


@dataclass(frozen=True)
class Listed:
    """One program of the list. `folders` are copied, `folder` is where it is built and runs."""

    repository: str
    commit: str
    name: str
    folder: str
    folders: tuple[str, ...]
    sources: tuple[str, ...]
    options: tuple[str, ...]
    runs: tuple[str, ...]
    limit_s: int
    command: str = ""  # that builds and runs the program in its folder


@dataclass
class Row:
    """What became of a program. `ends` are the runs' exit codes ("limit": ended by the time limit); `specs` names each launched
    kernel's refusal, "" for a valid spec."""

    name: str
    state: str = "does not build"
    reason: str = ""
    ends: list[int | str] = field(default_factory=list)
    specs: dict[str, str] = field(default_factory=dict)
    not_launched: list[str] = field(default_factory=list)
    build_s: float = 0.0
    run_s: float = 0.0
    spec_s: float = 0.0


def listed(path: Path = LIST) -> list[Listed]:
    """The programs of the list."""
    found = []
    for r in tomllib.loads(path.read_text(encoding="utf-8"))["repository"]:
        for p in r["programs"]:
            folder = p["folder"]
            name = p.get("name", Path(folder).name)
            found.append(
                Listed(
                    r["name"], r["commit"], name, folder, (folder, *r.get("folders", ()), *p.get("beside", ())),
                    tuple(p.get("sources", ())), tuple(p.get("options", r.get("options", ()))),
                    tuple(p.get("runs", [""])), p.get("limit_s", r.get("limit_s", _LIMIT_S)), r.get("command", ""),
                )
            )  # fmt: skip
    return found


def examine(program: Listed, checkout: Path, work: Path) -> Row:
    """Build, capture and make the specs of one program in the empty folder `work`."""
    row = Row(program.name)
    take(program, checkout, work)
    folder = work / program.folder
    begin = time.monotonic()
    sources = program.sources or tuple(sorted(f.name for f in folder.glob("*.cu")))
    built = f"./{Path(program.sources[0]).stem}" if program.sources else program.command
    if not program.command:
        done = _optiml(["nvcc", *program.options, *program.sources, "-o", built], folder, _BUILD_S)
        row.build_s = round(time.monotonic() - begin, 1)
        if done.returncode != 0:
            row.reason = _sentence(done.stderr)
            return row
    row.state = "launches nothing"
    for run in program.runs:
        manifest = _captured(program, built, run, work, row)
        if manifest is not None:
            _make_specs(manifest, work, row)
    row.not_launched = sorted(_defined(folder, sources) - {name.rpartition(":")[2] for name in row.specs})
    refused = [f"{name}: {reason}" for name, reason in row.specs.items() if reason]
    failed = [end for end in row.ends if end not in (0, "limit")]
    if row.specs:
        row.state = "a run fails" if failed else "lacks specs" if refused else "complete"
        row.reason = row.reason if failed else "; ".join(refused)
    return row


def take(program: Listed, checkout: Path, work: Path) -> None:
    """Copy the files of the program's folders, as a repository of their own."""
    listing = ["git", "-C", str(checkout), "ls-files", "-z", "--", *program.folders]
    names = subprocess.run(listing, capture_output=True, check=True, text=True).stdout.split("\0")
    for name in names:
        if (checkout / name).is_file():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(checkout / name, work / name)
    (work / ".git").mkdir()


def _differs(program: Listed, checkout: Path) -> str:
    """How the checkout is not the one of the list; "" where it is. A file that it lacks is for the compiler to miss."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    if git("rev-parse", "HEAD") != program.commit:
        return f"is not at {program.commit}"
    changed = git("diff", "--name-only", "--diff-filter=M", "HEAD", "--", *program.folders)
    return f"has a changed file: {changed.splitlines()[0]}" if changed else ""


def _captured(program: Listed, built: str, run: str, work: Path, row: Row) -> Manifest | None:
    """The recording of one run; None where it launched nothing."""
    begin = time.monotonic()
    arguments = ["capture", "--cpu", *_LESS, "--limit", f"{program.limit_s}s", "--", *built.split(), *run.split()]
    done = _optiml(arguments, work / program.folder, program.limit_s + 300.0)
    row.run_s = round(row.run_s + time.monotonic() - begin, 1)
    manifest = load_manifest(recording_folder(work)) if done.returncode in (0, 1) else None
    if manifest is None:
        row.ends.append("nothing recorded")
        row.reason = row.reason or _sentence(done.stderr)
        return None
    row.ends.append("limit" if manifest.exit_code is None else manifest.exit_code)
    if manifest.exit_code:
        row.reason = row.reason or f"'{program.name} {run}' ends with exit code {manifest.exit_code}: {_tail(done)}"
    return manifest


def _make_specs(manifest: Manifest, work: Path, row: Row) -> None:
    for kernel in manifest.kernels:
        key = f"{kernel.file}:{kernel.kernel}" if kernel.file else kernel.demangled
        if row.specs.get(key) == "":
            continue
        begin = time.monotonic()
        if not kernel.file or not kernel.launches:
            row.specs[key] = kernel.problem or "no arguments were recorded"
        else:
            row.specs[key] = _refusal(work / kernel.file, kernel.kernel, work)
        row.spec_s = round(row.spec_s + time.monotonic() - begin, 1)


def _refusal(file: Path, kernel: str, work: Path) -> str:
    """Why `optimize` would not take the recorded spec of a kernel; "" where it would."""
    done = _optiml(["init", str(file), "--kernel", kernel, "--format", "json"], work, _SPEC_S)
    try:
        made = json.loads(done.stdout)
    except ValueError:
        return _sentence(done.stderr) or "init did not end in time"
    if made["missing"]:
        return "; ".join(gap["what"] for gap in made["missing"])[:_REASON]
    if "recorded: " not in made["text"]:
        return "the spec is not from the recording"
    return str(made["refused"])[:_REASON]


def _defined(folder: Path, sources: Iterable[str]) -> set[str]:
    """The kernels that the sources and the files beside them that they include define."""
    found: set[str] = set()
    waiting, seen = list(sources), set(sources)
    while waiting:
        file = folder / waiting.pop()
        if not file.is_file():
            continue
        data = file.read_bytes()
        try:
            found |= {k.qualified for k in parse(data, file.name).kernels}
        except OptimlError:
            continue
        more = set(_INCLUDED.findall(data.decode("utf-8", "replace"))) - seen
        seen |= more
        waiting += more
    return found


def _optiml(arguments: Sequence[str], folder: Path, limit_s: float) -> subprocess.CompletedProcess[str]:
    """One command of the project; return code -1 where it did not end."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from engine.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *arguments]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, cwd=folder, errors="replace",
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, -1, "", f"optiml: {arguments[0]} did not end in {limit_s:g} s")


def _sentence(said: str) -> str:
    """The sentence that a command ends with."""
    lines = [line for line in said.splitlines() if line.startswith("optiml")]
    return re.sub(r"/\S*/", "", (lines or said.splitlines() or [""])[0])[:_REASON]


def _tail(done: subprocess.CompletedProcess[str]) -> str:
    faults = [line for line in done.stderr.splitlines() if line.startswith("optiml: kernel ")]
    lines = faults[:1] or [line for line in done.stdout.splitlines() if line.strip()][-12:]
    shown = next(
        (line for line in lines if re.search(r"rror|ismatch|FAIL|fail|kernel ", line)), lines[0] if lines else ""
    )
    return re.sub(r"/\S*/", "", shown)[:_REASON]


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many programs, and kernels, reached what."""
    specs = [reason for row in rows for reason in row["specs"].values()]
    complete = [row for row in rows if row["state"] == "complete"]
    return {
        "programs": len(rows),
        "build": sum(row["state"] != "does not build" for row in rows),
        "complete": len(complete),
        "complete_all_launched": sum(not row["not_launched"] for row in complete),
        "kernels_launched": len(specs),
        "kernels_with_spec": sum(not reason for reason in specs),
    }


def _kept(record: Path | None) -> dict[str, dict[str, Any]]:
    """The rows of an earlier record by name: each stays until its program is measured again."""
    if record is None or not record.is_file():
        return {}
    return {row["name"]: row for row in json.loads(record.read_text(encoding="utf-8"))["rows"]}


def main(given: Sequence[str] | None = None) -> int:
    """Examine, print, record."""
    parser = argparse.ArgumentParser(description="Capture other people's programs on the CPU and make their specs.")
    parser.add_argument("--checkouts", type=Path, required=True, metavar="DIR", help="holds owner__name of each")
    parser.add_argument("--list", type=Path, default=LIST, help="the programs (default: benchmarks/capture_cpu.toml)")
    parser.add_argument("--only", default="", metavar="REGEX", help="programs whose name has a match; other rows stay")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    options = parser.parse_args(given)
    begin = datetime.datetime.now(datetime.UTC)
    every = listed(options.list)
    programs = [p for p in every if re.search(options.only, p.name)]
    checkouts = {p.repository: options.checkouts.resolve() / p.repository.replace("/", "__") for p in programs}
    for program in programs:
        if problem := _differs(program, checkouts[program.repository]):
            parser.error(f"{checkouts[program.repository]} {problem}")
    start, now = head(SCHEMA, __file__, given, begin), commit()
    found = _kept(options.record if options.only else None)
    order = [p.name for p in every]
    rows: list[dict[str, Any]] = []
    for program in programs:
        with tempfile.TemporaryDirectory(prefix="capture-cpu-", ignore_cleanup_errors=True) as work:
            row = examine(program, checkouts[program.repository], Path(work).resolve())
        found[row.name] = {
            **asdict(row), "repository": program.repository, "program_commit": program.commit, "commit": now,
        }  # fmt: skip
        rows = [found[name] for name in order if name in found]
        if options.record:  # after each: a run of an hour that is stopped has something to show
            record = {**start, "summary": summary(rows), "rows": rows}
            options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        good = sum(not reason for reason in row.specs.values())
        seconds = row.build_s + row.run_s + row.spec_s
        print(f"{row.state:17} {good}/{len(row.specs)} specs {seconds:6.1f} s  {row.name}  {row.reason}", flush=True)
    total = summary(rows)
    print(
        f"{total['complete']} of {total['programs']} programs run and give specs for all their kernels"
        f" ({total['kernels_with_spec']} of {total['kernels_launched']} launched kernels)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
