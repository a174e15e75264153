"""Cases of other callers: what a spec passes everywhere has another value in one of them, and nothing else has."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from engine.selftest.cases import original_text
from engine.spec.data import buffer_elements, scalars
from engine.spec.find import find_spec
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, Step
from engine.verify.other_callers import CallerCase, caller_cases, null_cases, whole_numbers

ARGUMENTS = (
    Argument("x", "float", "in", "n", fill=Fill("normal")),
    Argument("y", "float", "out", "n"),
    Argument("low", "float", "scalar", value="0.25"),
    Argument("high", "float", "scalar", value="1.5"),
    Argument("weight", "unsigned char", "scalar", value="96"),
    Argument("flag", "bool", "scalar", value="1"),
    Argument("n", "int", "scalar"),
)
SPEC = KernelSpec(
    "k.cu", (Step("k", "", tuple(a.name for a in ARGUMENTS)),), ARGUMENTS,
    (Case("a", {"n": 7, "block": 256}), Case("b", {"n": 900, "block": 256})), (Case("t", {"n": 1 << 20, "block": 256}),),
)  # fmt: skip


def _drawn(seed: int, shared: tuple[tuple[str, str], ...] = ()) -> tuple[CallerCase, ...]:
    return caller_cases(SPEC, random.Random(seed), whole_numbers("256 - weight + 4.5f * 100000000"), shared)


def test_each_scalar_has_other_values_and_sizes_stay() -> None:
    for seed in range(20):
        plain = scalars(SPEC, SPEC.check[1])
        seen: dict[str, set[float]] = {name: set() for name in plain}
        for each in [each for each in _drawn(seed) if not each.case.shared]:
            assert each.case.sizes["n"] == 900
            assert buffer_elements(SPEC, each.case) == buffer_elements(SPEC, SPEC.check[1])
            for name, value in scalars(SPEC, each.case).items():
                seen[name] |= {float(value)} - {float(plain[name])}  # type: ignore[arg-type]
        assert seen["flag"] == {0.0}
        assert seen["weight"] <= {0.0, 1.0, 95.0, 97.0, 192.0}  # 256 is no byte
        assert len(seen["weight"]) >= 2
        assert {0.0, 0.25} <= seen["high"]  # zero, and an empty range
        assert {0.0, 1.5} <= seen["low"]
        assert not seen["n"]


def test_a_factor_of_zero_is_tried_with_nan() -> None:
    (zero,) = [each for each in _drawn(1) if each.case.changed == {"low": 0.0}]
    assert zero.nan


def test_a_size_of_the_launch_alone_is_another_multiple_of_a_warp_and_changes_no_result() -> None:
    for seed in range(20):
        blocks = [each for each in _drawn(seed) if each.case.sizes["block"] != 256]
        assert all(each.same_as is SPEC.check[1] for each in blocks)
        assert all(each.case.sizes["block"] % 16 == 0 for each in blocks)
        assert {16, 32} <= {each.case.sizes["block"] for each in blocks}
        assert any(each.case.sizes["block"] > 256 for each in blocks)


def test_one_buffer_for_an_input_and_an_output_of_its_type_and_size() -> None:
    found = [each for each in _drawn(1, (("x", "y"), ("y", "x"), ("x", "low"))) if each.case.shared]
    assert {tuple(each.case.shared.items()) for each in found} == {(("y", "x"),)}
    assert all(each.same_as in SPEC.check for each in found)
    assert not any(each.unseen for each in found)
    found = [each for each in _drawn(1) if each.case.shared]  # no visible caller is so
    assert {tuple(each.case.shared.items()) for each in found} == {(("y", "x"),)}
    assert all(each.unseen for each in found)


def test_sizes_that_no_buffer_has_are_those_of_other_cases_too() -> None:
    """A copy where two of three sizes were those of one case was right for that case's third one."""
    arguments = (
        Argument("y", "float", "out", "n"),
        *(Argument(name, "int", "scalar") for name in ("step", "phase", "gain")),
    )
    sizes = [{"n": 5, "step": 4, "phase": 1, "gain": 8}, {"n": 50, "step": 3, "phase": 1234, "gain": 7}]
    check = tuple(Case(str(i), each) for i, each in enumerate(sizes))
    spec = KernelSpec("k.cu", (Step("k", "", ("y", "step", "phase", "gain")),), arguments, check, check[1:])
    for seed in range(5):
        drawn = [dict(each.case.sizes) for each in caller_cases(spec, random.Random(seed), (), ())]
        for name in ("step", "phase", "gain"):
            for base, other in (sizes, reversed(sizes)):
                assert {**base, name: other[name]} in drawn


