"""Coverage-guided fuzzing of one reader, or of all in turn, with atheris.

    python -m tests.fuzz.run parser --seconds 600 --corpus .fuzz/parser
    python -m tests.fuzz.run all --seconds 60
    python -m tests.fuzz.run --list

Exit code 0 when nothing was found. What is found is written to the folder given by --findings; `python -m tests.fuzz.run NAME
--replay FILE` shows it again. With --corpus what was learned is kept and started from the next time.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the readers of what comes from strangers.")
    parser.add_argument("name", nargs="?", default="all", help="a reader, or all (default)")
    parser.add_argument("--list", action="store_true", help="print the readers' names")
    parser.add_argument("--seconds", type=int, default=60, help="how long (default: 60)")
    parser.add_argument("--runs", type=int, default=-1, help="at most so many inputs")
    parser.add_argument("--seed", type=int, default=0, help="of the changes (default: another each time)")
    parser.add_argument("--length", type=int, default=8192, help="of the longest input in bytes (default: 8192)")
    parser.add_argument("--corpus", type=Path, help="a folder to keep what was learned in")
    parser.add_argument("--findings", type=Path, default=Path("."), help="where a finding goes (default: here)")
    parser.add_argument("--replay", type=Path, help="run this one input and nothing else")
    options = parser.parse_args()
    if options.list or options.replay:
        targets = importlib.import_module("tests.fuzz.targets")
        if options.list:
            print("\n".join(target.name for target in targets.TARGETS))
            return 0
        run = targets.all_at_once if options.name == "all" else targets.by_name(options.name).run
        run(options.replay.read_bytes())
        return 0

    import atheris

    with atheris.instrument_imports(include=["engine", "bot"], enable_loader_override=False):
        targets = importlib.import_module("tests.fuzz.targets")
    if options.name == "all":
        run, seeds = targets.all_at_once, targets.seeds_of_all()
    else:
        target = targets.by_name(options.name)
        run, seeds = target.run, target.seeds()
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder)
        for number, seed in enumerate(seeds):
            (start / f"seed{number}").write_bytes(seed)
        corpora = [str(options.corpus), folder] if options.corpus else [folder]
        if options.corpus:
            options.corpus.mkdir(parents=True, exist_ok=True)
        options.findings.mkdir(parents=True, exist_ok=True)
        arguments = [
            sys.argv[0], *corpora, f"-max_total_time={options.seconds}", f"-runs={options.runs}", f"-max_len={options.length}",
            f"-seed={options.seed}", "-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1", "-verbosity=0",
            f"-artifact_prefix={options.findings}/",
        ]  # fmt: skip
        atheris.Setup(arguments, run)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
