"""A convolution layer through tiles in shared memory: each thread computes several pixels of several output channels in registers.

Source: V. Volkov and J. Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra" (2008), for the blocking of registers; X. Li et al.,
"Performance Analysis of GPU-based Convolutional Neural Networks" (2016), for direct convolution.
"""

import re
from collections import Counter
from dataclasses import dataclass

from engine.cuda.questions import Polynomial, number, text, walk
from engine.rewrite import Change, Edit, MatchedRule, Namer, Site, Space, Values, merge, template
from engine.rewrite.wording import added, ceil_div, grouped_text, reindent
from engine.rules.convolution import conv_tensor
from engine.rules.convolution.conv_form import Convolution, ImageAxis, convolution, leaves_out_again
from engine.rules.idioms import definition, digits, fits_bounds, in_parameters, tensor_cores

_NAMES = ("tile_w", "tile_h", "tile_k", "per_w", "per_h", "per_k", "stage", "copies", "tensor")
# The first fill an SM's registers and lanes; the last are for few channels or small images.
_CHOICES = (
    (16, 16, 32, 4, 2, 8, 4, 0), (16, 16, 64, 4, 2, 8, 4, 0), (16, 16, 64, 4, 2, 8, 4, 1), (32, 16, 64, 4, 2, 8, 4, 1),
    (16, 8, 64, 4, 2, 8, 4, 0), (32, 8, 32, 4, 2, 4, 4, 0), (16, 16, 16, 4, 2, 8, 2, 0), (32, 8, 16, 2, 2, 4, 4, 0),
    (32, 8, 8, 2, 2, 4, 4, 0), (16, 8, 8, 1, 1, 4, 4, 0), (32, 16, 4, 4, 1, 4, 4, 0), (32, 8, 2, 1, 1, 2, 4, 0),
    (64, 16, 1, 4, 1, 1, 1, 0), (32, 8, 1, 1, 1, 1, 1, 0),
)  # fmt: skip
_TENSOR_CHOICES = (
    (16, 16, 32, 4, 4, 4, 8, 0), (16, 16, 32, 4, 4, 4, 8, 1), (16, 16, 32, 4, 2, 4, 8, 0),
    (16, 8, 64, 4, 4, 4, 8, 0),
)  # fmt: skip
_OPEN = {
    "tile_w": (8, 16, 32, 64), "tile_h": (2, 4, 8, 16), "tile_k": (1, 2, 4, 8, 16, 32, 64, 128), "per_w": (1, 2, 4, 8),
    "per_h": (1, 2, 4), "per_k": (1, 2, 4, 8, 16), "stage": (1, 2, 4, 8), "copies": (0, 1),
}  # fmt: skip
_THREADS = "(tile_w / per_w) * (tile_h / per_h) * (tile_k / per_k)"
_BANKS = 32
_BYTES = {"float": 4, "double": 8}
_STATIC = 48 * 1024  # shared memory that a kernel may declare without asking for more


