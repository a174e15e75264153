"""How a kernel fares that is timed beside itself, and how cold caches are after being flushed with so many bytes. Needs a GPU.

    python benchmarks/against_itself.py [FILE ...] [--runs N]

Each kernel is loaded twice, as original and as candidate, and timed as a suggestion is confirmed: the truth is 1. The figures are of
this machine and of nothing else. Exit code 0; 1 where a kernel cannot be measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from engine.errors import OptimlError  # noqa: E402 - the path above makes it importable as a script
from engine.statistics import paired_ratio  # noqa: E402

KERNELS = ("tuning/saxpy.cu", "tuning/row_sum.cu", "suite/topk.cu", "suite/spmv.cu")
_READ_MB = (8, 16, 32, 64, 128)
_FLUSHED_MB = (0, 32, 64, 128, 256)
_TIMES = 30


def beside_itself(path: Path, runs: int) -> tuple[list[float], list[int]]:
    """The speedup of each run and its rounds. Raises OptimlError."""
    from engine.machine import make_machine
    from engine.source.load import load_program, repository_root
    from engine.spec.find import find_spec

    root = repository_root(path)
    spec, spec_path = find_spec(root, path)
    program = load_program(path, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])
    machine = make_machine(device="gpu")
    try:
        evaluator: Any = machine.evaluator(spec, root, spec_path)
        built, _ = evaluator.open(program)
        runner = evaluator._runner
        runner.load("candidate", built)
        timings = [evaluator._timing(["original", "candidate"], "final") for _ in range(runs)]
        found = [runner.time(timing, timeout_s=60.0)[0]["samples_us"] for timing in timings]
        evaluator.close()
    finally:
        machine.close()
    return [paired_ratio(*samples).ratio for samples in found], [len(samples[0]) for samples in found]


def cold_us() -> dict[int, list[float]]:
    """Median µs of reading so many MB, by what was written between two reads (in the order of `_FLUSHED_MB`)."""
    import cupy as cp

    read = cp.RawKernel(
        'extern "C" __global__ void rd(const float4* p, float* out, long long n) {'
        " float sum = 0; for (long long i = blockIdx.x * 256LL + threadIdx.x; i < n; i += gridDim.x * 256LL)"
        " { float4 v = p[i]; sum += v.x + v.y + v.z + v.w; } if (sum == 1e38f) *out = sum; }",
        "rd",
    )
    data, out = cp.zeros(max(_READ_MB) << 18, cp.float32), cp.empty(1, cp.float32)
    other = cp.empty(max(_FLUSHED_MB) << 18, cp.float32)
    start, stop = cp.cuda.Event(), cp.cuda.Event()

    def once(count: int, flush: Callable[[], object]) -> float:
        read((1056,), (256,), (data, out, count))
        flush()
        start.record()
        read((1056,), (256,), (data, out, count))
        stop.record()
        stop.synchronize()
        return float(cp.cuda.get_elapsed_time(start, stop)) * 1e3

    return {
        mb: [
            statistics.median(once((mb << 20) // 16, lambda f=f: other[: f << 18].fill(1.0)) for _ in range(_TIMES))  # type: ignore[misc]
            for f in _FLUSHED_MB
        ]
        for mb in _READ_MB
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="kernels with a spec (default: four of ours)"
    )
    parser.add_argument("--runs", type=int, default=3, help="of each kernel (default: 3)")
    chosen = parser.parse_args(arguments)
    print("| kernel | speedup over itself | rounds |\n|---|---|---|", flush=True)
    for path in chosen.files or [ROOT / "benchmarks" / kernel for kernel in KERNELS]:
        try:
            ratios, rounds = beside_itself(path.resolve(), chosen.runs)
        except OptimlError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"| {path.name} | {', '.join(f'{r:.4f}' for r in ratios)} | {', '.join(map(str, rounds))} |", flush=True)
    print(f"\n| read, MB | {' | '.join(f'{f} MB flushed, µs' for f in _FLUSHED_MB)} |")
    print("|---:" * (1 + len(_FLUSHED_MB)) + "|")
    for mb, times in cold_us().items():
        print(f"| {mb} | {' | '.join(f'{t:.2f}' for t in times)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
