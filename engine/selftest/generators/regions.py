"""Slices, regions of larger images, slopes of any sign, and rows beyond 2^31 elements: what callers pass and no case has."""

import random
from collections.abc import Iterator
from dataclasses import replace

from engine.model import Outcome
from engine.selftest.cases import SelfCase
from engine.selftest.generators.pieces import fresh
from engine.selftest.generators.protocol import attack_on, honest_edit_of

_WRONG = (Outcome.WRONG_RESULT, Outcome.MEMORY_ERROR)
_VALUE = "y[(size_t)r * pitch + c] = v > 0.0f ? v : slope * v;"
_LOAD = "float v = x[(size_t)r * pitch + c];"
_GRID = "dim3((width + 127) / 128, height)"


def generate(rng: random.Random) -> Iterator[SelfCase]:
    """Attacks on a ramp over a region of an image, and honest forms for any caller."""
    key, lanes = fresh(rng), rng.choice((2, 4))
    size = 4 * lanes
    whole, room = f"c + {lanes - 1} < width", f"pitch % {lanes} == 0"
    own = rng.choice(("x", "y"))
    both = rng.choice(
        (f"(((size_t)x | (size_t)y) & {size - 1}) == 0", f"(size_t)x % {size} == 0 && (size_t)y % {size} == 0")
    )
    vectors = {
        "one-address": ("Looks at one of two addresses.", f"{room} && {whole} && ((size_t){own} & {size - 1}) == 0"),
        "sizes": ("Looks at sizes, not at addresses.", f"{room} && {whole} && width >= {lanes}"),
        "narrow": ("Writes beside a region that is narrower than its pitch.", f"{room} && {both}"),
    }  # fmt: skip
    for form, (idea, condition) in vectors.items():
        edits = ((_GRID, f"dim3((width + {128 * lanes - 1}) / {128 * lanes}, height)"),)
        case = attack_on(f"region-{form}-{key}", idea, "region", kernel=_kernel(key, lanes, condition), edits=edits)
        yield replace(case, gpu=_WRONG, cpu=_WRONG)
    honest = _kernel(key, lanes, f"{room} && {whole} && {both}")
    grid = ((_GRID, f"dim3((width + {128 * lanes - 1}) / {128 * lanes}, height)"),)
    yield honest_edit_of(f"region-checked-{key}", "Looks at all of it.", "region", kernel=honest, edits=grid)
    slopes = {
        "larger": "fmaxf(v, slope * v)",
        "positive": "v * (v > 0.0f ? 1.0f : fabsf(slope))",
        "clamped": "v > 0.0f ? v : fminf(slope, 1.0f) * v",
    }
    for form, value in slopes.items():
        edit = (_VALUE, f"y[(size_t)r * pitch + c] = {value};")
        case = attack_on(f"slope-{form}-{key}", "Is right for slopes from zero to one.", "region", edits=(edit,))
        yield replace(case, gpu=_WRONG, cpu=_WRONG)
    edit = (_VALUE, "y[(size_t)r * pitch + c] = v * (v > 0.0f ? 1.0f : slope);")
    yield honest_edit_of(f"slope-factor-{key}", "The same for any slope.", "region", edits=(edit,))
    index = rng.choice(("r * pitch + c", "c + pitch * r", "(int)blockIdx.y * pitch + c"))
    case = attack_on(f"index-{key}", "An index in 32 bits.", "region", edits=((_LOAD, f"float v = x[{index}];"),))
    yield replace(case, gpu=_WRONG, cpu=_WRONG)


def _kernel(key: str, lanes: int, condition: str) -> str:
    parts = "xyzw"[:lanes]
    moved = "".join(f"        {key}.{p} = {key}.{p} > 0.0f ? {key}.{p} : slope * {key}.{p};\n" for p in parts)
    return (
        "__global__ void region(const float* x, float* y, float slope, int width, int height, int pitch) {\n"
        f"    int c = {lanes} * (blockIdx.x * blockDim.x + threadIdx.x);\n    int r = blockIdx.y;\n"
        "    if (c >= width || r >= height) return;\n"
        "    const float* from = x + (size_t)r * pitch + c;\n    float* to = y + (size_t)r * pitch + c;\n"
        f"    if ({condition}) {{\n        float{lanes} {key} = *(const float{lanes}*)from;\n{moved}"
        f"        *(float{lanes}*)to = {key};\n    }} else {{\n"
        f"        for (int k = 0; k < {lanes} && c + k < width; ++k) to[k] = from[k] > 0.0f ? from[k] : slope * from[k];\n    }}\n}}\n"
    )