def test_an_input_whose_address_the_text_compares_with_null_is_left_out_in_a_case() -> None:
    for test in ("x != nullptr ? x[0] : 0", "if (x) y[0] = x[0]", "NULL == x", "if (!x) return", "n && x && x[0]"):
        (found,) = null_cases(SPEC, f"void k(const float* x) {{ {test}; }}")
        assert found.case.null == ("x",)
        assert found.case.sizes == SPEC.check[1].sizes
    for test in ("x[i] != 0", "max_x == nullptr", "if (x[0]) y[0] = 1"):
        assert not null_cases(SPEC, f"void k(const float* x) {{ {test}; }}")


def test_the_largest_numbers_of_the_text_are_always_tried(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    path = tmp_path / "levels.cu"
    path.write_bytes(original_text("levels"))
    spec, _ = find_spec(tmp_path, path)
    constants = {256, 128, 65535, 2, 4, 5, 8, 9, 16}
    for seed in range(20):
        drawn = caller_cases(spec, random.Random(seed), constants, ())
        weights = {each.case.changed["weight"] for each in drawn if "weight" in each.case.changed}
        near = {float(n + step) for n in constants for step in (0, 1)}
        assert weights <= {0.0, 1.0, 47.0, 49.0, 96.0, *near}
        assert {256.0, 128.0} <= weights  # a weight in a byte was not refused where 256 had not been drawn
        assert {each.case.changed["inverted"] for each in drawn if "inverted" in each.case.changed} <= {1.0, 2.0}


def test_whole_numbers_of_a_text() -> None:
    assert whole_numbers("x[i] * 31u + 4.5f + 1e3 + a7 + 0x1f + 100'000") >= {31}
    assert not {4, 5, 7} & whole_numbers("4.5f a7")
    assert np.all(np.array(sorted(whole_numbers("3 4096LL"))) == [3, 4096])


def test_real_scalars_have_the_other_sign_and_values_beyond_one() -> None:
    for seed in range(20):
        values = [scalars(SPEC, each.case) for each in _drawn(seed)]
        for name in ("low", "high"):
            assert any(float(value[name]) < 0 for value in values)  # type: ignore[arg-type]
        assert any(float(value["low"]) > 1 and float(value["high"]) > 1 for value in values)  # type: ignore[arg-type]


def test_a_region_is_narrower_than_its_pitch_and_a_block_of_any_size_is_another() -> None:
    arguments = (
        Argument("y", "float", "out", "pitch"),
        Argument("width", "int", "scalar"),
        Argument("pitch", "int", "scalar"),
    )
    cases = [{"width": 5, "pitch": 8, "block": 64}, {"width": 64, "pitch": 64, "block": 128}]
    check = tuple(Case(str(i), sizes) for i, sizes in enumerate(cases))
    spec = KernelSpec("k.cu", (Step("k", "", ("y", "width", "pitch")),), arguments, check, check[1:])
    for seed in range(20):
        drawn = [each.case.sizes for each in caller_cases(spec, random.Random(seed), (), ())]
        widths = {sizes["width"] for sizes in drawn}
        assert 63 in widths
        assert all(0 < width <= 64 for width in widths)
        assert {sizes["pitch"] for sizes in drawn} == {
            8,
            64,
        }  # the smaller one is for a narrow region alone: the original decides
        assert {16, 32} <= {sizes["block"] for sizes in drawn}
