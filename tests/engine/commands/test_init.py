"""`optiml init` from the outside: what it prints, writes and refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.cli import main
from engine.errors import MachineError, NotPredictedError, RefusedError
from engine.process.sandbox import sandbox
from engine.run.ready_spec import Form, Known, SpecMaker
from engine.spec.find import find_spec
from engine.spec.gaps import lines_of
from engine.spec.kernel_spec import CompileOptions
from tests.runtime import with_runtime

CODE = """\
// A file of mine.
__global__ void scale(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
void run(const float *x, float *y, int n) { scale<<<(n + 255) / 256, 256>>>(x, y, n); }
"""
SECOND = "__global__ void border(const float *x, float *y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x]; }\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    path = tmp_path / "src" / "k.cu"
    path.write_text(CODE)
    return path


def test_the_draft_is_printed_and_nothing_is_written(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(file), "--static"]) == 0
    out = capsys.readouterr().out
    assert '// optiml: args.y = { role = "out", size = "n" }' in out
    assert file.read_text() == CODE
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("form", ["comments", "toml"])
def test_a_written_draft_is_a_spec_and_the_code_stays(file: Path, tmp_path: Path, form: str, newline: str) -> None:
    code = CODE.replace("\n", newline).encode("utf-8-sig")
    file.write_bytes(code)
    file.chmod(0o640)
    assert main(["init", str(file), "--static", "--write", "--format", form]) == 0
    spec, path = find_spec(tmp_path, file)
    assert [a.size for a in spec.arguments] == ["n", "n", ""]
    assert path == ("src/optiml.toml" if form == "toml" else None)
    kept = b"".join(line for line in file.read_bytes().splitlines(keepends=True) if b"optiml:" not in line)
    assert kept == code
    assert file.stat().st_mode & 0o777 == 0o640


def test_an_existing_spec_is_not_overwritten(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(file), "--static", "--write"]) == 0
    before = file.read_bytes()
    for form in ("comments", "toml"):
        assert main(["init", str(file), "--static", "--write", "--format", form]) == 2
    assert "src/k.cu:2" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_draft_beside_a_spec_is_not_validated_as_if_both_counted(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both together are no TOML: the command ended with 1 and "optimize rejects this draft: no valid TOML"."""
    assert main(["init", str(file), "--static", "--write"]) == 0
    monkeypatch.setattr("engine.run.ready_spec.CpuMachine", _no_machine)
    assert main(["init", str(file)]) == 0
    assert "not validated: src/k.cu:2 has a spec of 'scale' already" in capsys.readouterr().err


def _no_machine(*_: object, **__: object) -> None:
    raise MachineError("no C++ compiler here")


def test_a_draft_whose_speed_cannot_be_predicted_is_valid(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unpredicted(*_: object, **__: object) -> None:
        raise NotPredictedError("not predicted: other inputs", do="measure it on a GPU")

    monkeypatch.setattr("engine.commands.init.make_machine", unpredicted)
    assert main(["init", str(file)]) == 1
    said = capsys.readouterr().err
    assert "the draft is valid; optimize refuses a search of it without a GPU: not predicted: other inputs" in said
    monkeypatch.setattr("engine.commands.init.make_machine", _refusing)
    assert main(["init", str(file)]) == 1
    assert "optimize rejects this draft" in capsys.readouterr().err


def _refusing(*_: object, **__: object) -> None:
    raise RefusedError("the kernel has data races", "k.cu", "fix the kernel")


def test_a_second_table_is_added_to_an_optiml_toml(file: Path, tmp_path: Path) -> None:
    file.write_text(CODE + SECOND)
    launched = "void go(const float *x, float *y, int n) { border<<<1, 32>>>(x, y, n); }\n"
    file.write_text(CODE + SECOND + launched)
    for kernel in ("scale", "border"):
        assert main(["init", str(file), "--static", "--write", "--format", "toml", "--kernel", kernel]) == 0
    assert find_spec(tmp_path, file, "scale")[0].kernel == "scale"
    assert find_spec(tmp_path, file, "border")[0].kernel == "border"


def test_what_is_missing_is_said(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(CODE.split("void run")[0].replace("if (i < n)", "if (i % n)"))
    assert main(["init", str(file), "--static"]) == 1
    assert "missing: the launch" in capsys.readouterr().err


def test_wrong_use(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "none.cu")]) == 2
    assert main(["init", str(tmp_path)]) == 2
    assert main(["init", str(file), "--kernel", "scael"]) == 2
    assert "scale" in capsys.readouterr().err
    file.write_text(CODE + SECOND)
    assert main(["init", str(file)]) == 2
    assert "scale, border" in capsys.readouterr().err
    file.write_text("int main() { return 0; }\n")
    assert main(["init", str(file)]) == 2


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")
def test_extents_are_measured_by_running_the_original(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path / "cache")))
    # The text alone would read `x[i + n]` as it is, but cannot follow the helper.
    code = CODE.replace("2 * x[i]", "x[mirror(i, n)]").replace(
        "__global__", "__device__ int mirror(int i, int n) { return 2 * n - i; }\n__global__"
    )
    file.write_text(code)
    assert main(["init", str(file), "--static"]) == 1
    assert "size of 'x'" in capsys.readouterr().err
    main(["init", str(file)])
    captured = capsys.readouterr()
    assert 'args.x = { role = "in", size = "2*n + 1"' in captured.out, captured.err
    # Of a vector type the elements count, not their lanes; of a square matrix the trials have room for all.
    vectors = CODE.replace("const float *", "const float2 *").replace(
        "if (i < n) y[i] = 2 * x[i];", "if (i < n) for (int j = 0; j < n; ++j) y[same(j) * n + i] = x[i].x;"
    )
    file.write_text("__device__ int same(int j) { return j; }\n" + vectors)
    main(["init", str(file)])
    captured = capsys.readouterr()
    assert 'args.x = { role = "in", size = "n"' in captured.out, captured.err
    assert 'args.y = { role = "out", size = "n*n"' in captured.out, captured.err
    assert "check = [{ n = 1 }, { n = 129 }, { n = 113 }]" in captured.out
    # A square for each row: larger than the trials have room for at first.
    squares = CODE.replace("int n)", "int n, int m)").replace("(x, y, n)", "(x, y, n, m)")
    squares = squares.replace("y[i] = 2 * x[i]", "for (int j = 0; j < m * m; ++j) y[same(i) * m * m + j] = x[i]")
    file.write_text("__device__ int same(int j) { return j; }\n" + squares)
    main(["init", str(file)])
    captured = capsys.readouterr()
    assert 'args.y = { role = "out", size = "m*m*n"' in captured.out, captured.err
    assert "whole tiles" not in captured.out
    # A table that a buffer of whole numbers looks up.
    table = CODE.replace("const float *x", "const int *at, const float *x").replace("(x, y, n)", "(at, x, y, n)")
    file.write_text(table.replace("y[i] = 2 * x[i]", "for (int j = 0; j < 8; ++j) y[8 * i + j] = x[at[i] * 8 + j]"))
    main(["init", str(file)])
    captured = capsys.readouterr()
    assert 'args.x = { role = "in", size = "256*8", fill = "normal" }  # assumed: a table' in captured.out, captured.err
    assert '"integers", low = "0", high = "256"' in captured.out


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")
def test_a_kernel_that_takes_long_is_not_waited_for(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    from engine.cpu import draft_probe as probe

    monkeypatch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path / "cache")))
    monkeypatch.setattr(probe, "_MAX_TRIAL_S", 0.5)
    monkeypatch.setattr(probe, "_MAX_S", 0.4)
    file.write_text(CODE.replace("y[i] = 2 * x[i];", "while (x[i] < 1e30f) y[i] += 1;"))
    begin = time.monotonic()
    assert main(["init", str(file)]) == 1
    assert time.monotonic() - begin < 60  # of four trials one ran, and the check that a search begins with
    # What was touched by then says nothing; the text does.
    captured = capsys.readouterr()
    assert 'args.x = { role = "in", size = "n", fill = "normal" }  # assumed' in captured.out
    assert "optimize rejects this draft" in captured.err
    assert "did not end in 10 s" in captured.err


