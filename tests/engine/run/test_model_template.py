"""A template that a model writes: the first answer that can be searched, its points as edits of the original, built as a model's code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("jinja2")

from engine.compile.built import NotBuilt
from engine.errors import UsageError
from engine.llm.feed import Background
from engine.llm.node_context import Diagnosed, make_context
from engine.llm.session import EXCHANGES, LlmSettings
from engine.llm.techniques import fitting
from engine.model import CaseTiming, Evaluation, Failure, Measurement, Outcome, Program, Target
from engine.run.model_template import ModelTemplate, TemplateAuthor, TemplateWaits
from engine.run.template_run import tune
from engine.search.participants import Builds
from engine.search.progress import Budget
from engine.search.tree import Node
from engine.spec.launch_config import evaluate
from engine.spec.reader import relaunched, specs_in
from engine.tune.chosen_template import NoTemplate
from engine.tune.declare import declared
from engine.tune.feasible import feasible
from engine.tune.strategy import Start
from engine.tune.strategy_choice import choose
from engine.tune.template import UnusableTemplate, program_at
from engine.tune.tune_options import TuneOptions
from engine.tune.tuner import TemplateSearch, Tuner
from tests.engine.llm.server import ChatServer, Reply, completion, ok, status
from tests.engine.search.fakes import FakeEvaluator

TEXT = """// optiml: args.x = { role = "inout", size = "n" }
// optiml: check = [{ n = 1 }, { n = 1000 }]
// optiml: time = [{ n = 65536 }]
// optiml: launch = { grid = "(n + 127) / 128", block = "128" }
#include <cuda_runtime.h>
__global__ void scale(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        x[i] *= 2.0f;
    }
}
void launch(float* x, int n) { scale<<<(n + 127) / 128, 128>>>(x, n); }
"""
KERNEL = """// optiml: tune WIDE = 64, 128, 256
constexpr int WIDE = 128;
// optiml: tune EACH = 1, 2
constexpr int EACH = 2;
// optiml: where WIDE * EACH <= 256
__global__ void scale(float* x, int n) {
    for (int e = 0; e < EACH; ++e) {
        int i = (blockIdx.x * EACH + e) * WIDE + threadIdx.x;
        if (i < n) {
            x[i] *= 2.0f;
        }
    }
}
"""
PROGRAM = Program({"k.cu": TEXT.encode()}, "k.cu")


def item(idea: str, grid: str, block: str, kernel: str = "") -> dict[str, Any]:
    launch = [{"kernel": "scale", "grid": [grid], "block": [block], "shared": ""}]
    return {"idea": idea, "counter": "", "direction": "down", "edits": [], "kernel": kernel, "launch": launch}


def answer(idea: str, grid: str, block: str, kernel: str = "") -> Reply:
    return ok(completion(json.dumps({"proposals": [item(idea, grid, block, kernel)]})))


CLOSED = answer("Use blocks of 64", "(n + 63) / 64", "64")
LEFT_OPEN = item("Leave the block open", "(n + WIDE * EACH - 1) / (WIDE * EACH)", "WIDE", KERNEL)
OPEN = ok(completion(json.dumps({"proposals": [LEFT_OPEN]})))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ChatServer]]:
    running: list[ChatServer] = []

    def start(*script: Reply) -> ChatServer:
        running.append(ChatServer(*script))
        monkeypatch.setenv("OPENAI_BASE_URL", running[-1].url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        return running[-1]

    yield start
    for server in running:
        server.stop()


def author(out: Path, **settings: Any) -> TemplateAuthor:
    return TemplateAuthor(LlmSettings(**settings), PROGRAM, (specs_in(PROGRAM, None)[0], None), Target(), out)


def asked(out: Path) -> ModelTemplate:
    one = author(out)
    try:
        return one.first()[0]
    finally:
        one.close()


def test_the_first_answer_that_leaves_something_open_is_the_template(
    tmp_path: Path, serve: Callable[..., ChatServer]
) -> None:
    server = serve(CLOSED, OPEN)
    template = asked(tmp_path)
    assert template.summary == "Leave the block open"
    assert "Write the kernel as a template" in server.requests[0]["messages"][-1]["content"]
    assert "optiml: tune" in server.requests[0]["messages"][0]["content"]
    assert "Use blocks of 64: not used: it leaves nothing open" in server.requests[1]["messages"][-1]["content"]
    points = feasible(template, Target()).points
    assert len(points) == 5  # of six, one is beyond the condition
    spec = specs_in(PROGRAM, None)[0]
    for point in points:
        program = program_at(PROGRAM, template, point)
        assert b"// optiml: tune WIDE = 64, 128, 256\nconstexpr int WIDE = %d;" % point[0] in program.data
        config = evaluate(program, relaunched(program, spec), 0, {"n": 1000})
        assert config.block[0] == point[0]
        assert config.grid[0] == -(-1000 // (point[0] * point[1]))
    assert (tmp_path / EXCHANGES).read_text().count("\n") == 2


def test_points_of_a_model_are_not_built_as_code_of_rules(tmp_path: Path, serve: Callable[..., ChatServer]) -> None:
    serve(OPEN)
    template, built = asked(tmp_path), []

    def build(program: Program, *, by_rules: bool) -> Any:
        built.append(by_rules)
        raise UsageError("enough")

    evaluator: Any = SimpleNamespace(build=build)
    points = feasible(template, Target())
    with ThreadPoolExecutor(1) as executor:
        searched = TemplateSearch(template, points, choose("random", Start(points.points, 0, None))[0])
        Tuner(PROGRAM, searched, evaluator, Target(), Builds(executor, in_flight=2)).begin(2)
    assert built
    assert not any(built)


@pytest.mark.parametrize(
    ("reply", "says", "most"),
    [(CLOSED, "it leaves nothing open", 3), (status(401), "status 401; check OPENAI_API_KEY", 1)],
)
def test_without_a_template_the_reason_is_told(
    tmp_path: Path, serve: Callable[..., ChatServer], reply: Reply, says: str, most: int
) -> None:
    server = serve(reply)
    with pytest.raises(NoTemplate, match=f"the model wrote no template that can be searched: .*{says}"):
        asked(tmp_path)
    assert len(server.requests) <= most


WRONG = answer(
    "Skip the last one", "(n + WIDE * EACH - 1) / (WIDE * EACH)", "WIDE", KERNEL.replace("i < n", "i < n - 1")
)
FAILED = Evaluation(Outcome.WRONG_RESULT, failure=Failure("'x' differs", case="n=1", argument="x", index=0))


def failed(template: ModelTemplate) -> UnusableTemplate:
    return UnusableTemplate("it differs", point={"WIDE": 64, "EACH": 2}, evaluation=FAILED)


def test_a_template_that_fails_its_test_goes_back_with_the_failure(
    tmp_path: Path, serve: Callable[..., ChatServer]
) -> None:
    """The run ended with 'omit the rule model, and please report it'."""
    server = serve(WRONG, OPEN)
    one = author(tmp_path)
    first = one.first()[0]
    second, (note,) = one.corrected(first, failed(first))
    one.close()
    assert (first.summary, second.summary) == ("Skip the last one", "Leave the block open")
    told = server.requests[1]["messages"]
    assert told[0]["content"].startswith("You correct edits")
    assert "it computes something else in 'x', at WIDE = 64, EACH = 2" in told[1]["content"]
    assert "i < n - 1" in told[1]["content"]
    assert "2 requests, 240 tokens" in note


def test_templates_that_fail_again_are_given_up_with_the_last_reason(
    tmp_path: Path, serve: Callable[..., ChatServer]
) -> None:
    server, tested = serve(WRONG), []

    def search(template: Any, notes: tuple[str, ...]) -> Any:
        tested.append(template)
        raise failed(template)

    one = author(tmp_path)
    with pytest.raises(NoTemplate, match="Skip the last one: it differs"):
        one.searched(search)
    one.close()
    assert 3 <= len(tested) == len(server.requests) <= 3 * (1 + 2)  # three templates with two corrections each


def test_a_template_that_does_not_compile_is_refused_however_few_points_it_has() -> None:
    """Three points that did not compile ended as 'No point of the template is faster'."""
    text = TEXT.replace("128", "WIDE").replace("+ 127", "+ WIDE - 1")
    text = text.replace("__global__", "// optiml: tune WIDE = 64, 128, 256\nconstexpr int WIDE = 128;\n__global__")
    program = Program({"k.cu": text.encode()}, "k.cu")
    made = declared(program, specs_in(program, None)[0], None)
    assert made is not None
    failure = Evaluation(Outcome.COMPILE_ERROR, failure=Failure("nothing is undefined"))

    class Evaluator(FakeEvaluator):
        def build(self, program: Program, *, by_rules: bool = False) -> Any:
            if program is made.original:
                return super().build(program)
            raise NotBuilt("nothing is undefined", evaluation=failure)

    evaluator: Any = Evaluator()
    points = feasible(made, Target())
    with ThreadPoolExecutor(1) as executor:
        searched = TemplateSearch(made, points, choose("exhaustive", Start(points.points, 0, None))[0])
        tuner = Tuner(made.original, searched, evaluator, Target(), Builds(executor, in_flight=2))
        tuner.start(*evaluator.open(made.original))
        with pytest.raises(UnusableTemplate, match="no point of the template could be built and run") as ended:
            tuner.run(Budget())
    assert ended.value.evaluation == failure
    assert ended.value.point["WIDE"] != 128


def test_a_question_for_a_template_waits_in_a_batch_and_is_no_failure(tmp_path: Path) -> None:
    """It ended as 'the model wrote no template' with the exit code of a wrong command."""
    one = author(tmp_path, batch=tmp_path / "batch", model="m")
    with pytest.raises(TemplateWaits, match="waiting in the batch") as waits:
        one.first()
    one.close()
    assert waits.value.exit_code == 4
    (request,) = (tmp_path / "batch" / "requests.jsonl").read_text().splitlines()
    text = json.dumps({"proposals": [LEFT_OPEN]})
    body = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]}
    name = json.loads(request)["custom_id"]
    line = {
        "id": name,
        "custom_id": name,
        "error": None,
        "response": {"status_code": 200, "request_id": name, "body": body},
    }
    (tmp_path / "batch" / "responses.jsonl").write_text(json.dumps(line) + "\n")
    again = author(tmp_path, batch=tmp_path / "batch", model="m")
    assert again.first()[0].summary == "Leave the block open"
    again.close()


def test_a_models_template_goes_with_no_other(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(TEXT)
    machine: Any = SimpleNamespace(target=Target(), builder=lambda *arguments: None)
    with pytest.raises(UsageError, match="a model writes the template"):
        tune(TuneOptions(path, rule="block_size", out=tmp_path / "out"), machine, llm=LlmSettings())


def test_a_question_for_a_template_states_what_limits_the_original_and_picks_techniques_by_that(
    tmp_path: Path, serve: Callable[..., ChatServer]
) -> None:
    """It had neither a time nor a diagnosis, and three techniques for other kernels."""
    server = serve(OPEN)
    seen = []

    def analyse(original: Node, wait_s: float) -> Diagnosed:
        seen.append(original)
        case = CaseTiming("n=65536", 1.0, 7.5, 7.5, 1.0, 1.0, 1.0, 0)
        original.evaluation = Evaluation(Outcome.NO_DIFFERENCE, Measurement((case,), 1.0, 1.0, 1.0, predicted=True))
        return Diagnosed(("too few loads in flight",), {}, ("latency_bound", "memory_stalls"))

    background = Background(analyse, lambda node: ["Use four warps: gave 2x on sm_90"])
    one = TemplateAuthor(LlmSettings(), PROGRAM, (specs_in(PROGRAM, None)[0], None), Target(), tmp_path, background)
    one.first()
    one.close()
    told = server.requests[0]["messages"][1]["content"]
    assert "This version: the original; 7.5 us, predicted" in told
    assert "## What holds it back\n- too few loads in flight" in told
    assert "## What similar kernels taught\n- Use four warps: gave 2x on sm_90" in told
    assert len(seen) == 1
    place = make_context(seen[0], specs_in(PROGRAM, None)[0], Target(), counters=()).place
    titles = {technique.title for technique in fitting(place, ("latency_bound", "memory_stalls"))}
    assert titles
    assert all(f"### {title}\n" in told for title in titles)
    replayed = TemplateAuthor(
        LlmSettings(replay=tmp_path / EXCHANGES),
        PROGRAM,
        (specs_in(PROGRAM, None)[0], None),
        Target(),
        tmp_path,
        background,
    )
    assert replayed.first()[0].summary == "Leave the block open"
    replayed.close()
    assert len(seen) == 1  # its answer is at hand, whatever the question says
