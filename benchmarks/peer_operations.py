"""The suite's operations as PyTorch, cuBLAS, cuSPARSE and CUB have them; docstrings name what is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Arrays = dict[str, Any]


def torch_operations() -> dict[str, Callable[..., Callable[[], Arrays]]]:
    """By kernel: a function of (torch, inputs, sizes) that gives the operation. Its docstring names what is called."""

    def swiglu(torch: Any, x: Arrays, s: Any) -> Any:
        """F.silu(gate) * up"""
        return lambda: {"y": torch.nn.functional.silu(x["gate"]) * x["up"]}

    def adamw(torch: Any, x: Arrays, s: Any) -> Any:
        """torch._fused_adamw_ (what AdamW(fused=True) calls)"""
        step = torch.ones((), device="cuda")
        g = x["grad"]
        # It steps in place, and others compute from the inputs too.
        p, m, v = (x[name].clone() for name in ("param", "m", "v"))

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


def formulas() -> dict[str, Callable[..., Callable[[], Arrays]]]:
    """By kernel, what a compiler is given in place of an operation that it cannot look into: the same in plain operations."""

    def adamw(torch: Any, x: Arrays, s: Any) -> Any:
        """AdamW's formulas"""

        def run() -> Arrays:
            g = x["grad"]
            m = 0.9 * x["m"] + 0.1 * g
            v = 0.999 * x["v"] + 0.001 * g * g
            param = x["param"] - 0.001 * (m / 0.1 / (torch.sqrt(v / 0.001) + 1e-8) + 0.01 * x["param"])
            return {"param": param, "m": m, "v": v}

        return run

    return {"adamw": adamw}


def library_calls() -> dict[str, Callable[..., Callable[[], Arrays]]]:
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
        """CUB DeviceScan, in place"""
        from cupy.cuda import cub

        # As CuPy hands it to CUB; `cumsum` copies the array before, in a launch of its own.
        y = x["x"].copy()
        return lambda: {"y": cub.device_scan(y, cub.CUPY_CUB_CUMSUM)}

    def histogram_float(cp: Any, x: Arrays, s: Any) -> Any:
        """CUB DeviceHistogram (HistogramRange)"""
        from cupy.cuda import cub

        edges = cp.linspace(0.0, 1.0, s["bins"] + 1, dtype=cp.float32)
        out = cp.zeros(s["bins"], cp.int64)  # what CuPy has CUB count in, whatever is handed over

        def run() -> Arrays:
            cub.device_histogram(x=x["values"], y=out, bins=edges)  # the order of the two differs between versions
            return {"counts": out}

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
