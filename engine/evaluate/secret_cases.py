"""Launches at sizes that no spec names: those that the original can make a candidate must be able to make too."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from engine.compile.built import Built, SizesKey, sizes_key
from engine.cuda.aliasing import shared_buffers
from engine.cuda.launch import sites
from engine.cuda.parse import parse
from engine.cuda.phases import NVCC, form_of
from engine.errors import OptimlError, SpecError
from engine.evaluate.build import Builder, beyond_bound
from engine.model import LaunchConfig, Program
from engine.spec.kernel_spec import Case, KernelSpec
from engine.spec.spec_checks import MAX_CHECK_BYTES, check_case
from engine.verify.other_callers import (
    CallerCase,
    caller_cases,
    null_cases,
    other_scalars,
    whole_numbers,
)
from engine.verify.secret_sizes import (
    Sizes,
    million_sizes,
    secret_cases,
    shape_names,
    sides_grow,
    smallest,
    wide_sizes,
)

_MOST_TWO = 1 << 20  # of a size that makes two blocks. Ours
MOST = 3  # of a run; each costs every candidate a check on the declared inputs

Launches = tuple[tuple[LaunchConfig, ...], ...]
Known = Mapping[SizesKey, tuple[LaunchConfig, ...]]


class SecretCases:
    """The secret check cases of one run. `cases` are those that the original can launch; who runs it keeps what it passes."""

    def __init__(self, spec: KernelSpec, builder: Builder, rng: random.Random) -> None:
        self._spec, self._builder, self._rng = spec, builder, rng
        self._on, self._scalars = builder.defences.secret_sizes, builder.defences.other_scalars
        self._callers = builder.defences.other_callers
        self._cases: tuple[Case, ...] = ()
        self._wide: tuple[Sizes, ...] = ()

    @property
    def cases(self) -> tuple[Case, ...]:
        return self._cases

    @cases.setter
    def cases(self, cases: tuple[Case, ...]) -> None:
        """Builders make the launches of candidates for them ahead: a device waits for nothing that is read of a text."""
        self._cases = cases
        self._builder.further[self] = self.sizes

    @property
    def sizes(self) -> tuple[Sizes, ...]:
        """At which candidates must be able to launch."""
        return (*self._wide, *(case.sizes for case in self._cases))

    def draw(self, original: Program, *, aligned: bool = False, large_bytes: int = 0) -> None:
        """Draw cases that the original's launches allow."""
        drawn = other_scalars(self._spec, self._rng) if self._scalars else ()
        cases = tuple(case for case in drawn if self._fits(original, case.sizes))
        if self._on:
            drawn = secret_cases(self._spec, self._rng, aligned=aligned, large_bytes=large_bytes)
            cases += tuple(case for case in drawn if self._valid(case) and self._fits(original, case.sizes))
            wide = (*wide_sizes(self._spec, self._rng), *self._million(original))
            self._wide = tuple(sizes for sizes in wide if self._fits(original, sizes))
        self.cases = cases

    def callers(self, original: Program) -> tuple[CallerCase, ...]:
        """Drawn cases of other callers that the original's launches allow."""
        if not self._callers:
            return ()
        text = self._text(original)
        drawn = (
            *caller_cases(self._spec, self._rng, whole_numbers(text), _passed_twice(self._spec, original)),
            *null_cases(self._spec, text),
            *(CallerCase(case) for case in self._of_two_blocks(original)),
        )
        return tuple(each for each in drawn if self._fits(original, each.case.sizes))

    def _million(self, original: Program) -> Iterator[Sizes]:
        """Sizes of nearly a million in one extent that the original's grid has not in y or z."""
        base = smallest(self._spec)
        for sizes in million_sizes(self._spec):
            with suppress(OptimlError):
                few, many = (self.launch(original, each) for each in (base or sizes, sizes))
                if not any(sides_grow(*pair) for pair in zip(few, many, strict=True)):
                    yield sizes

    def _of_two_blocks(self, original: Program) -> Iterator[Case]:
        """A case whose launch has two blocks, where none of the spec has: race detection sees such a launch whole, and so what the last
        block makes of what the others left."""

        def blocks(sizes: Sizes) -> int:
            try:
                return max(launch.blocks for launch in self.launch(original, sizes))
            except OptimlError:
                return 0

        if any(blocks(case.sizes) == 2 for case in self._spec.check):
            return
        for base, name in ((case, name) for case in self._spec.check for name in shape_names(self._spec)):
            low, high = 1, _MOST_TWO
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if blocks({**base.sizes, name: middle}) < 2 else (low, middle)
            if blocks({**base.sizes, name: low}) == 2:
                further = low + self._rng.randrange(low)
                value = further if blocks({**base.sizes, name: further}) == 2 else low
                yield Case(f"{name}={value}, drawn", {**base.sizes, name: value})
                return

    def _text(self, original: Program) -> str:
        """The original's code as a compiler reads it, without comments; nothing where that cannot be said."""
        try:
            return form_of(self._builder.slice(original), NVCC).code
        except OptimlError:
            return ""

    def keep(self, cases: Sequence[Case]) -> None:
        """Keep these of the cases: one of other scalars, and of other sizes at most `MOST`."""
        self.cases = tuple(cases[: MOST + any(case.changed for case in cases)])

    def launches(self, built: Built) -> Launches:
        """A program's launches for each case. Raises OptimlError where one cannot be made, or could not be made at a wide extent."""
        made = [self.launch(built.program, sizes, built.further) for sizes in self.sizes]
        if reason := beyond_bound(built.binary, made):
            raise OptimlError(f"where the original can be launched, {reason}")
        return tuple(made[len(self._wide) :])

    def drawn_spec(self) -> KernelSpec:
        """The spec with the cases behind the timing cases: they are checked like these."""
        return replace(self._spec, time=(*self._spec.time, *self.cases))

    def whole(self, built: Built, *, timed: bool = True) -> Built:
        """With the launches of the cases behind those of the timing cases, or else of the check cases. Raises OptimlError."""
        named = built.launches[: len(self._spec.check) + timed * len(self._spec.time)]
        return replace(built, launches=(*named, *self.launches(built)))

    def launch(self, program: Program, sizes: Sizes, known: Known = MappingProxyType({})) -> tuple[LaunchConfig, ...]:
        """A program's launches at some sizes; `known` are those that were made with it. Raises OptimlError."""
        try:
            found = known.get(sizes_key(sizes)) or self._builder.launches_for(program, sizes)
            self._builder.check_limits([found])
        except OptimlError as error:
            at = ", ".join(f"{name} = {value}" for name, value in sorted(sizes.items()))
            raise OptimlError(f"at {at}, where the original can be launched: {error.what}") from None
        return found

    def _valid(self, case: Case) -> bool:
        """Whether the case could stand in the spec: sizes that belong together do so (entries of a sparse matrix)."""
        try:
            spec = replace(self._spec, check=(*self._spec.check, case))
            check_case(spec, case, lambda *keys: case.name, MAX_CHECK_BYTES)
        except SpecError:
            return False
        return True

    def _fits(self, program: Program, sizes: Sizes) -> bool:
        try:
            made = self.launch(program, sizes)
        except OptimlError:
            return False
        binary = self._builder.original_binary
        return binary is None or not beyond_bound(binary, [made])


def _passed_twice(spec: KernelSpec, program: Program) -> set[tuple[str, str]]:
    """Pairs of arguments for which some visible caller passes one whole buffer, in both orders."""
    found = set[tuple[str, str]]()
    for step in spec.steps:
        try:
            kernel = parse(program.data, program.kernel_file).kernel(step.kernel)
            shared = shared_buffers(program, kernel, sites(program, step.kernel)) or ()
        except (KeyError, OptimlError):
            continue
        names = {p.name: name for p, name in zip(kernel.parameters, step.arguments, strict=False)}
        pairs = [(names.get(pair.first, ""), names.get(pair.second, "")) for pair in shared if pair.equal]
        found |= {pair for first, second in pairs if first and second for pair in ((first, second), (second, first))}
    return found
