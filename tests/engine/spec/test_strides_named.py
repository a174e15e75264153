"""Strides by ggml's other names for extents."""

from __future__ import annotations

from engine.spec.strides import Numbers, strides

EXTENTS = ["ncols", "nrows", "nchannels", "nsamples"]


def test_extents_with_the_name_of_a_tensor_behind() -> None:
    sizes = ["ne00_src", "ne01_src", "ne10_dst", "ne11_dst", "ne12_dst"]
    found = strides(Numbers(["nb00", "nb01", "nb02", *sizes], sizes, {"x": 4}, ["nb00", "nb01", "nb02"], True))
    assert found == {"nb00": "4", "nb01": "4*ne00_src", "nb02": "4*ne00_src*ne01_src"}


def test_extents_that_are_words() -> None:
    names = ["s01", "s02", "s03", "s1", "mul_s01", "mul_s02"]
    found = strides(Numbers([*names, *EXTENTS], EXTENTS, {"x": 4}, names))
    assert found["s01"] == found["s1"] == found["mul_s01"] == "ncols"
    assert found["s03"] == "ncols*nrows*nchannels"
    own = strides(Numbers([*names, *EXTENTS], [*EXTENTS, "mul_ncols", "mul_nrows"], {"x": 4}, names))
    assert own["mul_s02"] == "mul_ncols*mul_nrows"
    assert own["s02"] == "ncols*nrows"


def test_a_number_of_that_name_elsewhere_is_no_stride() -> None:
    assert strides(Numbers(["s1", "ncols", "nrows"], ["ncols", "nrows"], {"x": 4})) == {}
    assert strides(Numbers(["s1", "n"], ["n"], {"x": 4}, ["s1"])) == {}
