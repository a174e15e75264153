"""The suite's suggestions beside PyTorch, cuBLAS, cuSPARSE and CUB: the same inputs, one process, timed in turn.

A row takes the suggestion that the table `suite` recorded, builds it anew and measures it with the original and the peers. Peers get
their best settings: fused operations where the library has them, cuDNN's benchmark mode, `torch.compile` with
`max-autotune-no-cudagraphs` (the same kernels as `max-autotune`, without copying every call's inputs into a graph's
buffers). TF32 is off for all: the kernels are fp32. Time of the host is in nobody's figure (benchmarks/sidebyside.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.bench import Place, Row, Settings, Table, load
from benchmarks.searches import SUITE
from benchmarks.sidebyside import Stage, compared, disagreement, interleaved
from engine.errors import MachineError, UsageError

Arrays = dict[str, Any]
COPY = "copy"
COPY_BYTES = 1 << 30
WANTED_GEMM = 0.6
_AGREE = 1e-2  # of the root mean square: a peer further off computes something else
_TORCH_ROW_S, _CALL_ROW_S = 90.0, 30.0


def pytorch_table() -> Table:
    """PyTorch eager and compiled."""
    return Table(
        "peers-pytorch", "the suite's suggestions beside PyTorch, eager and compiled", Settings(),
        lambda place, settings: sorted(_torch_operations()), _measure_torch, summary, render, lambda settings, row: _TORCH_ROW_S,
    )  # fmt: skip


def cublas_cub_table() -> Table:
    """cuBLAS, cuSPARSE and CUB, one call each, and a copy."""
    return Table(
        "peers-cublas-cub", "the suite's suggestions beside one call of cuBLAS or CUB; the copy bandwidth", Settings(),
        lambda place, settings: [COPY, *sorted(_calls())], _measure_calls, summary, render, lambda settings, row: _CALL_ROW_S,
    )  # fmt: skip


def suggestion(place: Place, kernel: str) -> dict[str, str]:
    """The files that the suite's suggestion for a kernel changed; none of a control. Raises UsageError where no row is recorded."""
    if kernel.startswith("control_"):
        return {}
    record = (
        load(place.results / "suite.json", "suite") or load(place.results / "suite.part.json", "suite") or {"rows": {}}
    )
    row = record["rows"].get(kernel)
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
    make = _torch_operations()[kernel]
    stage = Stage(place, f"{SUITE}/{kernel}.cu", suggestion(place, kernel))
    try:
        given = {
            a.name: torch.as_tensor(stage.array(a.name), device="cuda")
            for a in stage.spec.arguments
            if a.role in ("in", "inout")
        }
        sizes = dict(stage.case.sizes)
        eager = make(torch, given, sizes)
        ours = stage.result()
        off = _disagreements(eager(), ours)
        torch._dynamo.reset()
        compiled = torch.compile(make(torch, given, sizes), mode="max-autotune-no-cudagraphs", dynamic=False)
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
        raise MachineError("CuPy is not installed", do="pip install 'optiml[gpu]'") from None
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
    make = _calls()[kernel]
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


# ---- the operations