@dataclass(frozen=True)
class _Tile:
    """The choice of a tile for one convolution."""

    form: Convolution
    tile_w: int
    tile_h: int
    tile_k: int
    per_w: int
    per_h: int
    per_k: int
    stage: int
    copies: int
    tensor: int

    @property
    def threads(self) -> int:
        return self.across * self.down * (self.tile_k // self.per_k)

    @property
    def across(self) -> int:
        return self.tile_w // self.per_w

    @property
    def down(self) -> int:
        return self.tile_h // self.per_h

    @property
    def rows(self) -> int:
        return _reach(self.form.y, self.tile_h)

    @property
    def columns(self) -> int:
        return _reach(self.form.x, self.tile_w)

    @property
    def taps(self) -> int:
        return self.form.x.taps * self.form.y.taps

    @property
    def turns(self) -> int:
        """How many pixels of a channel a thread loads."""
        return -(-self.rows * self.columns // self.threads)

    @property
    def tap_step(self) -> int:
        """How many threads load the filters of one output channel: their taps are so far apart."""
        return self.threads // self.tile_k

    @property
    def filter_turns(self) -> int:
        """How many elements of filters a thread loads."""
        return -(-self.stage * self.taps // self.tap_step)

    @property
    def filter_pitch(self) -> int:
        """Elements from one tap's filters to the next one's: as few lanes of a warp that stores them as possible meet in a bank."""
        if self.tile_k == 1:
            return 1

        if self.tensor:  # 4 channels of 8 outputs are read at once
            return _apart(self.tile_k, self.taps, 1)

        def met(pitch: int) -> int:
            places = (lane % self.tap_step * pitch + lane // self.tap_step for lane in range(_BANKS))
            return max(Counter(place % _BANKS for place in places).values())

        aligned = range(self.tile_k, self.tile_k + _BANKS, 4 if self.tile_k % 4 == 0 else 1)
        return min(aligned, key=lambda pitch: (met(pitch), pitch))

    @property
    def pitch(self) -> int:
        """Elements from one row of the image's tile to the next: as few lanes of a warp as possible meet in a bank."""
        step, far = self.per_w * self.form.x.stride, self.per_h * self.form.y.stride
        if self.tensor:  # 4 channels of 8 pixels are read at once
            return _apart(self.columns, self.rows, self.form.x.stride)
        wide = next(w for w in (4, 2, 1) if step % w == 0)
        first = -(-self.columns // wide) * wide
        lanes = min(_BANKS // wide, self.across * self.down)

        def met(pitch: int) -> int:
            starts = {
                (lane // self.across % self.down * far * pitch + lane % self.across * step) for lane in range(lanes)
            }
            return max(Counter(start // wide % (_BANKS // wide) for start in starts).values())

        return min(range(first, first + _BANKS, wide), key=lambda pitch: (met(pitch), pitch))

    @property
    def shared_bytes(self) -> int:
        elements = self.rows * self.pitch + self.taps * self.filter_pitch
        return (1 + self.copies) * self.stage * elements * _BYTES[self.form.image.element]


def _apart(least: int, rows: int, step: int) -> int:
    """Elements from one row to the next, so that few of 4 x 8 lanes, `rows` rows and `step` elements from each other, meet in a bank."""

    def met(pitch: int) -> int:
        places = (lane % 4 * rows * pitch + lane // 4 * step for lane in range(_BANKS))
        return max(Counter(place % _BANKS for place in places).values())

    return min(range(least, least + _BANKS), key=lambda pitch: (met(pitch), pitch))


def _reach(axis: ImageAxis, outputs: int) -> int:
    """The places along one axis that neighbouring outputs read."""
    return (outputs - 1) * axis.stride + (axis.taps - 1) * axis.step + 1


class ConvTile(MatchedRule[Convolution]):
    """Tiles of an image with its halo, and of filters, in shared memory; several results per thread in registers."""

    name = "conv_tile"
    summary = "Convolve tiles in shared memory, several pixels and channels per thread"

    def match(self, site: Site) -> Convolution | None:
        """The convolution that the kernel computes."""
        return convolution(site)

    def space(self, match: Convolution) -> Space:
        """Tiles of no more channels than the layer has; a layer of few has the small ones first."""
        most = _most(match)
        tensor = conv_tensor.possible(match)
        fitting = [(*c, 1) for c in _TENSOR_CHOICES if tensor and c[2] <= most]
        fitting += [(*c, 0) for c in [c for c in _CHOICES if c[2] <= max(1, most)][:8]]
        choices: list[tuple[Values, float]] = [
            (dict(zip(_NAMES, c, strict=True)), 0.95 - 0.04 * k) for k, c in enumerate(fitting)
        ]
        site, x, y = match.site, match.x, match.y
        bytes_ = _BYTES[match.image.element]
        rows = f"((tile_h - 1) * {y.stride} + {(y.taps - 1) * y.step + 1})"
        columns = f"((tile_w - 1) * {x.stride} + {(x.taps - 1) * x.step + 4})"
        return Space(
            choices,
            {**_OPEN, "tensor": (0, 1) if tensor else (0,)},
            (
                *(conv_tensor.CONSTRAINTS if tensor else ()),
                "tile_w % per_w == 0 && tile_h % per_h == 0 && tile_k % per_k == 0",
                "per_w * per_h * per_k <= 128",
                f"{_THREADS} >= 64 && {_THREADS} % 32 == 0 && {_THREADS} <= {min(512, site.target.max_threads_per_block)}",
                f"tile_k <= {max(1, most)} && tile_k <= {_THREADS}",
                f"(1 + copies) * stage * ({rows} * {columns} + {x.taps * y.taps} * (tile_k + 4)) * {bytes_} <= {_STATIC}",
            ),
            0.9,
        )

    def rewrite(self, match: Convolution, values: Values) -> Change | None:
        """The kernel with one choice of tile, and its launch."""
        tile = _Tile(match, *(int(values[name]) for name in _NAMES))
        site = match.site
        if tile.threads > site.target.max_threads_per_block or not fits_bounds(site, tile.threads):
            return None
        if tile.threads % 32 or tile.threads % tile.tile_k or tile.shared_bytes > _STATIC:
            return None
        grid, edit = _grid(tile), _edit(tile)
        if grid is None or edit is None:
            return None
        edits = merge(site.in_file(*edit, *_bounds(tile)), site.launch_edits(grid=grid, block=(str(tile.threads),)))
        said = (
            f"Convolve tiles of {tile.tile_w}x{tile.tile_h} pixels and {tile.tile_k} channels in shared memory, "
            f"{tile.per_w}x{tile.per_h}x{tile.per_k} results per thread"
            + (" on tensor cores (three products in TF32)" if tile.tensor else "")
            + (", copied asynchronously" if tile.copies else "")
        )
        return Change(said, edits) if edits is not None else None


def _most(match: Convolution) -> int:
    """The output channels of the largest case."""
    if match.outputs is None:
        return 1
    shown = _in_parameters(match.site, match.outputs[1])
    values = [match.site.value_in(shown, case) for case in match.site.spec.time] if shown is not None else []
    return max((v for v in values if v is not None), default=1)


def _in_parameters(site: Site, value: Polynomial) -> str | None:
    """The value over the kernel's parameters, for the host."""
    shown = value.render()
    for name in sorted(value.names()):
        if any(p.name == name for p in site.kernel.parameters):
            continue
        local = definition(site, name)
        meaning = (
            in_parameters(site, local)
            if local is not None
            else site.unit.macros.get(name, site.unit.constants.get(name))
        )
        if meaning is None:
            return None
        shown = _named(shown, name, meaning)
    return shown


def _named(expression: str, name: str, meaning: str) -> str:
    return re.sub(rf"\b{re.escape(name)}\b", lambda _: grouped_text(meaning), expression)


def _grid(tile: _Tile) -> tuple[str, ...] | None:
    form = tile.form
    width, height = (_in_parameters(form.site, axis.extent) for axis in (form.x, form.y))
    outputs, images = (
        _in_parameters(form.site, pair[1]) if pair is not None else "1" for pair in (form.outputs, form.images)
    )
    if width is None or height is None or outputs is None or images is None:
        return None
    third = f"({ceil_div(outputs, tile.tile_k)})" if outputs != "1" else ""
    batch = grouped_text(images) if images != "1" else ""
    return (
        ceil_div(width, tile.tile_w),
        ceil_div(height, tile.tile_h),
        " * ".join(p for p in (batch, third) if p) or "1",
    )


def _bounds(tile: _Tile) -> list[Edit]:
    """`__launch_bounds__`: the block's size, so that the compiler knows how many registers a thread may use."""
    site, threads, results = tile.form.site, tile.threads, tile.per_w * tile.per_h * tile.per_k
    node = next((n for n in walk(site.kernel.node) if n.type == "function_declarator"), None)
    if site.kernel.limits_registers or node is None:
        return []
    blocks = (512 if results <= 64 else 256) // threads  # of 128 registers, or 255
    if tile.tensor and results > 32:
        blocks = (384 if results <= 64 else 256) // threads  # of 168: sums of a stage are kept apart
    text_ = f"__launch_bounds__({threads}, {blocks}) " if blocks > 1 else f"__launch_bounds__({threads}) "
    return [Edit.insert(node.start_byte, text_)]


def _edit(tile: _Tile) -> list[Edit] | None:
    """The kernel's new body, and what it needs before it."""
    form, site = tile.form, tile.form.site
    names = site.fresh_names()
    parts = dict(template("engine.rules", "conv_tile").sections())
    values = _values(tile, names)
    if tile.tensor:
        parts |= template("engine.rules", "conv_tensor").sections()
        values |= conv_tensor.values(form, names, (tile.per_w, tile.per_h, tile.per_k), tile.stage)

    def fill(section: str, **more: str) -> str:
        given = {**values, **more}
        part = parts[section]
        return part.render(**{hole: given.get(hole, "") if hole in given else names(hole) for hole in part.holes})

    some = "" if tile.stage * tile.taps % tile.tap_step == 0 else f"{names('tap')} < {tile.stage * tile.taps} && "
    buffer = f"[{names('buffer')}]" if tile.copies else ""
    taken = fill(("copy_some" if some else "copy_filter") if tile.copies else "take_filter")
    weight = fill("weights_in_order" if _in_order(form) else "weights_anywhere", take_filter=taken, all_taps=some)
    load = fill(
        "load",
        held="" if tile.copies else fill("held"),
        take_pixel=fill("copy_pixel" if tile.copies else "take_pixel"),
        take_weight=weight,
        store="" if tile.copies else fill("store", put_filter=fill("put_some" if some else "put")),
    )
    multiply = fill("multiply", at_buffer=buffer)
    image = form.images
    defined = f"const {form.found.types[image[0]]} {image[0]} = {names('image_at')};" if image is not None else ""
    plain = "".join(f"{site.render(n.start_byte, n.end_byte)}\n" for n in form.found.plain)
    body = plain + fill("body", image=defined, own=fill("own")) + fill("places", tests=_tests(form, names))
    stages = fill("copied" if tile.copies else "stages", load=load, multiply=multiply)
    one = values["at_sum"] if tile.tensor else f"[{names('k')}][{names('row')}][{names('column')}]"
    added = f"{form.target} += {names('sums')}{one};"
    fast, slow = _work(form, names, added), _work(form, names, "")
    if fast is None or slow is None:
        return None
    outputs, plainly = (
        reindent(fill(name, work=work, at_place=fill("result_place")), "", "    ")
        for name, work in (("outputs", fast), ("plainly", slow))
    )
    others = " || ".join(f"{name} != {value}" for name, value in sorted(form.assumed.items()))
    border = fill("border") if form.x.size is not None or form.y.size is not None or tile.tensor else ""
    if others:
        stages = (
            fill("assumed", others=others) + f"if (!{names('alone')}) {{\n{reindent(stages + border, '', '    ')}}}\n"
        )
    elif border:
        stages = fill("border_alone") + stages + border
    if others or border:
        done = f"{stages}if (!{names('alone')}) {{\n{outputs}}} else {{\n{plainly}}}\n"
    else:
        done = stages + fill("outputs", work=fast)
    outer, inner = site.indent_at(site.kernel.span.start), site.indent_unit
    code = reindent(body + done, "", outer + inner)
    header = "cuda_pipeline.h" if tile.copies else None
    before = site.define(tensor_cores.functions(names), header) if tile.tensor else site.include(header)
    return [*before, Edit.replace(site.body, f"{{\n{code}{outer}}}")]


def _values(tile: _Tile, names: Namer) -> dict[str, str]:
    form, at = tile.form, names("at")
    x, y, image, filters = form.x, form.y, form.image, form.filters
    numbers = {
        "tile_w": tile.tile_w, "tile_h": tile.tile_h, "tile_k": tile.tile_k, "per_w": tile.per_w, "per_h": tile.per_h,
        "per_k": tile.per_k, "stage": tile.stage, "rows": tile.rows, "pitch": tile.pitch, "columns": tile.columns,
        "taps": tile.taps, "filter_pitch": tile.filter_pitch, "across": tile.across, "down": tile.down,
        "pixels": tile.across * tile.down, "threads": tile.threads, "plane": tile.rows * tile.columns,
        "turns": tile.turns, "filter_turns": tile.filter_turns, "tap_step": tile.tap_step,
        "run": tile.stage * tile.taps, "taps_x": x.taps, "last_k": tile.tile_k - 1,
        "span_x": _reach(x, tile.per_w), "span_y": _reach(y, tile.per_h),
        "last_stage": tile.stage - 1, "per_hw": tile.per_h * tile.per_w, "results": tile.per_k * tile.per_h * tile.per_w,
        "channel_unroll": 1,
    }  # fmt: skip
    texts = {
        "T": image.element, "S": form.sum_type, "in": image.array, "filters": filters.array, "in_base": image.base.render(),
        "filter_base": filters.base.render(), "depth": form.channels.render(), "shift_x": _plus(x.first),
        "shift_y": _plus(y.first), "in_channel": _term(image.channel), "in_row": _term(image.row),
        "filter_output": _term(filters.output), "filter_channel": _term(filters.channel),
        "filter_row": _term(filters.row), "filter_column": _term(filters.column), "times_x": _times(x.stride),
        "times_y": _times(y.stride), "by_x": _times(x.step), "by_y": _times(y.step),
        "outputs": _term(form.outputs[1]) if form.outputs is not None else "1", "buffers": "[2]" if tile.copies else "",
        "place_type": _place_type(form), "extents": f"[{tile.per_k}][{tile.per_h}][{tile.per_w}]",
        "at_sum": f"[{at} / {tile.per_h * tile.per_w}][{at} % {tile.per_h * tile.per_w} / {tile.per_w}][{at} % {tile.per_w}]",
        "unusable": "{0} != {0}".format(names("sum")),
        "reason": "// Zeros stand for what is outside. A filter that is infinite makes them NaN: such results are computed by themselves.",
        "zero": f"static_cast<{image.element}>(0)",
    }  # fmt: skip
    return {**{name: str(value) for name, value in numbers.items()}, **texts}


def _place_type(form: Convolution) -> str:
    """The type of a place in a plane: as wide as the author's arithmetic."""
    narrow = {p.name for p in form.site.kernel.parameters if p.base in ("int", "unsigned", "unsigned int", "short")}
    wide = form.image.row.names() - narrow - set(form.site.unit.macros) - set(form.site.unit.constants)
    return "long long" if wide else "int"


def _in_order(form: Convolution) -> bool:
    """Whether the filters of an output channel are one after the other in memory: channels, rows, columns."""
    filters, columns = form.filters, form.x.taps
    return (
        filters.column == number(1)
        and filters.row == number(columns)
        and (filters.channel == number(columns * form.y.taps) or form.channels == number(1))
    )


def _times(factor: int) -> str:
    return f" * {factor}" if factor > 1 else ""


def _plus(value: Polynomial) -> str:
    return added(value.render()) if value.constant is not None else f" + {_term(value)}"


def _tests(form: Convolution, names: Namer) -> str:
    """Where an element of the image is loaded: within the border that the author tests for, and for outputs that there are."""
    shown = ""
    for axis, key in ((form.y, "y"), (form.x, "x")):
        place = names(key)
        if axis.size is not None and axis.below:
            shown += f" && static_cast<unsigned>({place}) < static_cast<unsigned>({axis.size.render()})"
        elif axis.size is not None:
            shown += f" && {place} < {_term(axis.size)}"
        else:
            last = number((axis.taps - 1) * axis.step + 1 - axis.stride).plus(axis.first)
            shown += f" && {place} < {axis.extent.times(number(axis.stride)).plus(last).render()}"
    return shown


def _term(value: Polynomial) -> str:
    return grouped_text(value.render())


def _work(form: Convolution, names: Namer, added: str) -> str | None:
    """The author's statements for one result; with `added` instead of the sum's loops where it is given."""
    site = form.site
    x, y = names("own_x"), names("own_y")
    given = {
        form.x.name: f"{names('first_x')} + {x} + {names('column')}",
        form.y.name: f"{names('first_y')} + {y} + {names('row')}",
    }
    if form.outputs is not None:
        given[form.outputs[0]] = f"{names('first_k')} + {names('own_k')} + {names('k')}"
    guards = []
    for name, extent in [
        (form.x.name, form.x.extent),
        (form.y.name, form.y.extent),
        *([form.outputs] if form.outputs else []),
    ]:
        guards.append(f"{name} >= {_term(extent)}")
    lines = [f"const {form.found.types[name]} {name} = {value};" for name, value in given.items()]
    lines.append(f"if ({' || '.join(guards)}) {{\n    continue;\n}}")
    kept = [
        n
        for n in site.body.named_children
        if n not in form.found.plain and n not in form.found.moved and not leaves_out_again(n, guards)
    ]
    used = {text(n) for statement in kept for n in walk(statement) if n.type == "identifier"}
    for name in form.found.digits:
        if name in used and name not in form.chosen:
            value = digits.composed(form.found, name, form.chosen)
            if value is None:
                return None
            lines.append(f"const {form.found.types[name]} {name} = {value};")
    nest = form.nest
    before = nest.prev_named_sibling
    begin = before.start_byte if before is not None and before.type == "preproc_call" else nest.start_byte
    changes = [(begin, nest.end_byte, added)] if added else []
    moved = [*form.found.plain, *form.found.moved]
    for statement in kept:
        if statement.type == "comment" or statement.type == "preproc_call":
            continue
        own = [c for c in changes if statement.start_byte <= c[0] and c[1] <= statement.end_byte]
        if added and begin <= statement.start_byte and statement.end_byte <= nest.end_byte:
            lines.append(added)
            continue
        drops = [
            (site.line_span(n).start, site.line_span(n).end, "")
            for n in moved
            if statement.start_byte <= n.start_byte and n.end_byte <= statement.end_byte
        ]
        returns = [(n.start_byte, n.end_byte, "continue;") for n in walk(statement) if n.type == "return_statement"]
        shown = site.render(statement.start_byte, statement.end_byte, own + drops + returns)
        margin = site.indent_at(statement.start_byte)
        lines.append(reindent(margin + shown, margin, ""))
    return "\n".join(lines)
