"""The texts of an edit that differs by architecture: every combination of arms, and nothing else."""

from __future__ import annotations

from engine.model import Program
from engine.verify.compiler_arms import compiler_arms


def _texts(before: str, after: str) -> list[str]:
    original = Program({"k.cu": before.encode()}, "k.cu")
    return [arm.data.decode() for arm in compiler_arms(original, original.replace({"k.cu": after.encode()}))]


def test_each_arm_is_a_text_with_its_lines_where_they_stood() -> None:
    after = "a;\n#if __CUDA_ARCH__ >= 700\nb;\n#elif defined(__CUDA_ARCH__)\nc;\n#else\nd;\n#endif\ne;\n"
    assert sorted(_texts("a;\n", after)) == [
        "a;\n\n\n\n\n\nd;\n\ne;\n",
        "a;\n\n\n\nc;\n\n\n\ne;\n",
        "a;\n\nb;\n\n\n\n\n\ne;\n",
    ]


def test_without_else_one_text_has_none() -> None:
    assert sorted(_texts("", "#ifdef __CUDA_ARCH__\nb;\n#endif\n")) == ["\n\n\n", "\nb;\n\n"]


def test_conditions_are_combined_and_those_inside_of_one_follow_it() -> None:
    after = "#ifdef __CUDA_ARCH__\na;\n#if __CUDA_ARCH__ > 1\nb;\n#endif\n#endif\n"
    assert sorted("".join(text.split()) for text in _texts("", after)) == ["", "a;", "a;b;"]
    two = "#ifdef __CUDA_ARCH__\na;\n#endif\n#if __CUDA_ARCH__ < 900\nb;\n#endif\n"
    assert sorted("".join(text.split()) for text in _texts("", two)) == ["", "a;", "a;b;", "b;"]


def test_what_is_no_condition_stays() -> None:
    assert _texts("", "/*\n#if __CUDA_ARCH__\n*/ a;\n/*\n#endif\n*/\n") == []
    assert _texts("", "#if WIDTH > 4\na;\n#endif\n") == []
    assert _texts("", "#define ARCH __CUDA_ARCH__\n#if ARCH\na;\n#endif\n") == []
    assert _texts("", "#ifdef __NVCC__\na;\n#endif\n") == []
    assert _texts("", "#if defined(__CUDA_ARCH__) && !defined(NDEBUG)\na;\n#endif\n") == []
    kept = "#if __CUDA_ARCH__ >= 700\na;\n#endif\n"
    assert _texts(kept, kept + "b;\n") == []


def test_more_than_four_texts_are_left_to_the_screening() -> None:
    assert _texts("", "#ifdef __CUDA_ARCH__\na;\n#endif\n" * 3) == []
