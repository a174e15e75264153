"""Where an edit's helpers are defined: with the file's own, never between a kernel and what belongs to it."""

from __future__ import annotations

import pytest

from tests.engine.rules.workbench import SCALE, SCALE_LAUNCH, make

HELPER = "__device__ float twice(float x) {\n    return 2.0f * x;\n}\n\n"
OTHER = "// Host code.\nstatic int half(int n) {\n    return n / 2;\n}\n\n"
KERNEL = SCALE.lstrip("\n")


def above(text: str) -> str:
    """What stands above a new helper of the kernel, of `text` above the kernel."""
    site = make(text + KERNEL, SCALE_LAUNCH)
    return site.unit.data[: site.declaration_start].decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", ""),
        (HELPER, HELPER),
        (HELPER + OTHER, HELPER),
        (HELPER + OTHER + "// Scales.\n", HELPER),
        (f"template <typename T>\n{HELPER}{OTHER}", f"template <typename T>\n{HELPER}"),
        (OTHER, OTHER),  # the file has no helper
        (HELPER + OTHER + "using real = float;\n\n", HELPER + OTHER + "using real = float;\n\n"),  # a helper may use it
        (HELPER + "#define N 4\n\n" + OTHER, HELPER + "#define N 4\n\n" + OTHER),
        ("#include <a.h>\n\n// Scales.\n", "#include <a.h>\n\n"),
        (
            "#include <a.h>\n\n// optiml: time = [{ n = 4 }]\n\n// Scales.\n",
            "#include <a.h>\n\n",
        ),  # the spec stays at its kernel
        ("// A file.\n\n", "// A file.\n\n"),
    ],
)
def test_a_helper_stands_with_the_file_s_own(text: str, place: str) -> None:
    assert above(text) == place