@pytest.mark.parametrize("form", ["comments", "toml"])
@pytest.mark.parametrize("name", ["scale", "a::b::scale"])
def test_a_draft_is_read_back_by_any_of_a_kernels_names(name: str, form: Form, tmp_path: Path) -> None:
    file = tmp_path / "k.cu"
    file.write_text(
        "namespace a { namespace b {\n"
        "template <typename T> __global__ void scale(const T* x, T* y, int n) {\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) y[i] = 2 * x[i];\n}\n"
        "template <typename T> void run(const T* x, T* y, int n) { scale<T><<<(n + 255) / 256, 256>>>(x, y, n); }\n"
        "template void run<float>(const float*, float*, int);\n}}\n"
    )
    maker = SpecMaker(tmp_path, sandbox(False), recorded=None, static=True)
    made, _, _ = maker.drafted(file, Known("scale", CompileOptions()), form=form)
    lines = "".join(f"// optiml: {line}\n" for key, line in lines_of(made.text).items() if key != "file")
    spec = maker.read_back(file, name, lines)
    assert (spec.kernel.rpartition("::")[2], spec.steps[0].template_args) == ("scale", "float")


def test_a_reason_names_the_values_that_the_draft_assumed(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(
        CODE.replace("int n) {", "int n, float s) {").replace("2 * x[i]", "s * x[i]").replace("n);", "n, 2);")
    )
    why = "case n=1: the original kernel fails: reads x[3], which has 1 element"
    monkeypatch.setattr("engine.commands.init._refusal", lambda *_: (why, ""))
    assert main(["init", str(file)]) == 1
    said = capsys.readouterr().err
    assert f"{why}; the draft assumed s = 0.75: write the values that the program passes" not in said  # 2 is passed
    file.write_text(file.read_text().replace("n, 2);", "n, given());"))
    assert main(["init", str(file)]) == 1
    assert f"{why}; the draft assumed s = 0.75: write the values that the program passes" in capsys.readouterr().err


def test_a_race_at_elements_that_indices_choose_may_be_the_inputs(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that takes where it stores from a buffer was called racy, and to be fixed: the draft's indices were the same."""
    why = "k.cu: the kernel 'scale' has data races: race on 'y'; fix the kernel: use atomics"
    monkeypatch.setattr("engine.commands.init._refusal", lambda *_: (why, ""))
    more = "; or, where 'at' are indices that must differ, write their fill, such as permutation"
    for code in (CODE, CODE.replace("const float *x", "const int *at, const float *x").replace("2 * x[i]", "x[at[i]]")):
        file.write_text(code.replace("(x, y, n);", "(at, x, y, n);") if "at[i]" in code else code)
        assert main(["init", str(file)]) == 1
        assert (f"{why}{more}" in capsys.readouterr().err) == ("at[i]" in code)


def test_a_race_where_rows_overlap_may_be_the_assumed_stride(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of packed pixels were as long as an image is wide, so that each ended in the next: the kernel was called racy."""
    why = "k.cu: the kernel 'rows' has data races: race on 'y'; fix the kernel: use atomics"
    monkeypatch.setattr("engine.commands.init._refusal", lambda *_: (why, ""))
    file.write_text(
        "__global__ void rows(const float *x, float *y, int pitch, int w, int h) {\n"
        "    int i = blockIdx.x * 256 + threadIdx.x, j = blockIdx.y;\n"
        "    if (i < w && j < h) y[j * pitch + i] = 2 * x[j * pitch + i];\n}\n"
        "void run(float *x, float *y, int p, int w, int h) { rows<<<dim3((w + 255) / 256, h), 256>>>(x, y, p, w, h); }\n"
    )
    assert main(["init", str(file)]) == 1
    more = "; or, where rows overlap as the draft assumed pitch = w, write the values that the program passes"
    assert f"{why}{more}" in capsys.readouterr().err


def test_a_kernel_of_a_header_is_drafted_by_the_file_that_includes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`optiml optimize main.cu:scale` found it; `optiml init` named the header and gave up."""
    (tmp_path / ".git").mkdir()
    kernel, host = CODE.rsplit("void run", 1)
    (tmp_path / "scale.h").write_text(kernel)
    (tmp_path / "main.cu").write_text(f'#include "scale.h"\nvoid run{host}')
    assert main(["init", f"{tmp_path / 'main.cu'}:scale", "--static"]) == 0
    assert '// optiml: args.y = { role = "out", size = "n" }' in capsys.readouterr().out
    assert main(["init", str(tmp_path / "main.cu"), "--static"]) == 0
    (tmp_path / "border.h").write_text(SECOND)
    (tmp_path / "main.cu").write_text(f'#include "scale.h"\n#include "border.h"\nvoid run{host}')
    capsys.readouterr()
    assert main(["init", str(tmp_path / "main.cu"), "--static"]) == 2
    assert "in several headers: border.h, scale.h; name one of them" in capsys.readouterr().err
    assert main(["init", f"{tmp_path / 'main.cu'}:border", "--static"]) == 1
