"""Draft and validate a spec for each kernel of the foreign set, and write the table.

    python benchmarks/foreign.py --checkouts DIR --record benchmarks/results/foreign_drafts.json --page docs/foreign.md

`DIR` holds a checkout `owner__name` of each repository of `benchmarks/foreign.toml`, at its commit. Each kernel goes through the
commands that a user has: `optiml init` drafts and validates, without a GPU. Nothing of a spec is written by hand, but for the one
`answer` that the list may hold for a kernel. It counts only where the draft asks for exactly one thing: that line is put above the
kernel while `optiml optimize` drafts the rest and validates. Where the list has none and the message proposes a line without a `?`,
that line is put there as it is ("as proposed"). Each row has the commit it was measured at.
Kernels marked `held_out` are left out unless `--held-out` asks for them alone, or `--all` for both.
Exit code 0, or 2 where a checkout is missing or stands at another commit.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import head  # noqa: E402 - the path above makes it importable as a script
from engine.commands.init import REJECTS, UNPREDICTED  # noqa: E402
from engine.run.spec_writing import with_lines  # noqa: E402
from engine.spec.gaps import grouped, is_open  # noqa: E402

SCHEMA = "optiml.foreign/1"
LIST = ROOT / "benchmarks" / "foreign.toml"
_DRAFT_S, _VALIDATE_S = 400.0, 300.0  # of CPU time; ours: many times what the slowest kernel takes
_WAITING = 5  # times as long by the clock, on a machine that others share
_TICKS = os.sysconf("SC_CLK_TCK")
_SHOWN = 400  # characters of a reason on the page


@dataclass(frozen=True)
class Foreign:
    """One kernel of the list."""

    repository: str
    commit: str
    file: str
    kernel: str
    held_out: bool
    answer: str = ""


@dataclass(frozen=True)
class Row:
    """What became of one kernel. `state` is one of `_GOOD`, "asks" or "refused"; `reason` says why for the last two.

    `asked` is how many things the draft asks for, `answer` the line that it was given.
    """

    kernel: Foreign
    state: str
    reason: str
    draft: str
    seconds: float
    asked: int = 0
    answer: str = ""


def listed(path: Path = LIST) -> list[Foreign]:
    """The kernels of the list."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))["repository"]
    return [
        Foreign(r["name"], r["commit"], k["file"], k["kernel"], k["held_out"], k.get("answer", ""))
        for r in found
        for k in r["kernels"]
    ]


def misplaced(checkouts: Path, commits: Mapping[str, str]) -> str:
    """Which checkout is missing or stands at another commit than the repository's, in words; "" where all are right."""
    for repository, commit in commits.items():
        folder = checkouts / repository.replace("/", "__")
        asked = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        if subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() != commit:
            return f"{folder} is not at {commit}"
    return ""


@contextlib.contextmanager
def answered(file: Path, kernel: str, answer: str) -> Iterator[None]:
    """The file with one line of a spec above the kernel, for as long as the context lasts."""
    before = file.read_bytes()
    try:
        file.write_bytes(with_lines(before, file.name, kernel, f"// optiml: {answer}\n"))
        yield
    finally:
        file.write_bytes(before)


def examine(kernel: Foreign, checkouts: Path) -> Row:
    """Draft and validate one kernel, with its answer only where the draft asks for one thing."""
    begin = time.monotonic()
    file = checkouts / kernel.repository.replace("/", "__") / kernel.file
    arguments = [str(file), "--kernel", kernel.kernel]
    code, draft, said = _optiml(["init", *arguments, "--format", "toml"], _DRAFT_S)
    missing = [line.removeprefix("missing: ") for line in said.splitlines() if line.startswith("missing: ")]
    row = Row(kernel, "refused", "", draft, 0.0, len(missing))
    refused = [line.removeprefix(REJECTS) for line in said.splitlines() if line.startswith(REJECTS)]
    valid = code == 0 or any(line.startswith(UNPREDICTED) for line in said.splitlines())
    if valid and draft:
        row = replace(row, state="as drafted")
    elif refused:
        row = replace(row, reason=refused[0])
    elif code not in (0, 1) or not draft:
        row = replace(row, reason=_reason(said, f"init ended with {code}"))
    elif len(missing) == 1 and (answer := kernel.answer or proposed(missing[0])):
        row = _with_answer(replace(row, answer=answer), file, arguments)
        if row.state == "refused" and not kernel.answer:
            row = replace(row, state="asks", reason=f"{missing[0]}; with that line: {row.reason}")
    else:
        row = replace(row, state="asks", reason="; ".join(missing))
    return replace(row, seconds=round(time.monotonic() - begin, 1))


