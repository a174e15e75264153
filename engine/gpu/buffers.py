"""One case's buffers on the device: inputs, two sets of outputs, and the double-precision twin. Worker only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import cupy as cp
import numpy as np

from engine.gpu.device import Arena, Given, SparseShape, Tools, copy_bytes
from engine.spec.data import Draw, Related, buffer_elements, figures, generate, related, scalars, seed_of
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.kernel_spec import Argument, Case, KernelSpec
from engine.spec.parameters import constants, passed

# Elements that NumPy draws in some ten milliseconds. Ours.
_DRAWN_BY_HOST = 1 << 20


def tool_kind(dtype: DType) -> str:
    """The suffix of the tool kernels for this element type."""
    if dtype.bfloat:
        return "bfloat16"
    if dtype.eight is not None:
        return "e4m3" if dtype.eight.fraction == 3 else "e5m2"
    if dtype.kind == "bytes":
        return "uint8"
    return str(dtype.storage.name)


class CaseBuffers:
    """The buffers of one case.

    The candidate works in `main`; the original writes its outputs to `other` (same inputs); the widened original works in
    `wide`, where every float is a double. Expected values are poisoned as soon as they were used.
    """

    def __init__(self, spec: KernelSpec, case: Case, tools: Tools, *, widened: bool) -> None:
        self.spec, self.case, self._tools = spec, case, tools
        elements = buffer_elements(spec, case)
        self.buffers = [a for a in spec.arguments if a.role != "scalar"]
        self.dtypes = {a.name: parse_dtype(a.type) for a in self.buffers}
        self.counts = {a.name: elements[a.name] * self.dtypes[a.name].lanes for a in self.buffers}
        self.written = [a.name for a in spec.outputs]
        scratch = [a.name for a in self.buffers if a.scratch]
        self.read_only = [a.name for a in self.buffers if a.role == "in"]
        self.inout = [a.name for a in self.buffers if a.role == "inout"]
        sizes = {name: self.counts[name] * self.item_bytes(name) for name in self.dtypes}
        self.data_bytes = sum(sizes.values())
        self.main = Arena(sizes, tools)
        own = [*self.written, *scratch]
        self.other = Arena({n: sizes[n] for n in own}, tools) if own and not tools.bare else None
        self.pristine = Arena({n: sizes[n] for n in self.inout}, tools) if self.inout else None
        self.wide: Arena | None = None
        if widened:
            self.wide = Arena(
                {
                    n: self.counts[n] * (8 if self.dtypes[n].kind == "float" else self.item_bytes(n))
                    for n in self.dtypes
                },
                tools,
            )
        self._scalars = scalars(spec, case)
        self._drawn_from: dict[tuple[str, str], Draw | Related | None] = {}  # by argument and family

    def item_bytes(self, name: str) -> int:
        """Bytes of one lane."""
        dtype = self.dtypes[name]
        return dtype.itemsize // dtype.lanes

    # ---- contents

    def draw(self, seed: int, family: str, *, widen: bool) -> None:
        """Fresh inputs, and if asked their double twins in `wide`. First contents of inouts wait in `pristine` for `reset`."""
        self._draw_these(self._read(), seed, family)
        if widen:
            self.widen()

    def draw_rest(self, seed: int, family: str = "declared") -> None:
        """What `draw` gives, for the inputs that `redraw` leaves as they are."""
        self._draw_these([a for a in self._read() if not self._redrawn(a, family)], seed, family)

    def _draw_these(self, arguments: Sequence[Argument], seed: int, family: str) -> None:
        # CuPy's generators cost half a millisecond each, and a second where their kernels are compiled first.
        others = [a for a in arguments if not self._draw_one(a, seed, family, 0)]
        if not others:
            return
        rest = replace(self.spec, arguments=tuple(others))
        if sum(self.counts[a.name] for a in others) <= _DRAWN_BY_HOST:
            for name, drawn in generate(rest, self.case, seed, family).items():
                self._put_bytes(name, drawn.reshape(-1).view(np.uint8))
            return
        for name, data in generate(rest, self.case, seed, family, xp=cp).items():
            copy_bytes(self._first(name).view(name, cp.uint8), data.reshape(-1).view(cp.uint8))

    def _put_bytes(self, name: str, content: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self._first(name).view(name, cp.uint8).set(content, stream=cp.cuda.get_current_stream())

    def redraw(self, seed: int, salt: int, family: str = "declared") -> None:
        """Fresh contents of the inputs that kernels of ours draw alone, from the seed and the word that stands at address `salt`.

        What must be sorted keeps its contents: sorting cannot be recorded in a graph.
        """
        for argument in self._read():
            if self._redrawn(argument, family):
                self._draw_one(argument, seed, family, salt)

    def _read(self) -> list[Argument]:
        return [a for a in self.buffers if a.role != "out"]

    def _redrawn(self, argument: Argument, family: str) -> bool:
        found = self._from(argument, family)
        return found is not None and not (isinstance(found, Draw) and found.ordered)

    def _from(self, argument: Argument, family: str) -> Draw | Related | None:
        """What an argument's contents are drawn from, but for the seed; None: by no kernel of ours."""
        key = argument.name, family
        if key not in self._drawn_from:
            found = figures(self.spec, self.case, argument, 0, family)
            self._drawn_from[key] = found or related(self.spec, self.case, argument, 0, family)
        return self._drawn_from[key]

    def _draw_one(self, argument: Argument, seed: int, family: str, salt: int) -> bool:
        """Draw an argument's contents by a kernel of ours; False where there is none for it."""
        name = argument.name
        arena, dtype, found = self._first(name), self.dtypes[name], self._from(argument, family)
        if found is None or (isinstance(found, Draw) and found.ordered and dtype.coded):
            return False  # the bits of such a float do not order as integers
        found = replace(found, seed=seed_of(self.spec, self.case, argument, family, seed))
        if isinstance(found, Draw):
            self._tools.draw(tool_kind(dtype), arena.address(name), self.counts[name], found, salt)
            if found.ordered:
                arena.view(name, dtype.storage).sort()
        elif found.kind == "permutation":
            self._tools.permute(arena.address(name), self.item_bytes(name), self.counts[name], found.seed, salt)
        elif found.kind == "csr":
            self._draw_sparse(name, found, salt)
        return True

    def _draw_sparse(self, name: str, relation: Related, salt: int) -> None:
        """The row offsets `name`, and the columns that go with them."""
        columns = relation.columns
        self._tools.sparse(
            (self._first(name).address(name), self.item_bytes(name)),
            (self._first(columns).address(columns), self.item_bytes(columns)),
            SparseShape(self.counts[name] - 1, self.counts[columns], relation.width), relation.seed, salt,
        )  # fmt: skip

    def _first(self, name: str) -> Arena:
        """Where the first contents of an input stand."""
        return self.pristine if name in self.inout and self.pristine is not None else self.main

    def first(self, name: str) -> Any:
        """The first contents of an input, as bytes on the device."""
        return self._first(name).view(name, cp.uint8)

    def put(self, name: str, content: bytes) -> None:
        """Take the first contents of an input from the host."""
        self._put_bytes(name, np.frombuffer(content, np.uint8))

    def copy_inputs(self, twin: CaseBuffers) -> None:
        """Take over the inputs of other buffers of the same case."""
        for name in (*self.read_only, *self.inout):
            copy_bytes(self._first(name).view(name, cp.uint8), twin._first(name).view(name, cp.uint8))

    def widen(self, noise_seed: int | None = None) -> None:
        """Copy the inputs to `wide` as doubles; with a seed, each perturbed by up to half an epsilon of its own type."""
        for argument in self.buffers:
            if argument.role != "out":
                self._widen_one(argument.name, noise_seed)

    def _widen_one(self, name: str, noise_seed: int | None) -> None:
        if self.wide is None:
            return
        dtype = self.dtypes[name]
        source = self._first(name)
        if dtype.kind != "float":
            copy_bytes(self.wide.view(name, cp.uint8), source.view(name, cp.uint8))
            return
        self._tools.widen(tool_kind(dtype), source.address(name), self.wide.address(name), self.counts[name])
        if noise_seed is not None:
            self._tools.perturb(self.wide.address(name), self.counts[name], dtype.epsilon, noise_seed)

    def reset(self, arena: Arena, poison: int | None) -> None:
        """Poison the pure outputs of `main` or `other` and put the inouts' first contents there; None poisons nothing."""
        for argument in self.buffers:
            name = argument.name
            if argument.role == "out":
                if poison is None:
                    continue
                self._tools.fill(arena.address(name), arena.sizes[name], self._tools.poison[poison])
            elif argument.role == "inout" and self.pristine is not None:
                copy_bytes(arena.view(name, cp.uint8), self.pristine.view(name, cp.uint8))

    def leave_results(self) -> None:
        """Put the original's last results where a candidate writes its own: what an allocator may hand out where nothing is poisoned."""
        for argument in self.buffers:
            if argument.role == "out" and self.other is not None:
                copy_bytes(self.main.view(argument.name, cp.uint8), self.other.view(argument.name, cp.uint8))

    def reset_wide(self) -> None:
        """Poison the outputs of `wide` and put the inouts' first contents there, as doubles."""
        if self.wide is None:
            return
        for argument in self.buffers:
            if argument.role == "out":
                self._tools.fill(
                    self.wide.address(argument.name), self.wide.sizes[argument.name], self._tools.poison[0]
                )
            elif argument.role == "inout":
                self._widen_one(argument.name, None)

    def hash_inputs(self) -> slice:
        """Hash what a run must leave alone, one word each on the board: read-only inputs, first contents of inouts."""
        kept = self._kept()
        address, place = self._tools.board.take(len(kept))
        for i, (arena, name) in enumerate(kept):
            self._tools.hash_into(arena.address(name), arena.sizes[name], address + 8 * i)
        return place

    def changed_input(self, before: slice, after: slice, words: np.ndarray[Any, np.dtype[np.uint64]]) -> str | None:
        """The first of them whose hashes differ."""
        pairs = zip(self._kept(), words[before], words[after], strict=True)
        return next((name for (_, name), a, b in pairs if a != b), None)

    def _kept(self) -> list[tuple[Arena, str]]:
        return [(self._first(name), name) for name in (*self.read_only, *self.inout)]

    # ---- what kernels get

    def arguments(self, outputs: Arena) -> Given:
        """What the launches are given, with written buffers in `outputs` (`main` or `other`)."""

        def arena(name: str) -> Arena:
            return outputs if name in outputs.sizes else self.main

        return self._packed(self._scalars, arena)

    def wide_arguments(self) -> Given:
        """What the widened original is given."""
        wide = self.wide
        assert wide is not None
        return self._packed({name: self._wide_value(name) for name in self._scalars}, lambda _: wide)

    def _packed(self, values: Mapping[str, np.generic | bytes], arena: Callable[[str], Arena]) -> Given:
        def address(name: str) -> int:
            return arena(name).address(name)

        steps = [[each.packed(address) for each in passed(self.spec, step, values)] for step in self.spec.steps]
        places, held = list[tuple[int, int]](), list[Any]()
        for each in constants(self.spec, values):
            if isinstance(each, str):
                places.append((address(each), arena(each).sizes[each]))
                continue
            held.append(cp.asarray(np.frombuffer(each.packed(address), np.uint8)))
            places.append((int(held[-1].data.ptr), held[-1].nbytes))
        return Given(steps, places, held)

    def _wide_value(self, name: str) -> np.generic | bytes:
        value = self._scalars[name]
        dtype = parse_dtype(self.spec.argument(name).type)
        if dtype.kind == "float" and dtype.lanes == 1:
            return np.float64(dtype.to_float64(np.asarray(value).reshape(1))[0])
        return value
