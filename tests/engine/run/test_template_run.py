"""Tuning on real files without a GPU: what is on disk, what a rule's template gives, what bad input gives."""

import json
import subprocess
from pathlib import Path

import pytest

from engine import cli
from engine.cuda.load import load_program
from engine.llm.lesson_store import Memory
from engine.model import Outcome, Target
from engine.process.decode import decode
from engine.rules import families, make_site
from engine.spec.find import find_spec
from engine.tune.feasible import feasible
from engine.tune.offers import rule_templates
from engine.tune.template import program_at
from engine.tune.tuning_result import TuneResult
from engine.verify.screen import screen
from tests.engine.tune.kernels import SAXPY, template
from tests.engine.tune.test_tuner import Evaluator
from tests.runtime import with_runtime

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

SCALE = """#define ITEMS 1
constexpr int SIZE = 32;
// optiml: tune ITEMS = 1, 4
// optiml: tune SIZE = 32, 256
// optiml: kernel = "scale<float, SIZE>"
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 129 }]
// optiml: time = [{ n = 1048576 }]
template <typename T, int BLOCK>
__global__ void scale(const T* x, T* y, int n) {
    for (int k = 0; k < ITEMS; ++k) {
        int i = (blockIdx.x * ITEMS + k) * BLOCK + threadIdx.x;
        if (i < n) y[i] = 2 * x[i];
    }
}
void run(const float* x, float* y, int n) {
    scale<float, SIZE><<<(n + SIZE * ITEMS - 1) / (SIZE * ITEMS), SIZE>>>(x, y, n);
}
"""