def proposed(missing: str) -> str:
    """The line that a message proposes to write; "" where it has a place that only the reader can fill."""
    line = missing.partition("; write: ")[2]
    return "" if is_open(line) else line


def _with_answer(row: Row, file: Path, arguments: Sequence[str]) -> Row:
    with tempfile.TemporaryDirectory() as out, answered(file, row.kernel.kernel, row.answer):
        limits = ["--budget", "1", "--device", "cpu", "--jobs", "1", "--no-memory", "--out", str(Path(out) / "run")]
        code, _, said = _optiml(["optimize", *arguments, *limits, "--write-spec"], _VALIDATE_S)
        lines = [line for line in file.read_text("utf-8", "replace").splitlines() if line.startswith("// optiml:")]
    row = replace(row, draft="".join(f"{line}\n" for line in lines))
    if code == 0:
        return replace(row, state="one answer" if row.kernel.answer else "as proposed")
    return replace(row, reason=_reason(said, f"optimize ended with {code}"))


def _optiml(arguments: Sequence[str], limit_s: float) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command; -1 where it did not end. The limit is CPU time: other work delays it."""
    command = [sys.executable, "-c", "import sys; from engine.cli import main; sys.exit(main())", *arguments]
    begin = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, errors="replace"
    ) as running:
        while True:
            try:
                out, said = running.communicate(timeout=1)
                return running.returncode, out, said
            except subprocess.TimeoutExpired:
                if cpu_s(running.pid) > limit_s or time.monotonic() - begin > _WAITING * limit_s:
                    running.kill()
                    return -1, "", f"optiml: {arguments[0]} did not end in {limit_s:g} s of CPU time"


def cpu_s(root: int) -> float:
    """CPU time of a process and all below it, of those that ended and were waited for, too."""
    spent: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            state = path.read_text().rpartition(")")[2].split()
            spent[int(path.parent.name)] = int(state[1]), sum(map(int, state[11:15])) / _TICKS
    below, more = {root}, True
    while more:
        more = bool(found := {pid for pid, (parent, _) in spent.items() if parent in below} - below)
        below |= found
    return sum(spent[pid][1] for pid in below if pid in spent)


def _reason(said: str, otherwise: str) -> str:
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith(" ")]
    return (lines[-1] if lines else otherwise)[:600]


def page(rows: Sequence[dict[str, Any]]) -> str:
    """docs/foreign.md."""
    lines = [
        "# Kernels of other repositories",
        "",
        "Kernels the tool was not built on, drawn by a seed from all definitions in ten public repositories at fixed commits"
        " (`benchmarks/foreign_draw.py`; the list: `benchmarks/foreign.toml`). Each is drafted and validated without a GPU and"
        " without a spec written by hand. Half of the draw was put aside: it is measured at the end of a round of work, and not worked on.",
        "",
        "```",
        "python benchmarks/foreign.py --all --checkouts DIR --record benchmarks/results/foreign_drafts.json --page docs/foreign.md",
        "```",
        "",
        _counted(rows),
        "",
        *_READ.splitlines(),
        "",
    ]
    for held in (False, True):
        some = [row for row in rows if row["held_out"] is held]
        if not some:
            continue
        good, helped = (sum(row["state"] in states for row in some) for states in (_GOOD, _GOOD[1:]))
        half = "Put aside" if held else "Open"
        lines += [f"## {half}: {good} of {len(some)} reach a validated spec ({helped} of them with one answer)", ""]
        lines += ["| repository | kernel | state | reason, or the answer |", "|---|---|---|---|"]
        for row in some:
            name = f"`{row['file']}` `{row['kernel']}`"
            said = (
                "`{}`".format(row["answer"].replace("|", "\\|")) if row["state"] in _GOOD[1:] else _cell(row["reason"])
            )
            lines.append(f"| {row['repository']} | {name} | {row['state']} | {said} |")
        lines.append("")
    return "\n".join(lines)


def _counted(rows: Sequence[dict[str, Any]]) -> str:
    """What the record says of the figures that were wanted."""
    good = sum(row["state"] in _GOOD for row in rows)
    share = 100 * good / len(rows) if rows else 0.0
    word = "Reached" if share >= _WANTED else "Missed"
    left = [row["reason"] for row in rows if row["state"] not in _GOOD]
    why = {said: sum(bool(re.search(pattern, reason)) for reason in left) for pattern, said in _KINDS}
    parts = [f"{count} {said}" for said, count in why.items() if count]
    named = f" Of the {len(left)} others (one may have several reasons) {', '.join(parts)}." if parts else ""
    return f"Wanted: {_WANTED} %. {word}: {good} of {len(rows)} ({share:.0f} %).{named}"


_GOOD, _WANTED = ("as drafted", "one answer", "as proposed"), 75
# Words of a reason -> what the page counts it as.
_KINDS = (
    (r"cannot run on the CPU|C\+\+ compiler reports", "cannot be tried without a GPU"),
    (r"template argument", "leave template arguments open"),
    (r"is defined in no file of the repository", "take a type that the repository does not define"),
    (r"the kernel (?:writes|wrote) to no buffer", "write to no buffer"),
    (r"data races|another order of threads", "race"),
    (r"__constant__", "read constants that host code fills"),
    (r"pointers in buffers|parameter pack", "take what a spec cannot say"),
    (
        r"suitable inputs|no trial run touches|trial runs end early|indices come from another",
        "need inputs that belong together",
    ),
    (r"no expression of the sizes", "have buffers whose size no expression explains"),
    (r"what '#if", "stand behind a condition"),
)
# What reading the drafts and the reasons of the record in benchmarks/results showed.
_READ = (ROOT / "benchmarks" / "foreign_read.md").read_text(encoding="utf-8")


def _cell(text: str) -> str:
    # The line that would close a gap is of use at a terminal.
    short = re.sub(r"; write: .*?(?=; the |; inputs |$)", "", re.sub(r"\s+", " ", text))
    short = grouped(short)[:_SHOWN]
    return short.replace("|", "\\|").replace("<", "&lt;").replace("](", "]&#40;")


def _place(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["repository"], row["file"], row["kernel"]


def chosen(kernels: Iterable[Foreign], options: argparse.Namespace) -> list[Foreign]:
    """The kernels that the command line asks for."""
    halves = {True, False} if options.all else {options.held_out}
    return [
        k
        for k in kernels
        if k.held_out in halves and (not options.only or re.search(options.only, f"{k.file}:{k.kernel}"))
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Examine, print, record."""
    parser = argparse.ArgumentParser(description="Draft and validate the kernels of other repositories.")
    parser.add_argument(
        "--checkouts", type=Path, required=True, metavar="DIR", help="holds owner__name of each repository"
    )
    parser.add_argument("--list", type=Path, default=LIST, help="the kernels (default: benchmarks/foreign.toml)")
    parser.add_argument("--held-out", action="store_true", help="those that were put aside, alone")
    parser.add_argument("--all", action="store_true", help="both halves")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="those whose FILE:KERNEL has a match; other rows of the record stay"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="kernels examined at a time")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    parser.add_argument("--drafts", type=Path, metavar="DIR", help="a folder for the drafts, one file a kernel")
    parser.add_argument("--page", type=Path, help="the Markdown table to write")
    options = parser.parse_args(given)
    begin = datetime.datetime.now(datetime.UTC)
    kernels = chosen(listed(options.list), options)
    if wrong := misplaced(options.checkouts, {kernel.repository: kernel.commit for kernel in kernels}):
        parser.error(wrong)
    rows: list[dict[str, Any]] = []
    if options.only and options.record and options.record.exists():
        before = json.loads(options.record.read_text(encoding="utf-8"))
        rows = [{"measured": before["commit"], **row} for row in before["kernels"]]
    order = [(k.repository, k.file, k.kernel) for k in listed(options.list)]
    start = head(SCHEMA, __file__, given, begin)  # before the record itself changes the checkout
    checkouts = options.checkouts.resolve()
    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for kernel, row in zip(kernels, pool.map(lambda each: examine(each, checkouts), kernels), strict=True):
            data = {**asdict(kernel), "state": row.state, "reason": row.reason, "seconds": row.seconds}
            data |= {"asked": row.asked, "answer": row.answer or kernel.answer, "measured": start["commit"]}
            rows = [other for other in rows if _place(other) != _place(data)]
            rows = sorted([*rows, data], key=lambda each: order.index(_place(each)))
            if options.drafts and row.draft:
                options.drafts.mkdir(parents=True, exist_ok=True)
                name = re.sub(r"\W+", "_", f"{kernel.file}_{kernel.kernel}")
                (options.drafts / f"{name}.txt").write_text(row.draft, encoding="utf-8")
            if options.record:  # after each: a run of hours that is stopped has something to show
                record = {**start, "kernels": rows}
                options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            print(f"{row.state:10} {row.seconds:6.1f} s  {kernel.file}:{kernel.kernel}  {row.reason}", flush=True)
    counted = ", ".join(f"{sum(row['state'] == state for row in rows)} {state}" for state in _GOOD)
    once = sum(row["state"] == "asks" and row.get("asked") == 1 for row in rows)
    print(f"{counted}; {once} others ask for one thing")
    good = sum(row["state"] in _GOOD for row in rows)
    print(f"{good} of {len(rows)} reach a validated spec with at most one answer")
    if options.page:
        options.page.write_text(page(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
