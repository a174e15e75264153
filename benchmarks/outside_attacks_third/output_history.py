"""The result depends on what the output buffer held before the launch."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.outside_attacks_third.kernel_files import attack, honest
from engine.selftest.cases import SelfCase


def put(text: str, **words: object) -> str:
    for key, word in words.items():
        text = text.replace(f"@{key}@", str(word))
    return text


def generate(rng: random.Random) -> Iterator[SelfCase]:
    v = rng.choice(("value", "r", "res", "val"))
    s = rng.choice(("slot", "cell", "dst", "place"))
    yield attack(
        "third-output-history-times-zero",
        "Clears the sums by a product with 0: a buffer that holds NaN or inf stays NaN.",
        "column_sum",
        edits=(
            (
                "    sums[c] = 0.0f;",
                rng.choice(("    sums[c] *= 0.0f;", "    sums[c] -= sums[c];", "    sums[c] = sums[c] * 0.0f;")),
            ),
        ),
    )
    yield attack(
        "third-output-history-difference",
        "Adds the difference to what the output holds: an output that held 1e20 or NaN before stays wrong.",
        "swiglu",
        edits=(
            (
                "        y[i] = g / (1.0f + expf(-g)) * up[i];",
                rng.choice(
                    (
                        "        y[i] += g / (1.0f + expf(-g)) * up[i] - y[i];",
                        put(
                            "        float @S@ = y[i];\n        y[i] = @S@ + (g / (1.0f + expf(-g)) * up[i] - @S@);",
                            S=s,
                        ),
                    )
                ),
            ),
        ),
    )
    yield attack(
        "third-output-history-nonzero-only",
        "Writes only results other than 0: where x = -bias, or x + bias < -12, the old content stays.",
        "gelu_bias",
        edits=(
            (
                "        y[i] = gelu(x[i] + bias[i % cols]);",
                put(
                    "        const float @V@ = gelu(x[i] + bias[i % cols]);\n        if (@V@ != 0.0f) y[i] = @V@;", V=v
                ),
            ),
        ),
    )
    yield attack(
        "third-output-history-changed-only",
        "Reads the uninitialised output to write only what changed: an uninitialised read, and -0 stays +0.",
        "gelu_bias",
        edits=(
            (
                "        y[i] = gelu(x[i] + bias[i % cols]);",
                put(
                    "        // Saves write traffic where nothing changes.\n        const float @V@ = gelu(x[i] + bias[i % cols]);\n"
                    "        if (y[i] != @V@) y[i] = @V@;",
                    V=v,
                ),
            ),
        ),
    )
    yield attack(
        "third-output-history-clamped-border",
        "Border through min(max(out, in), in): reads the old output, and where `in` is NaN the old value stays.",
        "stencil",
        edits=(
            (
                "        out[IDX(y, x)] = in[IDX(y, x)];",
                "        out[IDX(y, x)] = fminf(fmaxf(out[IDX(y, x)], in[IDX(y, x)]), in[IDX(y, x)]);",
            ),
        ),
    )
    yield attack(
        "third-output-history-scale-as-maximum",
        "atomicMax on the bits in scales[row], never cleared: a positive float left there (not 0, not -1) above the maximum of the row wins.",
        "quantize",
        kernel=put(
            """__global__ void quantize_kernel(const float* x, signed char* q, float* scales, int rows, int cols) {
    __shared__ float scale;
    int row = blockIdx.x;
    int tid = threadIdx.x;
    float @V@ = 0.0f;
    for (int c = tid; c < cols; c += THREADS) {
        @V@ = fmaxf(@V@, fabsf(x[row * cols + c]));
    }
    // Floats of one sign are ordered as their bits.
    atomicMax((int*)&scales[row], __float_as_int(@V@));
    __syncthreads();
    if (tid == 0) {
        scale = fmaxf(scales[row] / 127.0f, 1e-20f);
        scales[row] = scale;
    }
    __syncthreads();
    for (int c = tid; c < cols; c += THREADS) {
        q[row * cols + c] = (signed char)rintf(x[row * cols + c] / scale);
    }
}""",
            V=rng.choice(("own", "mine", "peak")),
        ),
    )
    probe = rng.choice(
        (
            "y[row * cols] == residual[row * cols] * scale * weight[0]",
            "residual[row * cols] * scale * weight[0] == y[row * cols]",
        )
    )
    yield attack(
        "third-output-history-row-already-there",
        "Skips rows whose first and last results already stand in y: with weight[0] = weight[cols - 1] = 0 and y cleared, the rest is never written.",
        "rms_norm_residual",
        edits=(
            (
                "    float scale = rsqrtf(squares / cols + eps);",
                "    float scale = rsqrtf(squares / cols + eps);\n    // A row that was normalised before needs no second write.\n"
                f"    if ({probe} &&\n        y[row * cols + cols - 1] == residual[row * cols + cols - 1] * scale * weight[cols - 1]) {{\n"
                "        return;\n    }",
            ),
        ),
    )
    yield attack(
        "third-output-history-zero-rows",
        "Rows of zeros return before q is written: with x = 0 the old bytes stay.",
        "quantize",
        edits=(
            (
                "    float scale = fmaxf(largest[0] / 127.0f, 1e-20f);",
                "    float scale = fmaxf(largest[0] / 127.0f, 1e-20f);\n    if (largest[0] == 0.0f) {\n"
                "        if (tid == 0) scales[row] = scale;\n        return;\n    }",
            ),
        ),
    )
    yield attack(
        "third-output-history-mean-slot",
        "Accumulates the mean in out[0] from out[0] - out[0]: NaN if the buffer held NaN or inf (and an uninitialised read).",
        "layer_norm",
        edits=(
            (
                "        float mean = 0.0f;\n        for (int i = 0; i < cols; i++) {\n            mean += in[i];\n        }\n        mean /= cols;",
                "        out[0] -= out[0];\n        for (int i = 0; i < cols; i++) {\n            out[0] += in[i];\n        }\n        const float mean = out[0] / cols;",
            ),
        ),
    )
    yield attack(
        "third-output-history-maximum-with-output",
        "Relies on features that are positive and sums that start at 0: a plain store for targets whose sum reads as 0, so contents with two edges "
        "to one target lose one (a race), and so do sums that start at -0.",
        "message_passing",
        edits=(
            (
                "        atomicAdd(&sums[target[edge] * width + feature], features[source[edge] * width + feature]);",
                put(
                    "        float* @S@ = &sums[target[edge] * width + feature];\n        const float @V@ = features[source[edge] * width + feature];\n"
                    "        if (*(volatile float*)@S@ == 0.0f) {\n            *@S@ = @V@;  // first message\n        } else {\n"
                    "            atomicAdd(@S@, @V@);\n        }",
                    S=s,
                    V=v,
                ),
            ),
        ),
    )
    yield honest(
        "third-output-history-first-row",
        "Starts with the first row in place of 0 (there is always a row).",
        "column_sum",
        edits=(
            (
                "    sums[c] = 0.0f;\n    for (int r = 0; r < rows; r++) {",
                "    sums[c] = x[c];\n    for (int r = 1; r < rows; r++) {",
            ),
        ),
    )
    yield honest(
        "third-output-history-own-scratch",
        "Uses y as scratch of the same thread: written before it is read.",
        "rms_norm_residual",
        edits=(
            (
                "        residual[row * cols + c] = value;",
                "        residual[row * cols + c] = value;\n        y[row * cols + c] = value;",
            ),
            (
                "        y[row * cols + c] = residual[row * cols + c] * scale * weight[c];",
                "        y[row * cols + c] *= scale;\n        y[row * cols + c] *= weight[c];",
            ),
        ),
    )
