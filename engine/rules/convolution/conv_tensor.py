"""A convolution's tiles on tensor cores: for each tap, filters of eight channels times their pixels, shifted by the tap.

A warp computes 8 x `per_k` channels of `per_h` rows of a tile, which is 4 x `per_w` pixels wide: sums of 16 channels of 8 pixels each
(`engine/rules/idioms/tensor_cores.py`).
"""

from engine.rewrite import Namer
from engine.rules.convolution.conv_form import Convolution
from engine.rules.idioms.tensor_cores import INDEPENDENT, worthwhile

CONSTRAINTS = (
    "tensor ? tile_w == 4 * per_w && per_w % 2 == 0 && per_k % 2 == 0 && tile_k % (8 * per_k) == 0 && stage % 8 == 0 : 1",
    "tensor ? per_w * per_h * per_k >= 32 && per_w * per_h * per_k <= 64 : 1",
)


def possible(form: Convolution) -> bool:
    """Whether the layer is in single precision, and the target has tensor cores that pay for it."""
    types = {form.image.element, form.filters.element, form.sum_type}
    return types == {"float"} and worthwhile(form.site.target.arch)


def values(form: Convolution, names: Namer, per: tuple[int, int, int], stage: int) -> dict[str, str]:
    """What the sections of `conv_tensor.cu` are written with, for so many results of a thread along width, height and channels."""
    per_w, per_h, per_k = per
    deep, across = per_k // 2, per_w // 2
    wide = per_h * across
    together = next(n for n in range(wide, 0, -1) if wide % n == 0 and (n * deep <= INDEPENDENT or n == 1))
    at, row, several = names("at"), names("tap_row"), stage > 8
    rows, columns = form.y.taps, form.x.taps
    of_taps = f"{row} % {rows}" if several else row
    return {
        "deep": str(deep), "wide": str(wide), "together": str(together), "sums_x": str(across), "warp_k": str(8 * per_k),
        "tap_rows": str(stage // 8 * rows), "row_of_taps": of_taps, "row_taps": f"{of_taps} * {columns}",
        "first_channel": f"{row} / {rows} * 8 + " if several else "", "extents": f"[{deep}][{wide}][4]",
        "at_sum": f"[{at} / {wide * 4}][{at} / 4 % {wide}][{at} % 4]",
        "unusable": f"!isfinite({names('sum')})",
        "reason": "// A part of a factor may overflow, and zeros stand for what is outside: such results are computed by themselves.",
    }  # fmt: skip
