"""Recorded names and the kernels of a repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.capture.source_binding import KernelName, bind, repository_kernels, split_name


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("k", KernelName("k", (), None)),
        ("scale(float const*, float*, int)", KernelName("scale", (), ("float const*", "float*", "int"))),
        ("void a::sum<float, 256, true>(float*)", KernelName("a::sum", ("float", "256", "true"), ("float*",))),
        ("void k<(int)4, (bool)0, 8u>()", KernelName("k", ("4", "false", "8"), ())),
        ("(anonymous namespace)::k(int)", KernelName("(anonymous namespace)::k", (), ("int",))),
        ("void k<std::pair<int, float> >(std::pair<int, float>)", KernelName("k", ("std::pair<int, float>",), ("std::pair<int, float>",))),
        (")", KernelName(")", (), None)),
        ("<<>", KernelName("<", (), None)),
    ],
)  # fmt: skip
def test_demangled_names(name: str, parts: KernelName) -> None:
    assert split_name(name) == parts


def test_kernels_are_found_by_name_parameters_and_command(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text("namespace x { __global__ void k(float* p) {} }\n__global__ void only(int n) {}\n")
    (tmp_path / "b.cu").write_text(
        "__global__ void k(float* p) {}\ntemplate <int N> __global__ void k(float* p, int n) {}\n"
    )
    (tmp_path / "c.cu").write_text("__global__ void twice(float* p) {}\n")
    (tmp_path / "d.cu").write_text("__global__ void twice(float* p) {}\n")
    there = repository_kernels(tmp_path, ["x::k(float*)", "only(int)", "twice"])
    shown = [
        p.shown if (p := bind(name, None, there).place) else "" for name in ("x::k(float*)", "only(int)", "k(float*)")
    ]
    assert shown == ["a.cu:1", "a.cu:2", "b.cu:1"]
    found = bind("void k<7>(float*, int)", 2, there)
    assert (found.place and found.place.shown, found.template_args) == ("b.cu:2", "7")
    assert bind("twice", 1, there).problem == "several kernels of this name: c.cu:1, d.cu:1"
    named = bind("twice", 1, there, ("sh", "-c", "nvcc d.cu -o d && ./d")).place
    assert named is not None
    assert named.file == "d.cu"
    assert bind("only(int, int)", None, there).problem == "'only' at a.cu:2 has different parameters"
    assert bind("other()", None, there).problem == "no source in this repository"


def test_typedefs_are_no_template_arguments(tmp_path: Path) -> None:
    """g++ names a deduced instance `k [with T = float; uint64_t = long unsigned int]`."""
    (tmp_path / "a.cu").write_text(
        "template <class T> __global__ void k(T* p, uint64_t n) {}\ntemplate <class... T> __global__ void pack(T... p) {}\n"
    )
    there = repository_kernels(tmp_path, ["k", "pack"])
    assert bind("k<float, long unsigned int>", 2, there).template_args == "float"
    assert bind("pack<float*, int>", None, there).template_args == "float*, int"
