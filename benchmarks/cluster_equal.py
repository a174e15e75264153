"""The same kernels searched one after the other and on a local cluster: same candidates, same outcomes, same suggestions?

    python -m benchmarks.cluster_equal --kernels 12 --workers 4 --record benchmarks/results/cluster_equal.json

Real searches on the CPU (screened and predicted), with a budget of candidates for each kernel, one compiler (`--jobs 1`) and one seed.
Compared are all rows of the journals, but for times, and the results' suggestions.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.examples import commit, machine
from engine.cluster.identity import versions

_BODIES = (
    "2.0f * x[i]", "x[i] + 1.0f", "x[i] * x[i]", "fabsf(x[i])", "x[i] > 0.0f ? x[i] : 0.0f", "x[i] - 0.5f", "x[i] * 0.5f + 3.0f",
    "fmaxf(x[i], -1.0f)", "fminf(x[i], 1.0f)", "x[i] * x[i] * x[i]", "1.0f - x[i]", "x[i] / 3.0f",
)  # fmt: skip
_KERNEL = """
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4096 }, { n = 10007 }]
// optiml: time = [{ n = 65536 }]
__global__ void NAME(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = BODY;
}
void run_NAME(const float* x, float* y, int n) { NAME<<<(n + 255) / 256, 256>>>(x, y, n); }
"""
_COLUMNS = "id, parent, proposer, rule, parameters, digest, code_hash, outcome, ratio, prior"


def main() -> int:
    """Exit code 0 when nothing differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=12)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--candidates", type=int, default=4)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    found, wall_s = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        cache = {**os.environ, "OPTIML_CACHE": f"{folder}/cache"}
        for name, more in (
            ("one after the other", []),
            ("cluster", ["--cluster", "local", "--workers", str(options.workers)]),
        ):
            root = repository(Path(folder) / name.replace(" ", "-"), options.kernels)
            command = [
                sys.executable,
                "-m",
                "engine.cli",
                "all",
                str(root),
                "--budget-each",
                str(options.candidates),
                "--least",
                "0",
            ]
            command += ["--device", "cpu", "--jobs", "1", "--limit", "0.001", "--format", "json", *more]
            begin = time.monotonic()
            subprocess.run(command, env=cache, stdout=subprocess.DEVNULL, check=True)
            wall_s[name], found[name] = round(time.monotonic() - begin, 1), outcome(root)
            print(f"{name}: {wall_s[name]} s, {sum(len(k['rows']) for k in found[name].values())} rows", flush=True)
    alone, spread = found["one after the other"], found["cluster"]
    different = sorted(kernel for kernel in {*alone, *spread} if alone.get(kernel) != spread.get(kernel))
    print(
        f"{len(alone) - len(different)} of {len(alone)} kernels the same; different: {', '.join(different) or 'none'}"
    )
    if options.record is not None:
        best = {kernel: each["best"] for kernel, each in alone.items()}
        record = {
            "command": "python -m benchmarks.cluster_equal " + " ".join(sys.argv[1:]), "commit": commit(), "machine": machine(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "versions": dict(versions()),
            "kernels": len(alone), "rows": sum(len(k["rows"]) for k in alone.values()), "different": different, "wall_s": wall_s,
            "best": best,
        }  # fmt: skip
        options.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return 1 if different or len(alone) != options.kernels else 0


def repository(root: Path, kernels: int) -> Path:
    """A repository of so many kernels."""
    (root / ".git").mkdir(parents=True)
    for number in range(kernels):
        name = f"kernel{number}"
        (root / f"{name}.cu").write_text(_KERNEL.replace("NAME", name).replace("BODY", _BODIES[number % len(_BODIES)]))
    return root


def outcome(root: Path) -> dict[str, dict[str, Any]]:
    """What the searches of a repository came to, by folder."""
    found = {}
    for path in sorted(root.glob(".optiml/*/journal.sqlite")):
        with closing(sqlite3.connect(path)) as db:
            rows = [list(row) for row in db.execute(f"SELECT {_COLUMNS} FROM candidates ORDER BY id")]
        result = json.loads((path.parent / "result.json").read_text())
        best = result["best"]
        ratio = None if best is None else best["evaluation"]["measurement"]["ratio"]
        patch = path.parent / "best.patch"
        text = patch.read_text() if patch.is_file() else ""
        found[path.parent.name] = {"rows": rows, "best": ratio, "patch": text, "counts": result["counts"]}
    return found


if __name__ == "__main__":
    sys.exit(main())
