"""Edits of the rules, one upon another, as suggestions for a device: dispatch code is written, and has their machine code."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.compile.nvrtc import NvrtcCompiler
from engine.cuda.edit import edit_program
from engine.cuda.load import load_program
from engine.model import Program, Target
from engine.process.sandbox import sandbox
from engine.rules import make_site, proposals
from engine.run.device_dispatch import Variant, write_dispatch
from engine.run.device_dispatch_check import DispatchCheck, DispatchRequest
from engine.spec.find import find_spec
from engine.spec.kernel_spec import KernelSpec
from engine.verify.screen import screen
from tests.runtime import kept_code

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.cu"))
# Helpers, a constant, a second kernel, shared arrays. NVRTC takes as long for an unrolled matrix product as for all of these.
COMPILED = ("softmax", "transpose", "histogram", "layer_norm")


def edited(original: Program, spec: KernelSpec, seed: int) -> Program:
    """The program after up to three edits of rules that the screen of texts lets through."""
    chance = random.Random(seed)
    program = original
    for _ in range(3):
        found = proposals(make_site(program, spec, 0, Target()))
        new = edit_program(program, chance.choice(found).edits) if found else program
        program = new if screen(original, new, spec) is None else program
    return program


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_suggestions_of_rules_can_be_dispatched(path: Path) -> None:
    spec, spec_path = find_spec(ROOT, path)
    original = load_program(path, spec_file=spec_path, kernels=[spec.kernel])
    hopper, ada = (Variant(arch, arch, edited(original, spec, seed)) for seed, arch in enumerate(("sm_90", "sm_89")))
    request = DispatchRequest(ROOT, spec, spec_path, original, (hopper, ada))
    written = write_dispatch(original, spec, request.variants)
    assert original.digest not in {v.program.digest for v in request.variants if v.program is not None}
    assert sorted(written.kernels) == [89, 90]
    if path.stem not in COMPILED:
        return
    for variant in request.variants:
        with NvrtcCompiler(variant.arch, cache=kept_code(), sandbox=sandbox(False), jobs=1) as compiler:
            DispatchCheck(request, variant.arch, compiler).same(written)
