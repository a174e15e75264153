"""Kernel Tuner's side of the comparison, in a process of its own: `python kernel_tuner_side.py KERNEL LIMIT_S OUT.json`.

The same kernel text, the same parameters, the same feasible points and the same inputs as ours, verified with Kernel Tuner's own
check after every compilation; every point in a random order until all are done or the time is up. Its settings: the NVCUDA
back-end with NVRTC, seven iterations a configuration (its default), no observers.
"""

from __future__ import annotations

import importlib.metadata
import json
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

# Which parameters are the block's extents, for Kernel Tuner's block_size_names.
BLOCKS = {
    "saxpy": ["BLOCK"], "transpose": ["EDGE", "ROWS"], "row_sum": ["TEAM", "ROWS"], "gemm": ["BLOCK_X", "BLOCK_Y"],
    "convolution": ["BLOCK_X", "BLOCK_Y"],
}  # fmt: skip
Arrays = dict[str, Any]


def _convolution(b: Arrays, s: Arrays) -> Any:
    image = b["image"].reshape(s["h"] + 14, s["w"] + 14)
    total = np.zeros((s["h"], s["w"]), np.float32)
    for i in range(15):
        for j in range(15):
            total += image[i : i + s["h"], j : j + s["w"]] * b["filter"][15 * i + j]
    return {"result": total}


REFERENCES: dict[str, Callable[[Arrays, Arrays], Arrays]] = {
    "saxpy": lambda b, s: {"y": np.float32(3.0) * b["x"] + b["y"]},
    "transpose": lambda b, s: {"b": np.ascontiguousarray(b["a"].reshape(s["rows"], s["cols"]).T)},
    "row_sum": lambda b, s: {"y": b["x"].reshape(s["rows"], s["cols"]).sum(1)},
    "gemm": lambda b, s: {"c": b["a"].reshape(s["m"], s["k"]) @ b["b"].reshape(s["k"], s["n"])},
    "convolution": _convolution,
}
_TOLERANCE = 2e-4  # absolute, of the outputs' root mean square


def template_text(text: str, names: tuple[str, ...]) -> str:
    """A device slice without the definitions of the parameters, which Kernel Tuner puts in front."""
    return re.sub(rf"^[ \t]*#[ \t]*define[ \t]+(?:{'|'.join(names)})\b.*$", "", text, flags=re.M)


def main() -> int:
    """Exit code 0."""
    kernel, limit_s, out = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    from engine.cuda.load import load_program
    from engine.evaluate.build import Builder
    from engine.run.machine import make_machine
    from engine.spec.data import generate, scalars
    from engine.spec.find import find_spec
    from engine.tune.chosen_template import make_template
    from engine.tune.feasible import feasible
    from engine.tune.tune_options import TuneOptions

    path = ROOT / "benchmarks" / "tuning" / f"{kernel}.cu"
    spec, spec_path = find_spec(ROOT, path)
    program = load_program(path, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])
    machine = make_machine(device="cpu", arch=sys.argv[4] if len(sys.argv) > 4 else None)
    try:
        template, _ = make_template(TuneOptions(path=path), program, spec, spec_path, machine.target)
        points = feasible(template, machine.target).points
        builder = Builder(spec, ROOT, machine.compiler, machine.target, spec_path)
        text = template_text(builder.original(program).text, template.space.names)
    finally:
        machine.close()
    case = spec.time[0]
    buffers = generate(spec, case, 1, "declared")
    values = {**buffers, **scalars(spec, case)}
    wanted = {
        name: np.asarray(v, np.float32).reshape(-1) for name, v in REFERENCES[kernel](buffers, dict(case.sizes)).items()
    }
    order = spec.steps[0].arguments
    arguments = [values[n] if n in values else np.zeros_like(wanted[n]) for n in order]
    scale = max(float(np.sqrt(np.mean(np.square(v)))) for v in wanted.values())
    allowed = set(points)
    names = template.space.names
    grids = {point: found.launches[0][0].grid for point in points if (found := template.figures(point)).launches}

    import constraint
    import kernel_tuner

    random.seed(0)
    np.random.seed(0)
    begin = time.perf_counter()
    results, _ = kernel_tuner.tune_kernel(
        spec.steps[0].kernel, text, lambda p: grids[tuple(p[n] for n in names)], arguments,
        {p.name: list(p.values) for p in template.space.parameters},
        grid_div_x=[], grid_div_y=[], grid_div_z=[], block_size_names=list(BLOCKS[kernel]),
        # A constraint object: of a function Kernel Tuner would read the source.
        restrictions=[constraint.FunctionConstraint(lambda *point: point in allowed)],
        answer=[wanted.get(n) for n in order], atol=_TOLERANCE * scale, lang="NVCUDA", compiler_options=["--std=c++17"],
        strategy="random_sample", strategy_options={"fraction": 1.0, "time_limit": limit_s}, quiet=True,
    )  # fmt: skip
    elapsed = time.perf_counter() - begin
    rows = [
        {
            "point": [int(r[n]) for n in names],
            "time_us": 1e3 * r["time"] if "__error__" not in r and isinstance(r.get("time"), float) else None,
        }
        for r in results
    ]  # fmt: skip
    parts = ("compile_time", "verification_time", "benchmark_time", "framework_time", "strategy_time")
    stages = {part: sum(r.get(part, 0.0) for r in results) / 1e3 for part in parts}
    found = {
        "points": len(points), "rows": rows, "elapsed_s": elapsed, "stages": stages,
        "version": importlib.metadata.version("kernel_tuner"),
    }  # fmt: skip
    out.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