def _torch_operations() -> dict[str, Callable[..., Callable[[], Arrays]]]:
    """By kernel: a function of (torch, inputs, sizes) that gives the operation. Its docstring names what is called."""

    def swiglu(torch: Any, x: Arrays, s: Any) -> Any:
        """F.silu(gate) * up"""
        return lambda: {"y": torch.nn.functional.silu(x["gate"]) * x["up"]}

    def adamw(torch: Any, x: Arrays, s: Any) -> Any:
        """torch._fused_adamw_ (what AdamW(fused=True) calls)"""
        step = torch.ones((), device="cuda")
        p, g, m, v = x["param"], x["grad"], x["m"], x["v"]

        def run() -> Arrays:
            torch._fused_adamw_(
                [p], [g], [m], [v], [], [step], lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False,
                maximize=False,
            )  # fmt: skip
            return {}

        return run

    def row_sum(torch: Any, x: Arrays, s: Any) -> Any:
        """x.sum(1)"""
        a = x["x"].view(s["rows"], s["cols"])
        return lambda: {"sums": a.sum(1)}

    def squared_error(torch: Any, x: Arrays, s: Any) -> Any:
        """F.mse_loss(a, b, reduction="sum")"""
        return lambda: {"total": torch.nn.functional.mse_loss(x["a"], x["b"], reduction="sum").view(1)}

    def softmax_rows(torch: Any, x: Arrays, s: Any) -> Any:
        """torch.softmax"""
        a = x["in"].view(s["rows"], s["cols"])
        return lambda: {"out": torch.softmax(a, 1)}

    def layer_norm_residual(torch: Any, x: Arrays, s: Any) -> Any:
        """F.layer_norm(x + residual)"""
        a, r = x["x"].view(s["rows"], s["cols"]), x["residual"].view(s["rows"], s["cols"])
        return lambda: {"y": torch.nn.functional.layer_norm(a + r, (s["cols"],), x["gamma"], x["beta"], 1e-5)}

    def rms_norm_residual(torch: Any, x: Arrays, s: Any) -> Any:
        """r = residual + x; F.rms_norm(r)"""
        a, r = x["x"].view(s["rows"], s["cols"]), x["residual"].view(s["rows"], s["cols"])

        def run() -> Arrays:
            total = r + a
            return {"residual": total, "y": torch.nn.functional.rms_norm(total, (s["cols"],), x["weight"], 1e-6)}

        return run

    def causal_scores(torch: Any, x: Arrays, s: Any) -> Any:
        """(q @ k.T * scale).masked_fill(mask, -10000)"""
        q, k = x["q"].view(s["heads"], s["seq"], s["dim"]), x["k"].view(s["heads"], s["seq"], s["dim"])
        mask = torch.ones(s["seq"], s["seq"], dtype=torch.bool, device="cuda").triu(1)
        return lambda: {"scores": (q @ k.transpose(1, 2) * 0.125).masked_fill(mask, -10000.0)}

    def permute(torch: Any, x: Arrays, s: Any) -> Any:
        """x.transpose(1, 2).contiguous()"""
        a = x["in"].view(s["images"], s["pixels"], s["channels"])
        return lambda: {"out": a.transpose(1, 2).contiguous()}

    def head_transpose(torch: Any, x: Arrays, s: Any) -> Any:
        """x.transpose(1, 2).contiguous()"""
        a = x["in"].view(s["heads"], s["seq"], s["dim"])
        return lambda: {"out": a.transpose(1, 2).contiguous()}

    def stencil1d(torch: Any, x: Arrays, s: Any) -> Any:
        """F.conv1d(padding=4)"""
        a, w = x["x"].view(1, 1, -1), x["taps"].view(1, 1, -1)
        return lambda: {"y": torch.nn.functional.conv1d(a, w, padding=4)}

    def stencil2d(torch: Any, x: Arrays, s: Any) -> Any:
        """slices of the array, added"""
        u, k = x["u"].view(s["height"], s["width"]), x["k"].view(s["height"], s["width"])

        def run() -> Arrays:
            inner = u[1:-1, 1:-1]
            around = u[1:-1, :-2] + u[1:-1, 2:] + u[:-2, 1:-1] + u[2:, 1:-1]
            corners = u[:-2, :-2] + u[:-2, 2:] + u[2:, :-2] + u[2:, 2:]
            out = u.clone()
            out[1:-1, 1:-1] = inner + 0.1 * k[1:-1, 1:-1] * ((4 * around + corners) / 6 - 20 / 6 * inner)
            return {"next": out}

        return run

    def stencil3d(torch: Any, x: Arrays, s: Any) -> Any:
        """slices of the array, added"""
        shape = (s["nz"], s["ny"], s["nx"])
        u, f = x["u"].view(shape), x["f"].view(shape)

        def run() -> Arrays:
            c = slice(1, -1)
            total = u[c, c, :-2] + u[c, c, 2:] + u[c, :-2, c] + u[c, 2:, c] + u[:-2, c, c] + u[2:, c, c] - f[c, c, c]
            out = u.clone()
            out[1:-1, 1:-1, 1:-1] = total / 6
            return {"next": out}

        return run

    def scan(torch: Any, x: Arrays, s: Any) -> Any:
        """torch.cumsum(dtype=int32)"""
        return lambda: {"y": torch.cumsum(x["x"], 0, dtype=torch.int32)}

    def histogram_float(torch: Any, x: Arrays, s: Any) -> Any:
        """torch.histc"""
        return lambda: {"counts": torch.histc(x["values"], s["bins"], 0.0, 1.0).to(torch.int32)}

    def gemm_bias_relu(torch: Any, x: Arrays, s: Any) -> Any:
        """torch._addmm_activation (cuBLASLt with its bias and ReLU epilogue)"""
        a, b = x["a"].view(s["m"], s["k"]), x["b"].view(s["k"], s["n"])
        return lambda: {"c": torch._addmm_activation(x["bias"], a, b)}

    def gemm_tiled(torch: Any, x: Arrays, s: Any) -> Any:
        """torch.addmm"""
        a, b, c = x["a"].view(s["m"], s["k"]), x["b"].view(s["k"], s["n"]), x["c"].view(s["m"], s["n"])
        return lambda: {"c": torch.addmm(c, a, b, beta=2.0, alpha=0.5)}

    def gemv_update(torch: Any, x: Arrays, s: Any) -> Any:
        """torch.addmv"""
        a = x["a"].view(s["rows"], s["cols"])
        return lambda: {"y": torch.addmv(x["y"], a, x["x"], beta=0.5, alpha=1.5)}

    def batched_gemm(torch: Any, x: Arrays, s: Any) -> Any:
        """torch.bmm"""
        a, b = (x[n].view(s["batch"], s["size"], s["size"]) for n in "ab")
        return lambda: {"c": torch.bmm(a, b)}

    def conv2d(torch: Any, x: Arrays, s: Any) -> Any:
        """F.conv2d (cuDNN, benchmark mode)"""
        a = x["in"].view(s["images"], s["in_channels"], s["height"], s["width"])
        w = x["filters"].view(s["out_channels"], s["in_channels"], 3, 3)
        return lambda: {"out": torch.nn.functional.conv2d(a, w, padding=1)}

    def spmv(torch: Any, x: Arrays, s: Any) -> Any:
        """a sparse CSR tensor times a vector (cuSPARSE)"""
        a = torch.sparse_csr_tensor(x["offsets"], x["columns"], x["values"], (s["rows"], s["cols"]))
        return lambda: {"y": a @ x["x"]}

    def message_passing(torch: Any, x: Arrays, s: Any) -> Any:
        """zeros.index_add_(0, target, features[source])"""
        features = x["features"].view(s["nodes"], s["width"])
        source, target = x["source"].long(), x["target"].long()
        sums = torch.zeros_like(features)

        def run() -> Arrays:
            sums.index_add_(0, target, features[source])
            return {}

        return run

    def bitonic_sort(torch: Any, x: Arrays, s: Any) -> Any:
        """torch.sort"""
        a = x["keys"].view(s["rows"], 1024)
        return lambda: {"keys": torch.sort(a, 1).values}

    def quantize(torch: Any, x: Arrays, s: Any) -> Any:
        """abs, amax, divide, round, to(int8)"""
        a = x["x"].view(s["rows"], s["cols"])

        def run() -> Arrays:
            scale = torch.clamp(a.abs().amax(1, keepdim=True) / 127.0, min=1e-20)
            return {"q": torch.round(a / scale).to(torch.int8), "scales": scale}

        return run

    def cross_entropy(torch: Any, x: Arrays, s: Any) -> Any:
        """F.cross_entropy(reduction="none")"""
        a, labels = x["logits"].view(s["rows"], s["classes"]), x["labels"].long()
        return lambda: {"losses": torch.nn.functional.cross_entropy(a, labels, reduction="none")}

    def topk(torch: Any, x: Arrays, s: Any) -> Any:
        """torch.topk"""
        a = x["x"].view(s["rows"], s["cols"])
        return lambda: {"values": torch.topk(a, 8, 1).values}

    found = (
        swiglu, adamw, row_sum, squared_error, softmax_rows, layer_norm_residual, rms_norm_residual, causal_scores, permute,
        head_transpose, stencil1d, stencil2d, stencil3d, scan, histogram_float, gemm_bias_relu, gemm_tiled, gemv_update, batched_gemm,
        conv2d, spmv, message_passing, bitonic_sort, quantize, cross_entropy, topk,
    )  # fmt: skip
    return {function.__name__: function for function in found}


