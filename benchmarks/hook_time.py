"""How long `optiml-check` takes on two changed files of 200 lines each: cold and cached, on two cores, without a GPU.

    python benchmarks/hook_time.py --record benchmarks/results/hook_time.json

Makes a git repository with two kernels and their specs, changes and stages them, and runs the installed command as pre-commit
does. "first" is with an empty cache folder, as once after installing: the CPU runtime is not built yet, and what it would have
counted is left out with a note. "cold" is a text that was not seen before; "cached" the same text once more. Every round's time
stands in the record, with the machine's load. Exit code 0, 1 when the best of a kind is over its limit (1.5 s cold, 0.4 s cached).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from tests.bot.repo import Repo  # noqa: E402

SCHEMA = "optiml.hook_time/1"
LIMITS = {"cold": 1.5, "cached": 0.4}
FILES = ("k.cu", "l.cu")
LINES, CORES = 200, 2
KERNEL = """\
#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "n" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: time = [{ n = 1048576 }]
__global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = @f * x[i];
}

void run(const float* x, float* y, int n) {
    scale<<<(n + 255) / 256, 256>>>(x, y, n);
}
"""


def text(round_: int) -> str:
    """The file as of one round: 200 lines, with another factor each time."""
    body = KERNEL.replace("@f", f"{2 + round_}.0f")
    return body + "".join(f"// line {n} of a longer file\n" for n in range(LINES - body.count("\n")))


def texts(round_: int) -> dict[str, str]:
    """Both files as of one round."""
    return {name: text(round_).replace("scale", f"scale_{name[0]}") for name in FILES}


def once(folder: Path, cache: Path) -> tuple[float, float]:
    """Seconds of one run of the command, by the clock and of processor time. Raises RuntimeError where it fails."""
    beside = Path(sys.executable).parent / "optiml-check"
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from hooks.check import main; sys.exit(main())"
    command = [str(beside)] if beside.is_file() else [sys.executable, "-c", code, str(ROOT)]
    begin, used = time.monotonic(), _used()
    done = subprocess.run(
        [*command, *FILES],
        cwd=folder,
        env=os.environ | {"OPTIML_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    taken = time.monotonic() - begin
    if done.returncode != 0:
        raise RuntimeError(f"optiml-check ended with {done.returncode}: {done.stdout}{done.stderr}")
    return taken, _used() - used


def _used() -> float:
    """Processor seconds of the processes that ended; a busy machine changes the clock's figure and hardly this one."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def measure(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of every round, by kind: by the clock, and of processor time."""
    found: dict[str, list[tuple[float, float]]] = {"first": [], "cold": [], "cached": []}
    with tempfile.TemporaryDirectory() as scratch:
        repo, cache = Repo(Path(scratch) / "repository"), Path(scratch) / "cache"
        repo.commit(texts(0))
        repo.write(texts(1))
        repo.git("add", *FILES)
        found["first"].append(once(repo.folder, cache))
        _wait_for_runtime(cache)
        for round_ in range(2, rounds + 2):
            repo.write(texts(round_))
            repo.git("add", *FILES)
            found["cold"].append(once(repo.folder, cache))
            found["cached"].append(once(repo.folder, cache))
    return found


def _wait_for_runtime(cache: Path) -> None:
    """Until the CPU runtime is there, which the first check builds behind a person's back."""
    from engine.cpu.toolchain import find_toolchain, prepare

    toolchain = find_toolchain()
    if toolchain is not None:
        prepare(toolchain, cache / "cpu", "c++17")


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Time of optiml-check, cold and cached.")
    parser.add_argument("--rounds", type=int, default=7, help="of each kind (default: 7)")
    parser.add_argument("--record", type=Path, required=True, help="the JSON record to write")
    options = parser.parse_args(given)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    before = os.getloadavg()[0]
    found = measure(options.rounds)
    record = {
        "schema": SCHEMA,
        "command": ["python", "benchmarks/hook_time.py", *(sys.argv[1:] if given is None else given)],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(), "machine": machine(), "cores": CORES, "lines": LINES, "files": len(FILES), "load_before": before,
        "load_after": os.getloadavg()[0], "limits_s": LIMITS, "seconds_clock_and_processor": found,
    }  # fmt: skip
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    best = {kind: min(wall for wall, _ in times) for kind, times in found.items()}
    for kind, times in found.items():
        walls = [wall for wall, _ in times]
        limit = f", limit {LIMITS[kind]} s" if kind in LIMITS else ""
        said = f"{kind:7} best {best[kind]:.2f} s, median {statistics.median(walls):.2f} s{limit}"
        print(f"{said}; processor {min(used for _, used in times):.2f} s")
    print(f"load before {before:.1f}, after {record['load_after']:.1f}, {CORES} cores")
    return int(any(best[kind] > limit for kind, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