@pytest.mark.slow
def test_a_template_is_tuned_and_its_patch_sets_the_constants(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path / "cache")))
    work = tmp_path / "work"
    work.mkdir()
    (work / "scale.cu").write_text(SCALE)
    (work / ".optiml.yml").write_text("targets: [sm_80]\n")
    arguments = [
        "tune",
        str(work / "scale.cu"),
        "--budget",
        "4",
        "--param",
        "ITEMS=1",
        "--device",
        "cpu",
        "--jobs",
        "2",
        "--memory",
        "--memory-file",
        str(tmp_path / "memory.sqlite"),
    ]
    assert cli.main([*arguments, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    out = work / ".optiml" / "scale-scale-tune"
    assert said == json.loads((out / "result.json").read_text())
    result = decode(TuneResult, said)
    assert result.schema == "optiml.tune/1"
    assert result.mode == "predicted"
    assert "predicted" in result.verdict
    assert result.strategy == "exhaustive"
    assert result.counts["configurations"] == 1  # the other point is the original
    assert result.space.feasible == 2
    assert result.best is not None
    assert result.memory == {"learnt": 2, "told": 0, "reweighed": 0}
    memory = Memory(tmp_path / "memory.sqlite")
    assert [(one.rule, one.predicted) for one in memory.lessons(str(work))] == [
        ("constants", True),
        ("constants:SIZE", True),
    ]
    memory.close()
    assert result.best.values["SIZE"] == 256  # 32 threads leave most of a multiprocessor idle
    assert result.rates["configurations_per_s"] > 0
    # The conditions of the repository's settings count for what the tuner suggests, too.
    verdicts = {g.name: g.verdict for g in result.best.evaluation.guardrails}
    assert {"races": "passed", "compiles for sm_80": "passed"}.items() <= verdicts.items()
    subprocess.run(["git", "apply", "--check", str(out / "best.patch")], cwd=work, check=True)
    patched = SCALE.replace("SIZE = 32;", "SIZE = 256;")
    assert [line[1:] for line in (out / "best.patch").read_text().splitlines() if line.startswith("+c")] == [
        line for line in patched.splitlines() if "SIZE =" in line and line.startswith("c")
    ]
    assert [m.configurations for m in result.trace] == sorted(m.configurations for m in result.trace)
    assert (work / ".optiml" / ".gitignore").read_text() == "*\n"

    (work / ".optiml.yml").write_text("guardrails:\n  command: grep -q 'SIZE = 32;' scale.cu\n")
    assert cli.main([*arguments, "--resume"]) == 0
    again = decode(TuneResult, json.loads((out / "result.json").read_text()))
    assert again.counts["configurations"] == 1
    assert again.rates["configurations_per_s"] == 0  # the one point is the earlier run's
    assert again.best is None
    assert [r.evaluation.outcome for r in again.refused] == [Outcome.GUARDRAIL]
    assert not (out / "best.patch").exists()
    assert "Not confirmed: ITEMS = 1, SIZE = 256: end-to-end command" in " ".join(capsys.readouterr().out.split())

    assert cli.main([*arguments, "--param", "SIZE=64,128", "--resume"]) == 2
    assert "'template' was \"constants: ITEMS = 1, SIZE = 32|256\"" in capsys.readouterr().err


def test_a_constant_that_names_the_instance_may_change_but_not_one_that_names_another():
    def refused(host):
        made = template(SCALE.partition("void run")[0] + host)
        return screen(made.original, program_at(made.original, made, (1, 256)), made.spec)

    own = "void run(const float* x, float* y, int n) { scale<float, SIZE><<<(n + SIZE - 1) / SIZE, SIZE>>>(x, y, n); }"
    other = "\nvoid also(const double* x, double* y, int n) { scale<double, SIZE><<<n, 32>>>(x, y, n); }"
    assert refused(own) is None
    assert "SIZE" in (refused(own + other) or "")
    assert "SIZE" in (refused(own + "\nint size() { return SIZE; }") or "")


@pytest.mark.parametrize(
    ("name", "rule", "least"),
    [
        ("matmul", "matmul_tile", 1000),
        ("transpose", "transpose_tile", 15),
        ("softmax", "row_parallel", 30),
        ("gelu_bias", "block_size", 30),
        ("gelu_bias", "coarsen", 10),
        ("gelu_bias", "vectorize", 2),
        ("softmax", "unroll", 25),
        ("dot", "launch_bounds", 3),
    ],
)
def test_a_rule_leaves_its_figures_open(name, rule, least):
    path = EXAMPLES / f"{name}.cu"
    spec, spec_path = find_spec(EXAMPLES.parent, path)
    program = load_program(path, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])
    left_open = next(t for t in rule_templates(program, spec, Target()) if t.name == rule)
    points = feasible(left_open, Target()).points
    assert len(points) >= least
    texts = {program_at(program, left_open, p).digest for p in points[:: max(1, len(points) // 5)]}
    assert len(texts) >= min(5, len(points))
    assert program.digest not in texts
    assert left_open.proposal(points[-1]).proposer == "tuner"


def test_a_family_holds_what_the_rule_proposes_by_itself():
    path = EXAMPLES / "matmul.cu"
    spec, spec_path = find_spec(EXAMPLES.parent, path)
    program = load_program(path, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])
    site = make_site(program, spec, 0, Target())
    family = next(f for f in families(site) if f.rule == "matmul_tile")
    left_open = next(t for t in rule_templates(program, spec, Target()) if t.name == "matmul_tile")
    points = set(feasible(left_open, Target()).points)
    from engine.rules import proposals

    own = [
        p
        for p in proposals(site, only=["matmul_tile"])
        if all(p.parameters[n] in v for n, v in family.parameters.items())
    ]
    assert len(own) >= 5
    for proposal in own:
        values = {n: int(proposal.parameters[n]) for n in family.parameters}
        assert tuple(values[n] for n in left_open.space.names) in points
        made = family.make(values)
        assert made is not None
        assert made.edits == proposal.edits


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["--param", "SIZE"], "--param: 'SIZE' is not valid", 2),
        (["--param", "SIZE=64", "--param", "SIZE=32"], "names a parameter twice", 2),
        (["--param", "NOWHERE=1,2"], "'NOWHERE' is neither a macro nor a constant", 2),
        (["--param", "SIZE=a"], "invalid values of 'SIZE'", 2),
        (["--where", "SIZE > 4096"], "'SIZE > 4096' excludes", 1),
        (["--where", "SIZE <> 3"], "unexpected", 2),
        (["--where", "OTHER > 3"], "names 'OTHER'", 2),
        (["--strategy", "magic"], "--strategy: unknown strategy 'magic'; use one of exhaustive, model,", 2),
        (
            ["--rule", "launch_bounds", "--where", "OTHER > 3"],
            "names 'OTHER', which is neither a parameter nor a constant",
            2,
        ),
        (["--rule", "nothing"], "--rule: unknown rule 'nothing'; those that write a template for this kernel: ", 2),
        (["--rule", "matmul_tile"], "'matmul_tile' writes no template for this kernel; those that do:", 2),
        (
            ["--param", "ITEMS=0,1", "--param", "SIZE=32", "--where", "ITEMS > 0"],
            "the only feasible point is the original: ITEMS = 1, SIZE = 32; of 2, 'ITEMS > 0' excludes 1; add values",
            1,
        ),
        (["--rule", "launch_bounds/9", "--param", "SIZE=64"], "--rule and --param exclude each other", 2),
        (["--dispatch"], "one timing case", 1),
        (["--budget", "none"], "invalid budget 'none'", 2),
        (["--jobs", "0"], "--jobs must be at least 1", 2),
    ],
)
def test_bad_input_is_a_clear_error_and_overwrites_nothing(tmp_path, monkeypatch, capsys, arguments, says, code):
    monkeypatch.setenv("OPTIML_CACHE", str(with_runtime(tmp_path / "cache")))
    (tmp_path / "scale.cu").write_text(SCALE)
    out = tmp_path / "out"
    out.mkdir()
    (out / "result.json").write_text("earlier")
    assert cli.main(["tune", str(tmp_path / "scale.cu"), "--device", "cpu", "--out", str(out), *arguments]) == code
    error = capsys.readouterr().err
    assert says in error
    assert "internal" not in error
    assert (out / "result.json").read_text() == "earlier"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SAXPY, "the template does not reproduce the original at BLOCK = "),  # by the evaluator that stands in
        (SAXPY.replace("i + k * BLOCK", "i + "), "k.cu:19: expected an expression"),
        (SAXPY.replace("64, 128", "64 128"), "invalid values of 'BLOCK'"),
    ],
)
def test_a_file_that_is_refused_leaves_what_an_earlier_run_wrote(tmp_path, monkeypatch, capsys, text, says):
    """The journal of an earlier run was gone as soon as the original was built."""
    if text is SAXPY:
        every = {(b, i) for b in (64, 128, 256) for i in (1, 2, 4)}
        monkeypatch.setattr("engine.run.machine.Machine.evaluator", lambda *a, **k: Evaluator(wrong=every))
    (tmp_path / "k.cu").write_text(text)
    out = tmp_path / "out"
    out.mkdir()
    earlier = {"result.json": "earlier result", "journal.sqlite": "earlier journal", "best.patch": "earlier patch"}
    for name, held in earlier.items():
        (out / name).write_text(held)
    assert cli.main(["tune", str(tmp_path / "k.cu"), "--out", str(out), "--device", "cpu", "--jobs", "1"]) in (1, 2)
    assert says in capsys.readouterr().err
    (kept,) = tmp_path.glob("out*")  # in its place, or beside it where the request is another
    assert {p.name: p.read_text() for p in kept.iterdir() if p.suffix != ".lock" and p.name != ".gitignore"} == earlier


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    ("text", "out"),
    [
        (SAXPY, "out/deep"),  # by the evaluator that stands in
        (SAXPY.replace("i + k * BLOCK", "i + "), ".optiml/k-saxpy-tune"),
        (SAXPY.replace("<= 4096", "< 0"), "out"),
    ],
)
def test_a_run_that_is_refused_leaves_nothing_of_its_own(tmp_path, monkeypatch, capsys, text, out, resume):
    """An empty journal stayed: the report took it for a run that was killed, and --resume was refused again."""
    if text is SAXPY:
        every = {(b, i) for b in (64, 128, 256) for i in (1, 2, 4)}
        monkeypatch.setattr("engine.run.machine.Machine.evaluator", lambda *a, **k: Evaluator(wrong=every))
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_text(text)
    arguments = ["tune", str(tmp_path / "k.cu"), "--out", str(tmp_path / out), "--device", "cpu", "--jobs", "1"]
    assert cli.main([*arguments, *["--resume"] * resume]) in (1, 2)
    assert capsys.readouterr().err
    assert {p.name for p in tmp_path.iterdir()} == {".git", "k.cu"}


