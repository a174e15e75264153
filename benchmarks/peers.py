"""The suite's suggestions beside PyTorch, cuBLAS, cuSPARSE and CUB: the same inputs, one process, timed in turn.

A row takes the suggestion that the table `suite` recorded, builds it anew and measures it with the original and the peers. Peers get
their best settings: fused operations where the library has them, cuDNN's benchmark mode, `torch.compile` with
`max-autotune-no-cudagraphs` (the same kernels as `max-autotune`, without copying every call's inputs into a graph's
buffers), of the formula in plain operations where a fused operation is closed to the compiler. TF32 is off for all: the kernels are
fp32. Time of the host is in nobody's figure (benchmarks/sidebyside.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.bench import Place, Row, Settings, Table, load
from benchmarks.peer_operations import Arrays, formulas, library_calls, torch_operations
from benchmarks.searches import SUITE
from benchmarks.sidebyside import Stage, compared, disagreement, interleaved
from engine.errors import MachineError, UsageError

COPY = "copy"
COPY_BYTES = 1 << 30
WANTED_GEMM = 0.6
_EQUAL = 0.02  # times that differ by less count as equal
_AGREE = 1e-2  # of the root mean square: a peer further off computes something else
# A row in a process of its own: starting and building take some five seconds, timing at most six; the compiler of PyTorch tries many
# kernels for what multiplies matrices. Ours, for the limit of a call.
_CALL_ROW_S, _TORCH_ROW_S, _PRODUCT_ROW_S = 12.0, 30.0, 60.0
_PRODUCTS = frozenset(("batched_gemm", "causal_scores", "conv2d", "gemm_bias_relu", "gemm_tiled", "gemv_update"))


def pytorch_table() -> Table:
    """PyTorch eager and compiled."""
    return Table(
        "peers-pytorch", "the suite's suggestions compared with PyTorch, eager and compiled", Settings(),
        lambda place, settings: sorted(torch_operations()), _measure_torch, summary, render,
        lambda settings, row: _PRODUCT_ROW_S if row in _PRODUCTS else _TORCH_ROW_S,
        _needs,
    )  # fmt: skip


def cublas_cub_table() -> Table:
    """cuBLAS, cuSPARSE and CUB, one call each, and a copy."""
    return Table(
        "peers-cublas-cub", "the suite's suggestions compared with one call of cuBLAS or CUB; the copy bandwidth", Settings(),
        lambda place, settings: [COPY, *sorted(library_calls())], _measure_calls, summary, render, lambda settings, row: _CALL_ROW_S,
        _needs,
    )  # fmt: skip


def _needs(place: Place, kernel: str) -> list[tuple[str, str]]:
    """The row that `suggestion` reads."""
    return [] if kernel == COPY or kernel.startswith("control_") else [("suite", kernel)]


def suggestion(place: Place, kernel: str) -> dict[str, str]:
    """The files that the suite's suggestion for a kernel changed; none of a control. Raises UsageError where no row is recorded."""
    if kernel.startswith("control_"):
        return {}
    # The rows of a record in parts are newer than those of a whole one beside it.
    found: dict[str, Row] = {}
    for name in ("suite.json", "suite.part.json"):
        found |= (load(place.results / name, "suite") or {"rows": {}})["rows"]
    row = found.get(kernel)
    if row is None or row["error"] is not None:
        raise UsageError(
            f"the table suite has no row for {kernel}",
            str(place.results / "suite.json"),
            "measure `optiml bench suite` first",
        )
    return dict(row.get("files", {}))


def _measure_torch(place: Place, settings: Settings, kernel: str) -> Row:
    try:
        import torch
    except ImportError:
        raise MachineError("PyTorch is not installed", do="pip install torch") from None
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    make = torch_operations()[kernel]
    stage = Stage(place, f"{SUITE}/{kernel}.cu", suggestion(place, kernel))
    try:
        given = {
            a.name: torch.as_tensor(_signed(stage.array(a.name)), device="cuda")
            for a in stage.spec.arguments
            if a.role in ("in", "inout")
        }
        sizes = dict(stage.case.sizes)
        eager = make(torch, given, sizes)
        ours = stage.result()
        off = _disagreements(eager(), ours)
        torch._dynamo.reset()
        plain = formulas().get(kernel, make)
        compiled = torch.compile(plain(torch, given, sizes), mode="max-autotune-no-cudagraphs", dynamic=False)
        note = ""
        contestants: dict[str, Callable[[], Any]] = {**stage.calls, "eager": eager}
        try:
            off = {**off, **{f"compiled {k}": v for k, v in _disagreements(compiled(), ours).items()}}
            contestants["compiled"] = compiled
        except Exception as error:  # a compiler of another project: what it cannot do is a result
            note = f"torch.compile failed: {type(error).__name__}: {str(error)[:200]}"
        with torch.no_grad():
            samples = interleaved(contestants, dict.fromkeys(stage.calls, stage.reset))
        found = compared(samples)
        device = torch.cuda.get_device_name()
        return {
            **found, "disagreement": off, "note": note, "operation": make.__doc__ or "",
            "device": {"name": device}, "versions": {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()},
        }  # fmt: skip
    finally:
        stage.close()
        torch.cuda.empty_cache()


def _signed(array: Any) -> Any:
    """PyTorch has few operations on unsigned words; the suite's fit a signed one."""
    return array.view("int32") if array.dtype == "uint32" else array


