"""A rule's template with named constants: it is the machine code of what the rule writes, and can be tuned again."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from engine import cli
from engine.arith import evaluate
from engine.cuda.kernel import Edit, Span
from engine.cuda.load import load_program
from engine.errors import RefusedError
from engine.model import Program
from engine.rewrite.proposal import Family, Proposal
from engine.run.machine import make_machine
from engine.spec.find import find_spec
from engine.tune.declare import declared
from engine.tune.feasible import feasible
from engine.tune.named_constants import _fitted, _shortened, _terms, check, written
from engine.tune.offers import rule_template, rule_templates
from tests.runtime import with_runtime
from tests.support.confirmation import confirm_lightly

from .kernels import SAXPY

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path_factory.mktemp("cache"))))
        found = make_machine(device="cpu", jobs=2)
    yield found
    found.close()


def softmax_in(folder):
    """The example in `folder`, with shapes of which a run takes a fifth of the time."""
    text = (ROOT / "examples" / "softmax.cu").read_text()
    small = {
        "check": "[{ rows = 1, cols = 1 }, { rows = 7, cols = 33 }]",
        "time": "[{ rows = 4096, cols = 512 }]",
    }
    for key, shapes in small.items():
        text, count = re.subn(rf"^// optiml: {key} = .*$", f"// optiml: {key} = {shapes}", text, flags=re.M)
        assert count == 1
    (folder / "softmax.cu").write_text(text)
    return folder / "softmax.cu"


@cache
def known(file):
    path = ROOT / file
    spec, spec_path = find_spec(ROOT, path, None)
    return spec, spec_path, load_program(path, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])


def made(machine, file, rule, at=None):
    spec, _, program = known(file)
    template = next(t for t in rule_templates(program, spec, machine.target) if t.name == rule)
    points = feasible(template, machine.target).points
    # On tensor cores a tile's shape decides over more than numbers.
    plain = [p for p in points if not dict(zip(template.space.names, p, strict=True)).get("tensor")]
    return template, points, written(template, spec, points, at or plain[len(plain) // 2])


@pytest.mark.parametrize(
    ("file", "rule", "names", "fixed"),
    [
        ("examples/softmax.cu", "row_parallel", {"threads": "SOFTMAX_THREADS"}, ()),
        pytest.param("examples/matmul.cu", "matmul_tile", None, None, marks=pytest.mark.slow),
        ("benchmarks/suite/adamw.cu", "coarsen", {"factor": "ADAMW_FACTOR"}, ()),
        ("benchmarks/suite/batched_gemm.cu", "unroll", {"factor": "BATCHED_GEMM_FACTOR"}, ()),
        ("benchmarks/suite/bitonic_sort.cu", "launch_bounds", {"resident": "BITONIC_SORT_RESIDENT"}, ()),
    ],
)
def test_the_constants_are_the_machine_code_that_the_rule_writes(machine, file, rule, names, fixed):
    spec, spec_path, _ = known(file)
    template, _, found = made(machine, file, rule)
    builder = machine.builder(spec, ROOT, spec_path)
    checked = check(found, spec, spec_path, builder.original)
    assert len(checked) >= 2
    assert len({tuple(values.values()) for values in checked}) == len(checked)
    if names is None:  # some of its parameters change more than figures
        assert found.names
        assert found.fixed
        assert set(found.names) | set(found.fixed) == set(template.space.names)
    else:
        assert (found.names, found.fixed) == (names, fixed)


def test_who_takes_the_constants_has_a_template_of_the_same_points(machine):
    spec, spec_path, _ = known("benchmarks/suite/adamw.cu")
    _, points, found = made(machine, "benchmarks/suite/adamw.cu", "coarsen")
    own = declared(found.program, spec, spec_path)
    assert own.space.names == ("ADAMW_FACTOR",)
    assert set(feasible(own, machine.target).points) == set(points)
    assert own.default == points[len(points) // 2]
    text = found.program.data.decode()
    assert (
        f"#ifndef ADAMW_FACTOR\n#define ADAMW_FACTOR {own.default[0]}\n#endif\n// optiml: tune ADAMW_FACTOR = " in text
    )
    assert text.index("#ifndef") < text.index("__global__")


def test_conditions_come_along_with_fixed_parameters_as_figures(machine):
    spec, spec_path, _ = known("examples/matmul.cu")
    template, points, found = made(machine, "examples/matmul.cu", "matmul_tile")
    rest = [dict(zip(template.space.names, p, strict=True)) for p in points]
    plain = [p for p in rest if not p["tensor"]]
    at = plain[len(plain) // 2]
    own = declared(found.program, spec, spec_path)
    values = dict(zip(found.names, (set(p.values) for p in own.space.parameters), strict=True))
    assert set(feasible(own, machine.target).points) == {
        tuple(p[name] for name in found.names)
        for p in rest
        if all(p[name] == at[name] for name in found.fixed) and all(p[name] in values[name] for name in values)
    }
    lines = [line for line in found.program.data.decode().splitlines() if "optiml: where" in line]
    assert lines
    for line in lines:
        assert any(name in line for name in found.names.values())
        assert not any(name in line.replace("optiml", "").split() for name in found.fixed)


@pytest.mark.parametrize(
    ("condition", "shortened"),
    [
        ("128 * A % ((128 / 16) * (128 / 4)) == 0 && 128 * A % ((128 / 16) * (128 / 4)) == 0", "128 * A % 256 == 0"),
        ("2 * A * (128 + 128 + 8) * 4 <= 49152", "2 * A * 264 * 4 <= 49152"),
        ("min(128, 4) * A <= (7 / 2) && A > (3 - 8)", "min(128, 4) * A <= 3 && A > -5"),
        ("A % 2 == 0 && (A > 4 || A < 2) && A % 2 == 0", "A % 2 == 0 && (A > 4 || A < 2) && A % 2 == 0"),
        ("A * (8 / 4 / 2) > 1", "A * (8 / 4 / 2) > 1"),
        ("128 % 16 == 0 && A % 4 == 0", "A % 4 == 0"),
        ("128 % 3 == 0 && A % 4 == 0", "128 % 3 == 0 && A % 4 == 0"),
        ("1 ? A >= 2 : A <= 2", "A >= 2"),
        ("(4 - 4) ? A >= 2 : A % (8 * 2) == 0 && 1", "A % 16 == 0"),
        ("0 ? A > 2 : 1", ""),
        ("A ? A > 2 : 0", "A ? A > 2 : 0"),
    ],
)
def test_conditions_are_written_without_what_is_known(condition, shortened):
    assert _shortened(condition) == shortened
    assert all(bool(evaluate(condition, {"A": a})) == bool(evaluate(shortened or "1", {"A": a})) for a in range(300))


def test_a_rule_that_changes_more_than_figures_is_refused(machine):
    with pytest.raises(RefusedError, match="vectorize changes more than numbers"):
        made(machine, "benchmarks/suite/swiglu.cu", "vectorize")


@pytest.mark.parametrize(
    ("values", "expression"),
    [
        (lambda a, b: a, "a"),
        (lambda a, b: a * b, "a * b"),
        (lambda a, b: a * b - 1, "a * b - 1"),
        (lambda a, b: 4 * b, "b * 4"),
        (lambda a, b: 256 * a + 3, "a * 256 + 3"),
        (lambda a, b: a // 32, "a / 32"),
        (lambda a, b: a // b, "a / b"),
        (lambda a, b: a + b, "(a + b)"),
        (lambda a, b: (a + 1) * b, "(a + 1) * b"),
        (lambda a, b: a * 7 % 31, None),
        (lambda a, b: a + 1000, None),
    ],
)
def test_figures_are_expressions_over_the_parameters(values, expression):
    points = [(a, b) for a in (32, 96, 64, 256) for b in (1, 2, 8, 16)]
    terms = list(_terms(points, ("a", "b"), (0, 1)))
    assert _fitted([values(a, b) for a, b in points], terms) == expression


def texts(write, values=(2, 4, 8)):
    """A template whose text `write` gives, over SAXPY without its own."""
    plain = "".join(line for line in SAXPY.splitlines(True) if "tune" not in line and "where" not in line)
    original = Program({"k.cu": plain.encode()}, "k.cu")

    def make(named):
        return Proposal("rules", "test", "Test", {"k.cu": (Edit(Span(0, len(plain)), write(plain, named["n"])),)})

    return original, rule_template(original, Family("test", "Test", {"n": values}, (), make))


def spec_of(program):
    from engine.spec.reader import specs_in

    return specs_in(program, None)[0]


def put(plain, text):
    at = plain.index("__global__")
    return plain[:at] + text + plain[at:]


def test_names_that_are_taken_are_left_alone_and_suffixes_are_kept():
    original, template = texts(lambda plain, n: put(plain, f"// SAXPY_N\nstatic __device__ unsigned wide[{n}u * 3];\n"))
    found = written(template, spec_of(original), [(2,), (4,), (8,)], (4,))
    assert found.names == {"n": "SAXPY_N_2"}
    assert "wide[(SAXPY_N_2 * 1u) * 3]" in found.program.data.decode()


@pytest.mark.parametrize(
    "write",
    [
        lambda plain, n: put(plain, f"// {n} of them\n"),
        lambda plain, n: put(plain, f"static __device__ float f = {n}.5f;\n"),
        lambda plain, n: put(plain, f"static __device__ int i = {n:#x};\n"),
        lambda plain, n: put(plain, "static __device__ int i;\n" * n),
        lambda plain, n: put(plain, f"static __device__ int i{n};\n"),
        lambda plain, n: put(plain, f"static __device__ int i = {n * n * n % 7};\n"),
    ],
)
def test_what_is_no_figure_is_not_named(write):
    original, template = texts(write)
    with pytest.raises(RefusedError, match="changes more than numbers"):
        written(template, spec_of(original), [(2,), (4,), (8,)], (4,))


def test_values_between_which_the_text_changes_otherwise_are_left_out():
    original, template = texts(
        lambda plain, n: put(plain, f"static __device__ int i = {n};\n" if n > 1 else ""), (1, 2, 4)
    )
    found = written(template, spec_of(original), [(1,), (2,), (4,)], (4,))
    assert "// optiml: tune SAXPY_N = 2, 4\n" in found.program.data.decode()


def test_windows_newlines_stay():
    original, template = texts(lambda plain, n: put(plain, f"static __device__ int i = {n};\n"))
    windows = original.data.replace(b"\n", b"\r\n")
    original = Program({"k.cu": windows}, "k.cu")

    def make(named):
        at = windows.index(b"__global__")
        text = f"static __device__ int i = {named['n']};\n"
        return Proposal("rules", "test", "Test", {"k.cu": (Edit(Span(at, at), text),)})

    template = rule_template(original, Family("test", "Test", {"n": (2, 4)}, (), make))
    data = written(template, spec_of(original), [(2,), (4,)], (4,)).program.data
    assert b"#define SAXPY_N 4\r\n" in data
    assert data.count(b"\n") == data.count(b"\r\n")


def test_what_compiles_to_other_machine_code_is_refused(machine):
    spec, spec_path, program = known("benchmarks/suite/batched_gemm.cu")
    _, _, found = made(machine, "benchmarks/suite/batched_gemm.cu", "unroll")
    builder = machine.builder(spec, ROOT, spec_path)
    wrong = replace(found, points=tuple((values, program) for values, _ in found.points))
    with pytest.raises(RefusedError, match="the machine code differs at BATCHED_GEMM_FACTOR = "):
        check(wrong, spec, spec_path, builder.original)
    with pytest.raises(RefusedError, match="not found in the file"):
        check(replace(found, program=program), spec, spec_path, builder.original)


@pytest.mark.slow
def test_the_command_writes_a_patch_that_can_be_tuned_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path / "cache")))
    confirm_lightly(monkeypatch)
    work = tmp_path / "work"
    (work / ".git").mkdir(parents=True)
    file = softmax_in(work)
    arguments = ["tune", str(file), "--device", "cpu", "--budget", "3", "--out", str(work / "out")]
    assert cli.main([*arguments, "--rule", "row_parallel", "--constants"]) == 0
    assert "constants.patch" in capsys.readouterr().out
    result = json.loads((work / "out" / "result.json").read_text())
    assert result["constants"]["names"] == {"threads": "SOFTMAX_THREADS"}
    assert result["constants"]["fixed"] == []
    assert len(result["constants"]["checked"]) == 6
    assert 0 < result["stages"]["constants"] < result["elapsed_s"]
    patch = (work / "out" / "constants.patch").read_text()
    assert f"+#define SOFTMAX_THREADS {result['best']['values']['threads']}\n" in patch
    assert "+// optiml: tune SOFTMAX_THREADS = 32, 64" in patch
    # A run without it leaves none behind.
    assert cli.main([*arguments, "--rule", "row_parallel"]) == 0
    assert not (work / "out" / "constants.patch").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raised", "says", "code"),
    [(RefusedError("it changes more"), "it changes more", 0), (KeyboardInterrupt(), "interrupted", 130)],
)
def test_without_named_constants_what_was_found_stays(tmp_path, monkeypatch, capsys, raised, says, code):
    def refuses(*arguments):
        raise raised

    monkeypatch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path / "cache")))
    confirm_lightly(monkeypatch)
    monkeypatch.setattr("engine.run.template_run.written", refuses)
    (tmp_path / ".git").mkdir()
    file = softmax_in(tmp_path)
    arguments = ["tune", str(file), "--device", "cpu", "--budget", "1", "--rule", "row_parallel", "--constants"]
    assert cli.main([*arguments, "--out", str(tmp_path / "out")]) == code
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["constants"] is None
    assert f"no constants.patch: {says}" in result["notes"]
    assert (tmp_path / "out" / result["best"]["patch"]).is_file()
    assert not (tmp_path / "out" / "constants.patch").exists()


def test_constants_of_what_are_constants_already_are_refused(tmp_path, capsys):
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_text(SAXPY)
    assert cli.main(["tune", str(tmp_path / "k.cu"), "--constants", "--device", "cpu", "--budget", "3"]) == 2
    assert "--constants: the parameters tuned here are already named constants; omit it" in capsys.readouterr().err
    assert not (tmp_path / ".optiml").exists()
