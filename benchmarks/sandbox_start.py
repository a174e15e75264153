"""What a start in the sandbox costs beside the same start without it.

    python benchmarks/sandbox_start.py --record benchmarks/results/sandbox_start.json

Starts /bin/true in turn outside and inside, as the compiler, the CPU path and the GPU worker are started, and compares the
medians. Exit code 0 when the sandbox costs less than the 50 ms that are allowed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from engine.process.sandbox import SandboxAccess

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from engine.process.sandbox import NoSandbox, Sandbox, sandbox  # noqa: E402

ALLOWED_MS = 50.0


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="What a start in the sandbox costs.")
    parser.add_argument("--starts", type=int, default=100, help="of each kind (default: 100)")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    options = parser.parse_args(given)
    box = sandbox()
    assert isinstance(box, Sandbox)
    begin = time.perf_counter()
    box.command(["/bin/true"])
    made_ms = 1e3 * (time.perf_counter() - begin)
    kinds = {
        "outside": NoSandbox().command(["/bin/true"]),
        "inside": box.command(["/bin/true"]),
        "inside, with the GPU's nodes": box.command(["/bin/true"], SandboxAccess(gpu=True)),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(options.starts):
        for kind, command in kinds.items():
            begin = time.perf_counter()
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            times[kind].append(1e3 * (time.perf_counter() - begin))
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    print("| start of /bin/true | median ms | 90th percentile ms | more than outside, ms |\n|---|---:|---:|---:|")
    for kind, values in times.items():
        late = statistics.quantiles(values, n=10)[-1]
        print(f"| {kind} | {medians[kind]:.1f} | {late:.1f} | {medians[kind] - medians['outside']:.1f} |")
    record = {
        "schema": "optiml.sandbox_start/1",
        "command": ["python", "benchmarks/sandbox_start.py", *(sys.argv[1:] if given is None else given)],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "bwrap": subprocess.run([str(box.bwrap), "--version"], capture_output=True, text=True).stdout.strip(),
        "seccomp": box.filtered,
        "command_made_ms": made_ms,
        "median_ms": medians,
        "overhead_ms": medians["inside"] - medians["outside"],
        "times_ms": times,
    }
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return 0 if medians["inside"] - medians["outside"] < ALLOWED_MS else 1


if __name__ == "__main__":
    sys.exit(main())