def _measure_calls(place: Place, settings: Settings, kernel: str) -> Row:
    try:
        import cupy as cp
    except ImportError:
        raise MachineError("CuPy is not installed", do="pip install 'optiml-cuda[gpu]'") from None
    properties = cp.cuda.runtime.getDeviceProperties(0)
    about: Row = {
        "device": {"name": properties["name"].decode()}, "disagreement": {}, "note": "",
        "versions": {"cupy": cp.__version__, "cuda": cp.cuda.runtime.runtimeGetVersion()},
    }  # fmt: skip
    if kernel == COPY:
        source, target = cp.zeros(COPY_BYTES, cp.uint8), cp.empty(COPY_BYTES, cp.uint8)
        stream = cp.cuda.Stream.null
        times = interleaved({COPY: lambda: target.data.copy_from_device_async(source.data, COPY_BYTES, stream)})[COPY]
        found = sorted(times)[len(times) // 2]
        operation = "cudaMemcpyAsync on the device, 1 GiB, read plus written"
        rate = 2 * COPY_BYTES / (found * 1e-6)
        return {**about, "times_us": {COPY: found}, "ratios": {}, "copy_bytes_per_s": rate, "operation": operation}
    make = library_calls()[kernel]
    stage = Stage(place, f"{SUITE}/{kernel}.cu", suggestion(place, kernel))
    try:
        given = {a.name: stage.array(a.name) for a in stage.spec.arguments if a.role in ("in", "inout")}
        call = make(cp, given, dict(stage.case.sizes))
        off = _disagreements(call(), stage.result())
        samples = interleaved({**stage.calls, "library": call}, dict.fromkeys(stage.calls, stage.reset))
        return {**about, **compared(samples), "disagreement": off, "operation": make.__doc__ or ""}
    finally:
        stage.close()
        cp.get_default_memory_pool().free_all_blocks()


def _disagreements(theirs: Any, ours: Arrays) -> dict[str, float]:
    """By output, for those that a peer returns. Raises MachineError where a peer computes something else."""
    found = {name: disagreement(ours[name], value) for name, value in (theirs or {}).items()}
    far = {name: value for name, value in found.items() if not value <= _AGREE}
    if far:
        raise MachineError(f"the peer computes something else: {far}")
    return found


# ---- the record


def summary(rows: Mapping[str, Row]) -> dict[str, Any]:
    """For each peer: the geometric mean of its times over ours, wins and losses; the copy bandwidth; the product against cuBLAS."""
    found: dict[str, Any] = {"peers": {}}
    peers = list(dict.fromkeys(p for row in rows.values() for p in row["ratios"] if p != "before"))
    for peer in peers:
        ratios = {k: row["ratios"][peer] for k, row in rows.items() if peer in row["ratios"]}
        found["peers"][peer] = {
            "kernels": len(ratios),
            "geometric_mean": math.exp(sum(math.log(r["ratio"]) for r in ratios.values()) / len(ratios)),
            "faster": sorted(k for k, r in ratios.items() if r["low"] > 1.0),
            "slower": sorted(k for k, r in ratios.items() if r["high"] < 1.0),
        }
    if COPY in rows:
        found["copy_bytes_per_s"] = rows[COPY]["copy_bytes_per_s"]
    gemm = rows.get("gemm_bias_relu", {}).get("ratios", {}).get("library")
    if gemm is not None:
        found["gemm_of_cublas"] = gemm["ratio"]
    return found


def _not_behind(rows: Mapping[str, Row], peer: str) -> int:
    return sum(row["ratios"][peer]["ratio"] >= 1 - _EQUAL for row in rows.values() if peer in row["ratios"])


def render(record: Mapping[str, Any]) -> str:
    """The table, losses included, in Markdown. A ratio is the other's time over ours: above 1, ours is faster."""
    total = record["summary"]
    peers = list(total["peers"])
    lines = [
        "| kernel | ours µs | before µs | "
        + "".join(f"{peer} µs | speedup over {peer} | " for peer in peers)
        + "the peer's operation |",
        "|---|---:|---:|" + "---:|---:|" * len(peers) + "---|",
    ]
    for key, row in record["rows"].items():
        if key == COPY:
            continue
        if row["error"] is not None:
            lines.append(
                f"| {key} | failed: {' '.join(row['error'].split())[:100].replace('|', '/')} | |"
                + " | |" * len(peers)
                + " |"
            )
            continue
        cells = [f"{row['times_us']['ours']:.1f}", f"{row['times_us']['before']:.1f}"]
        for peer in peers:
            ratio = row["ratios"].get(peer)
            cells.append(f"{row['times_us'][peer]:.1f}" if ratio else "")
            cells.append(
                f"{ratio['ratio']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
                if ratio
                else row["note"][:60].replace("|", "/")
            )
        lines.append(f"| {key} | {' | '.join(cells)} | {row['operation'].replace('|', '/')} |")
    said = [
        f"Speedup over {peer}: geometric mean {p['geometric_mean']:.2f} over {p['kernels']} kernels (above 1: ours is faster), faster on "
        f"{len(p['faster'])}, slower on {len(p['slower'])}{': ' + ', '.join(p['slower']) if p['slower'] else ''}; "
        f"faster or equal to {100 * _EQUAL:.0f} % on {_not_behind(record['rows'], peer)}."
        for peer, p in total["peers"].items()
    ]
    if "copy_bytes_per_s" in total:
        said.append(
            f"A copy on the device in the same run: {total['copy_bytes_per_s'] / 1e12:.2f} TB/s, read plus written."
        )
    if "gemm_of_cublas" in total:
        said.append(
            f"The product of 2048³ reaches {100 * total['gemm_of_cublas']:.0f} % of cuBLAS in fp32 (target: {100 * WANTED_GEMM:.0f} %)."
        )
    return "\n".join([*lines, "", "\n\n".join(said)])