def test_the_compilers_error_is_said_where_the_rules_find_no_template(tmp_path, capsys):
    """It said that there is no template: rules leave code alone that the grammar does not know."""
    text = SCALE.replace("2 * x[i]", "2 * ").replace(
        "// optiml: tune ITEMS = 1, 4\n// optiml: tune SIZE = 32, 256\n", ""
    )
    (tmp_path / "scale.cu").write_text(text)
    arguments = ["tune", str(tmp_path / "scale.cu"), "--device", "cpu", "--jobs", "1", "--out", str(tmp_path / "out")]
    assert cli.main(arguments) == 1
    assert "scale.cu:12: expected an expression" in capsys.readouterr().err
    assert cli.main([*arguments, "--rule", "block_size"]) == 1
    assert "scale.cu:12: expected an expression" in capsys.readouterr().err
    (tmp_path / "scale.cu").write_text(text.replace("2 * ;", "2;"))
    assert cli.main([*arguments, "--rule", "block_size"]) == 2
    assert "the rule 'block_size' writes no template" in capsys.readouterr().err


def test_a_missing_file_and_a_folder_are_wrong_use(tmp_path, capsys):
    assert cli.main(["tune", str(tmp_path / "none.cu")]) == 2
    assert cli.main(["tune", str(tmp_path)]) == 2
    assert "no such file" in capsys.readouterr().err
