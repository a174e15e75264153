"""Launches by what a function chooses, and by macros that are given the kernel."""

import pytest

from engine.cuda.launch_reading import readable_sites
from engine.model import Program

KERNEL = (
    b"template <bool B> __global__ void act(const float* x, float* y, int n) { if (n > 0) y[0] = B ? x[0] : -x[0]; }\n"
)
MACRO = b"""#define CALL(kernel, blocks, threads, shared, ...) \\
  { \\
    if (blocks > 0) { \\
      (kernel)<<<(blocks), (threads), (shared)>>>(__VA_ARGS__); \\
      check(cudaGetLastError()); \\
    } \\
  }
"""
CALLED = b"""#include "call.h"
void run(const float* x, float* y, int n) {
  int nb = (n + 255) / 256;
  CALL((act<true>), nb, 256, 0, x, y, n);
}
"""


def read(files: dict[str, bytes]) -> list[tuple[str, list[str], tuple[str, ...], str]]:
    sites = readable_sites(Program(files, next(iter(files))), "act")
    return [(s.template_args, [p.text for p in s.parts], s.arguments, s.path) for s in sites]


def test_a_macro_of_a_header_that_is_given_the_kernel() -> None:
    files = {"k.cu": KERNEL + CALLED, "call.h": MACRO}
    assert read(files) == [("true", ["(nb)", "(256)", "(0)"], ("x", "y", "n"), "k.cu")]


def test_a_macro_with_parts_and_template_arguments_of_its_own() -> None:
    macro = b"#define CALL(B, ...) act<B><<<dim3(nb * 2), 64>>>(__VA_ARGS__)\n"
    files = {"k.cu": KERNEL + CALLED.replace(b"CALL((act<true>), nb, 256, 0,", b"CALL(false,\n"), "call.h": macro}
    assert read(files) == [("false", ["dim3(nb * 2)", "64"], ("x", "y", "n"), "k.cu")]
    (site,) = readable_sites(Program(files, "k.cu"), "act")
    assert files["k.cu"].splitlines()[site.line - 1].lstrip().startswith(b"CALL(")
    assert site.function == "run"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"check(", b"check(#kernel, "),
        (b"(kernel)<<<", b"(other)<<<"),
        (b"#define CALL", b"#define CALL(kernel) kernel<<<1, 1>>>()\n#define CALL"),  # two of one name
    ],
)
def test_macros_that_do_more_are_not_read(old: bytes, new: bytes) -> None:
    assert old in MACRO
    assert read({"k.cu": KERNEL + CALLED, "call.h": MACRO.replace(old, new)}) == []


CHOOSER = b"""typedef void (*pointer)(const float*, float*, int);
pointer choose(bool b) {
  if (b) return act<true>;
  return &act<false>;
}
"""
CHOSEN = b"""void run(const float* x, float* y, int n, bool b) {
  pointer kernel = choose(b);
  kernel<<<(n + 255) / 256, 256>>>(x, y, n);
}
"""


def test_what_a_function_chooses_in_another_file() -> None:
    parts = (["(n + 255) / 256", "256"], ("x", "y", "n"), "run.cu")
    assert read({"k.cuh": KERNEL + CHOOSER, "run.cu": CHOSEN}) == [("true", *parts), ("false", *parts)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"  kernel<<<", b"  kernel = other(b);\n  kernel<<<"),
        (b"choose(b)", b"other(choose(b))"),
        (b"kernel<<<", b"another<<<"),
    ],
)
def test_another_pointer_is_not_what_was_chosen(old: bytes, new: bytes) -> None:
    assert old in CHOSEN
    assert read({"k.cuh": KERNEL + CHOOSER, "run.cu": CHOSEN.replace(old, new)}) == []