def _calls() -> dict[str, Callable[..., Callable[[], Arrays]]]:
    """By kernel: a function of (cupy, inputs, sizes) that gives one call of a library."""

    def gemm_bias_relu(cp: Any, x: Arrays, s: Any) -> Any:
        """cuBLAS sgemm: the product alone, without bias and ReLU"""
        a, b = x["a"].reshape(s["m"], s["k"]), x["b"].reshape(s["k"], s["n"])
        out = cp.empty((s["m"], s["n"]), cp.float32)

        def run() -> Arrays:
            cp.matmul(a, b, out=out)
            return {}

        return run

    def gemm_tiled(cp: Any, x: Arrays, s: Any) -> Any:
        """cuBLAS sgemm with alpha and beta"""
        from cupy import cublas

        a, b = x["a"].reshape(s["m"], s["k"]), x["b"].reshape(s["k"], s["n"])
        c = x["c"].reshape(s["m"], s["n"]).copy()

        def run() -> Arrays:
            cublas.gemm("N", "N", a, b, out=c, alpha=0.5, beta=2.0)
            return {}

        return run

    def gemv_update(cp: Any, x: Arrays, s: Any) -> Any:
        """cuBLAS sgemv with alpha and beta"""
        from cupy import cublas

        a = x["a"].reshape(s["rows"], s["cols"])
        y = x["y"].copy()

        def run() -> Arrays:
            cublas.gemv("N", 1.5, a, x["x"], 0.5, y)
            return {}

        return run

    def batched_gemm(cp: Any, x: Arrays, s: Any) -> Any:
        """cuBLAS sgemmStridedBatched"""
        a, b = (x[n].reshape(s["batch"], s["size"], s["size"]) for n in "ab")
        out = cp.empty_like(a)

        def run() -> Arrays:
            cp.matmul(a, b, out=out)
            return {"c": out}

        return run

    def control_transpose(cp: Any, x: Arrays, s: Any) -> Any:
        """cuBLAS sgeam"""
        from cupy import cublas

        a = x["in"].reshape(s["rows"], s["cols"])
        out = cp.empty((s["cols"], s["rows"]), cp.float32)

        def run() -> Arrays:
            cublas.geam("T", "N", 1.0, a, 0.0, out, out=out)
            return {"out": out}

        return run

    def row_sum(cp: Any, x: Arrays, s: Any) -> Any:
        """CUB DeviceSegmentedReduce"""
        cp._core.set_reduction_accelerators(["cub"])
        a = x["x"].reshape(s["rows"], s["cols"])
        out = cp.empty(s["rows"], cp.float32)

        def run() -> Arrays:
            a.sum(axis=1, out=out)
            return {"sums": out}

        return run

    def control_reduction(cp: Any, x: Arrays, s: Any) -> Any:
        """CUB DeviceReduce"""
        cp._core.set_routine_accelerators(["cub"])
        out = cp.empty((), cp.float32)

        def run() -> Arrays:
            x["x"].sum(out=out)
            return {"total": out}

        return run

    def scan(cp: Any, x: Arrays, s: Any) -> Any:
        """CUB DeviceScan"""
        cp._core.set_routine_accelerators(["cub"])
        out = cp.empty(s["n"], cp.int32)

        def run() -> Arrays:
            cp.cumsum(x["x"], dtype=cp.int32, out=out)
            return {"y": out}

        return run

    def histogram_float(cp: Any, x: Arrays, s: Any) -> Any:
        """CUB DeviceHistogram (HistogramRange)"""
        from cupy.cuda import cub

        edges = cp.linspace(0.0, 1.0, s["bins"] + 1, dtype=cp.float32)
        out = cp.zeros(s["bins"], cp.int32)

        def run() -> Arrays:
            cub.device_histogram(x["values"], edges, out)
            return {}

        return run

    def spmv(cp: Any, x: Arrays, s: Any) -> Any:
        """cuSPARSE SpMV"""
        from cupyx.scipy import sparse

        a = sparse.csr_matrix((x["values"], x["columns"], x["offsets"]), (s["rows"], s["cols"]))
        return lambda: {"y": a @ x["x"]}

    found = (
        gemm_bias_relu, gemm_tiled, gemv_update, batched_gemm, control_transpose, row_sum, control_reduction, scan, histogram_float, spmv,
    )  # fmt: skip
    return {function.__name__: function for function in found}


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


def render(record: Mapping[str, Any]) -> str:
    """The table, losses included, in Markdown. A ratio is the other's time over ours: above 1, ours is faster."""
    total = record["summary"]
    peers = list(total["peers"])
    lines = [
        "| kernel | ours µs | before µs | "
        + "".join(f"{peer} µs | against {peer} | " for peer in peers)
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
        f"Against {peer}: geometric mean {p['geometric_mean']:.2f} over {p['kernels']} kernels (above 1: ours is faster), faster on "
        f"{len(p['faster'])}, slower on {len(p['slower'])}{': ' + ', '.join(p['slower']) if p['slower'] else ''}."
        for peer, p in total["peers"].items()
    ]
    if "copy_bytes_per_s" in total:
        said.append(
            f"A copy on the device in the same run: {total['copy_bytes_per_s'] / 1e12:.2f} TB/s, read plus written."
        )
    if "gemm_of_cublas" in total:
        said.append(
            f"The product of 2048³ reaches {100 * total['gemm_of_cublas']:.0f} % of cuBLAS in fp32 (wanted: {100 * WANTED_GEMM:.0f} %)."
        )
    return "\n".join([*lines, "", "\n\n".join(said)])
