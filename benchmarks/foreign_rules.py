"""For how many kernels of other repositories the rules have something to propose. Runs no kernel and needs no GPU.

    python benchmarks/foreign_rules.py --checkouts DIR --seed 6 --count 100 --record benchmarks/results/foreign_rules.json

Draws kernels from all definitions in the folders of `benchmarks/foreign_draw.py` and in the other repositories of
`benchmarks/foreign_gains.toml`, but none that either list keeps from those who write rules. Each is drafted from its text alone; a
size that the text does not show counts as 1,048,576. What the rules propose for it is counted by rule. Rules that have something for
almost every kernel (`BROAD`) are told apart. Exit code 0, or 2 where a checkout is missing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import foreign, foreign_draw, foreign_gains  # noqa: E402 - the path above makes it importable as a script
from benchmarks.examples import head  # noqa: E402
from engine.cuda.load import load_program, repository_root  # noqa: E402
from engine.errors import OptimlError  # noqa: E402
from engine.process.sandbox import sandbox  # noqa: E402
from engine.rules import RuleFailure, make_site, proposals  # noqa: E402
from engine.run.ready_spec import Known, SpecMaker  # noqa: E402
from engine.spec.find import project_options  # noqa: E402
from engine.spec.gaps import lines_of  # noqa: E402

SCHEMA = "optiml.foreign_rules/1"
GAINS = foreign_gains.LISTS[:1]
BROAD = frozenset({"restrict", "read_only", "launch_bounds", "unroll", "fast_math"})
_UNKNOWN_SIZE = "1048576"
_LIMIT_S = 60  # ours: ten times what a kernel takes


def kept_away() -> set[tuple[str, str, str]]:
    """(repository, file, kernel) of what those who write rules do not look at."""
    held = {(k.repository, k.file, k.kernel) for k in foreign.listed() if k.held_out}
    return held | {(k.repository, k.file, k.kernel) for k in foreign_gains.listed(GAINS) if not k.worked_on}


def every(checkouts: Path) -> Iterator[tuple[str, str, str]]:
    """(repository, file, kernel) of all definitions, by name."""
    names = [kernel.repository for kernel in foreign_gains.listed(GAINS)]
    away = kept_away()
    for repository in sorted({*foreign_draw.REPOSITORIES, *names}):
        root = checkouts / repository.replace("/", "__")
        found = {
            (path.relative_to(root).as_posix(), name)
            for folder in foreign_draw.REPOSITORIES.get(repository, (".",))
            for path in (root / folder).rglob("*")
            if path.suffix in foreign_draw.ENDINGS and path.is_file()
            for name in foreign_draw.definitions(path.read_text(encoding="utf-8", errors="replace"))
        }
        yield from (place for file, name in sorted(found) if (place := (repository, file, name)) not in away)


def asked(path: Path, kernel: str) -> dict[str, Any]:
    """What the rules propose for one kernel, or why it has no spec. Raises TimeoutError."""
    root = repository_root(path)
    maker = SpecMaker(root, sandbox(False), static=True)
    failures: list[RuleFailure] = []
    try:
        made, _, _ = maker.drafted(path, Known(kernel, project_options(root, path)))
        lines = "".join(f"// optiml: {line}\n" for key, line in lines_of(made.text).items() if key != "file")
        spec = maker.read_back(path, kernel, lines.replace('"?"', f'"{_UNKNOWN_SIZE}"'))
        options = spec.compile
        program = load_program(path, kernels=[s.kernel for s in spec.steps], include=options.include, unit=options.unit)
        begin = time.thread_time()
        site = make_site(program, spec)
        found = Counter(p.rule for p in proposals(site, failures=failures))
    except (OptimlError, KeyError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return {
        "rules": dict(sorted(found.items())),
        "launch_visible": site.launch_visible,
        "rules_s": round(time.thread_time() - begin, 3),
        "failures": [str(f) for f in failures],
        "error": None,
    }


def _late(*_: object) -> None:
    raise TimeoutError


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many kernels have a drafted spec, and for how many of them there is what."""
    done = [row for row in rows if row["error"] is None]
    return {
        "kernels": len(rows),
        "drafted": len(done),
        "something": sum(bool(row["rules"]) for row in done),
        "beyond_broad": sum(bool(set(row["rules"]) - BROAD) for row in done),
        "by_rule": dict(Counter(rule for row in done for rule in row["rules"]).most_common()),
    }


def main(given: Sequence[str] | None = None) -> int:
    """Draw, ask, print, record."""
    parser = argparse.ArgumentParser(description="Ask the rules about kernels of other repositories.")
    parser.add_argument(
        "--checkouts", type=Path, required=True, metavar="DIR", help="holds owner__name of each repository"
    )
    parser.add_argument("--seed", type=int, default=6, help="of the draw (default: 6)")
    parser.add_argument("--count", type=int, default=100, help="kernels drawn (default: 100)")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    options = parser.parse_args(given)
    kernels = list(every(options.checkouts))
    if not kernels:
        parser.error(f"{options.checkouts} holds no checkout")
    random.Random(options.seed).shuffle(kernels)
    start = head(SCHEMA, __file__, given, datetime.datetime.now(datetime.UTC))
    signal.signal(signal.SIGALRM, _late)
    rows: list[dict[str, Any]] = []
    for repository, file, kernel in kernels[: options.count]:
        signal.alarm(_LIMIT_S)
        try:
            row = asked((options.checkouts / repository.replace("/", "__") / file).resolve(), kernel)
        except TimeoutError:
            row = {"error": f"did not end in {_LIMIT_S} s"}
        finally:
            signal.alarm(0)
        rows.append({"repository": repository, "file": file, "kernel": kernel, **row})
        print(f"{file}:{kernel} {row['error'] or ' '.join(row['rules']) or 'nothing'}", flush=True)
        if options.record:  # after each: what is stopped has something to show
            record = {**start, "seed": options.seed, "rows": rows, "summary": summary(rows)}
            options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    told = summary(rows)
    print(
        f"{told['drafted']} of {told['kernels']} drafted, {told['beyond_broad']} with more than {', '.join(sorted(BROAD))}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
