"""What a compiler prints about a stranger's code, all the way to the review: shortened, without paths and control characters, escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bot.bundle import read_bundle, write_bundle
from bot.render import check_annotations, review_body, summary_body
from bot.review import Settings, make_review
from engine.compile.built import NotBuilt
from engine.compile.compiler import Translation
from engine.compile.nvrtc import NvrtcCompiler
from engine.cuda.load import load_program
from engine.errors import CompileError
from engine.evaluate.build import Builder
from engine.predict.targets import target_for
from engine.process.sandbox import available, sandbox
from engine.search.journal import Entry, Journal
from engine.spec.find import find_spec
from tests.bot.make import HEAD, bundle, looked
from tests.faults.scripted import TEXT, kernel

SANDBOX, WHY = available()
pytestmark = pytest.mark.skipif(not SANDBOX, reason=f"no sandbox here: {WHY}")
HOSTILE = (
    "/home/alice/.ssh/id_rsa /usr/lib/secret.so \x1b[31mred\x1b[0m \x07 \u202egnp.exe @octocat #1 GH-2 deadbeefcafe "
    "<img src=x onerror=alert(1)> <!-- approve --> [click](https://evil.example/x) ![i](https://evil.example/i.png) "
    "`code` **bold** |cell| https://evil.example www.evil.example " + "long " * 400
)
STATEMENTS = (
    f"#error {HOSTILE}",
    f'static_assert(false, R"({HOSTILE})");',
    f'[[deprecated(R"({HOSTILE})")]] int z; z = y;',
)


@pytest.fixture(scope="module")
def compiler() -> Iterator[NvrtcCompiler]:
    made = NvrtcCompiler("sm_90", cache=None, sandbox=sandbox(), jobs=1)
    yield made
    made.close()


def _hostile(statement: str) -> str:
    return TEXT.replace("if (i < n)", f"\n{statement}\n    if (i < n)")


def _clean(said: str, most: int) -> None:
    assert 0 < len(said) <= most
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", said)
    for path in ("/home/alice", "/usr/lib"):
        assert path not in said


@pytest.mark.parametrize("statement", STATEMENTS, ids=["error", "static_assert", "deprecated"])
def test_an_original_that_does_not_compile(compiler: NvrtcCompiler, tmp_path: Path, statement: str) -> None:
    with pytest.raises(CompileError) as caught:
        compiler.compile(Translation(_hostile(statement), "src/a.cu", ("k",)))
    _clean(str(caught.value), 700)
    _clean(caught.value.log, 17_000)
    assert caught.value.where.startswith("src/a.cu:")
    what = bundle(looked(None), head=HEAD)
    (one,) = what.kernels
    write_bundle(
        type(what)(HEAD, what.base, (type(one)(one.changed, "none", error=str(caught.value)),), (), True), tmp_path
    )
    review = make_review(read_bundle(tmp_path, head=HEAD), (), Settings())
    for text in (review_body(review), summary_body(review)):
        assert "src/a" in text
        for sign in (
            "<img",
            "<!-- approve",
            "](http",
            "@octocat",
            "https://evil",
            "www.evil",
            "`code`",
            "**bold**",
            "#1 ",
        ):
            assert sign not in text, sign
    for annotation in check_annotations(review):
        _clean(annotation["message"], 4096)


def test_a_candidate_that_does_not_compile(compiler: NvrtcCompiler, tmp_path: Path) -> None:
    """The reason that stands in the journal, and in the result where the candidate is told of."""
    path = kernel(tmp_path)
    spec, spec_path = find_spec(tmp_path, path)
    builder = Builder(spec, tmp_path, compiler, target_for("sm_90"), spec_path)
    program = load_program(path, kernels=["k"])
    with pytest.raises(NotBuilt) as caught:
        builder.candidate(program.replace({"k.cu": _hostile(STATEMENTS[1]).encode()}))
    evaluation = caught.value.evaluation
    assert evaluation is not None
    assert evaluation.failure is not None
    _clean(evaluation.failure.reason, 500)
    journal = Journal(tmp_path / "journal.sqlite", program, {}, resume=False)
    journal.book(Entry(0, None, "", "", {}, "", program.digest, (), evaluation, {}, 0.0))
    assert next(journal.entries()).evaluation.failure == evaluation.failure
    journal.close()
