"""How a kernel fares that is timed beside itself, and how long cold launches take behind several flushes. Needs a GPU.

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
_READ_MB = (8, 16, 32, 64, 128, 256)
_FLUSHED_MB = (0, 64, 128, 256, 512)
_TIMES = 30


def beside_itself(path: Path, runs: int) -> tuple[list[float], list[int]]:
    """The speedup of each run and its rounds. Raises OptimlError."""
    from engine.cuda.load import load_program, repository_root
    from engine.run.machine import make_machine
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


def cold_us() -> list[tuple[str, int, list[float]]]:
    """Median µs of kernels of several sizes behind several flushes: (kernel, MB moved, one figure for each of `flushes`)."""
    import cupy as cp

    source = (
        'extern "C" __global__ void rd(const float4* p, float4* q, long long n) {'
        " float sum = 0; for (long long i = blockIdx.x * 256LL + threadIdx.x; i < n; i += gridDim.x * 256LL)"
        " { float4 v = p[i]; sum += v.x + v.y + v.z + v.w; } if (sum == 1e38f) q->x = sum; }"
        ' extern "C" __global__ void cp(const float4* p, float4* q, long long n) {'
        " for (long long i = blockIdx.x * 256LL + threadIdx.x; i < n; i += gridDim.x * 256LL) q[i] = p[i]; }"
        ' extern "C" __global__ void wr(const float4* p, float4* q, long long n) {'
        " for (long long i = blockIdx.x * 256LL + threadIdx.x; i < n; i += gridDim.x * 256LL) q[i] = make_float4(1, 2, 3, 4); }"
    )
    module = cp.RawModule(code=source)
    kernels = {
        "read": (module.get_function("rd"), 1),
        "copy": (module.get_function("cp"), 2),
        "write": (module.get_function("wr"), 1),
    }
    data, out = cp.zeros(max(_READ_MB) << 18, cp.float32), cp.zeros(max(_READ_MB) << 18, cp.float32)
    other = cp.zeros(max(_FLUSHED_MB) << 18, cp.float32)
    start, stop = cp.cuda.Event(), cp.cuda.Event()
    flushes: list[Callable[[], object]] = [lambda: None]
    flushes += [lambda mb=mb: other[: mb << 18].fill(0.0) for mb in _FLUSHED_MB[1:]]  # type: ignore[misc]
    flushes += [
        lambda mb=mb: kernels["read"][0]((1056,), (256,), (other, out, (mb << 20) // 16))  # type: ignore[misc]
        for mb in _FLUSHED_MB[1:]
    ]

    def once(kernel: Any, count: int, flush: Callable[[], object]) -> float:
        out[: 4 * count].fill(0.5)  # as outputs are poisoned before a timed launch
        flush()
        start.record()
        kernel((1056,), (256,), (data, out, count))
        stop.record()
        stop.synchronize()
        return float(cp.cuda.get_elapsed_time(start, stop)) * 1e3

    rows = []
    for name, (kernel, arrays) in kernels.items():
        for mb in _READ_MB:
            count = (mb << 20) // 16
            times = [statistics.median(once(kernel, count, flush) for _ in range(_TIMES)) for flush in flushes]
            rows.append((name, mb * arrays, times))
    return rows


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
    heads = ["none", *(f"{mb} MB stored" for mb in _FLUSHED_MB[1:]), *(f"{mb} MB read" for mb in _FLUSHED_MB[1:])]
    print(f"\n| kernel | MB | {' | '.join(heads)} |\n|---|---:{'|---:' * len(heads)}|")
    for name, mb, times in cold_us():
        print(f"| {name} | {mb} | {' | '.join(f'{t:.1f}' for t in times)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
