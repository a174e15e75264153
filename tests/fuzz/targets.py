"""Every reader of a stranger's bytes, each as a function that may end in its documented error and in no other way."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bot.bundle import parse_bundle
from bot.commands import parse as parse_command
from bot.diff import read_diff, read_patch
from bot.errors import BundleError, DiffError
from bot.escape import code, fence, prose
from bot.untrusted import decode, load_json
from engine import arith
from engine.compile.compiler import clean_log, compile_error, parse_resources
from engine.compile.cubin import Cubin, CubinError
from engine.cpu.object_lines import Lines
from engine.cpu.reports import read_report
from engine.cuda.edit import edit_program
from engine.cuda.items import items_of
from engine.cuda.parse import parse
from engine.cuda.slice import device_slice
from engine.errors import OptimlError, SourceError, SpecError
from engine.gpu.sanitize import read_log
from engine.llm.answers import EditError, read_answer
from engine.llm.edits import Workplace, make_proposal
from engine.model import LaunchConfig, Program
from engine.predict.sass import parse_sass
from engine.predict.targets import target_for
from engine.process import wire
from engine.profile.output import complaint
from engine.profile.output import parse as parse_profile
from engine.rules import make_site
from engine.run.result import OptimizationResult
from engine.selftest.cases import load_cases, original_text, originals
from engine.settings.config import parse_config
from engine.settings.config_text import ConfigError
from engine.spec.kernel_spec import KernelSpec
from engine.spec.reader import specs_in
from engine.verify.screen import screen
from engine.verify.widen import widen

ROOT = Path(__file__).parents[2]
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True)
class Target:
    """One reader: `run` may raise nothing. `seeds` are well-formed inputs to start from."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _sources() -> list[bytes]:
    return [original_text(name) for name in originals()]


# ---- source and spec


def _parser(data: bytes) -> None:
    try:
        unit = parse(data, "k.cu")
    except SourceError:
        return
    for kernel in unit.kernels:
        assert 0 <= kernel.span.start <= kernel.span.end <= len(data)
        try:
            device_slice(Program({"k.cu": data}, "k.cu"), [kernel.name], root=ROOT / "nowhere")
        except OptimlError:
            continue


def _items(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    end = 0
    for item in items_of(text):
        for token in item.tokens:
            assert end <= token.start < token.end <= len(text)
            end = token.end
    widen(text, ())


def _screen(data: bytes) -> None:
    """The second half as an edit of the first."""
    original, candidate = _SCALE, Program({"k.cu": data}, "k.cu")
    try:
        reason = screen(original, candidate, _spec())
    except OptimlError:
        return
    assert reason is None or reason.strip()


def _spec_in_comments(data: bytes) -> None:
    try:
        for spec in specs_in(Program({"k.cu": data}, "k.cu"), None):
            assert spec.steps
    except (SpecError, SourceError):
        pass


def _spec_in_toml(data: bytes) -> None:
    program = Program({"k.cu": _SCALE.data, "optiml.toml": data}, "k.cu")
    with contextlib.suppress(SpecError, SourceError):
        specs_in(program, "optiml.toml")


def _arith(data: bytes) -> None:
    try:
        value = arith.evaluate(_text(data), {"n": 4096, "rows": 7, "x": 2.5})
    except arith.ArithmeticError_:
        return
    assert isinstance(value, int | float)
    assert isinstance(value, int) or math.isfinite(value)


# ---- what processes answer


def _frames(data: bytes) -> None:
    try:
        header, blobs = wire.receive(io.BytesIO(data), 1 << 16)
    except wire.WireError:
        return
    assert isinstance(header, dict)
    assert sum(map(len, blobs)) <= 1 << 16


def _cubin(data: bytes) -> None:
    try:
        cubin = Cubin(data)
        for entry in cubin.entries:
            cubin.static_shared_bytes(entry)
        cubin.code_hash(cubin.entries)
        assert cubin.local_static_bytes >= 0
    except CubinError:
        pass


def _profile(data: bytes) -> None:
    text = _text(data)
    for row in parse_profile(text):
        assert row.passes >= 0
    complaint(text, ("dram__bytes.sum", "gpu__time_duration.sum"))


def _sanitizer(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        log = read_log(Path(file.name))
    assert log.errors is None or log.errors >= 0
    assert all(len(report.text) <= 300 for report in log.reports)


def _cpu_report(data: bytes) -> None:
    lines = cast(Lines, _NoLines())
    report = read_report(_text(data), lines, ["x", "y"], [4, 8], [LaunchConfig((1, 1, 1), (32, 1, 1))])
    assert all(finding.message for finding in report.findings)


class _NoLines:
    def frames(self, offset: int) -> list[tuple[str, int]]:
        return []

    def line(self, offset: int) -> int:
        return offset % 7

    def place(self, offset: int) -> tuple[str, int]:
        return ("", "k.cuh")[offset % 2], offset % 7


def _compiler_log(data: bytes) -> None:
    log = _text(data)
    cleaned = clean_log(log)
    assert not _CONTROL.search(cleaned)
    error = compile_error(log, "k.cu")
    assert not _CONTROL.search(error.what)
    assert len(error.what) < 2000
    parse_resources(log)


def _sass(data: bytes) -> None:
    parse_sass(_text(data))


# ---- what comes over the network


def _bundle(data: bytes) -> None:
    try:
        bundle = parse_bundle(data, head="a" * 40)
    except BundleError:
        return
    assert parse_bundle(bundle.to_json().encode(), head="a" * 40) == bundle


def _result(data: bytes) -> None:
    with contextlib.suppress(BundleError):
        decode(OptimizationResult, load_json(data))


def _command(data: bytes) -> None:
    parse_command(_text(data))
    parse_command("/optiml " + _text(data))


def _answer(data: bytes) -> None:
    try:
        suggestions = read_answer(_text(data))
    except EditError:
        return
    for suggestion in suggestions:
        try:
            proposal = make_proposal(suggestion, _place())
        except EditError:
            continue
        edited = edit_program(_SCALE, proposal.edits)
        assert set(edited.files) == set(_SCALE.files)
        assert not _CONTROL.search(proposal.summary)


def _diff(data: bytes) -> None:
    for read in (read_diff, lambda d: (read_patch("src/a.cu", _text(d)),)):
        try:
            for file in read(data):
                for hunk in file.hunks:
                    assert hunk
        except DiffError:
            continue


def _toml_settings(data: bytes) -> None:
    with contextlib.suppress(ConfigError):
        parse_config(data, ".optiml.toml")


def _yaml_settings(data: bytes) -> None:
    with contextlib.suppress(ConfigError):
        parse_config(data, ".optiml.yml")


def _markdown(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    line = str(prose(text))
    assert "\n" not in line
    assert not re.search(r"[<>`|\[\]*_\\@]", line)
    assert "\n" not in str(code(text))
    block = str(fence(text))
    mark = block[: len(block) - len(block.lstrip("`"))]
    assert mark not in block[len(mark) : -len(mark)]


# ---- what they start from

_SCALE = Program({"k.cu": original_text("scale")}, "k.cu")


def _spec() -> KernelSpec:
    return specs_in(_SCALE, None)[0]


def _place() -> Workplace:
    return Workplace((make_site(_SCALE, _spec(), 0, target_for("sm_90")),), _SCALE)


def _attacks() -> list[bytes]:
    return [case.text() for case in load_cases("attacks") if case.original == "scale"]


def _bundles() -> list[bytes]:
    from tests.bot.make import bundle, looked

    return [bundle(looked(2.0)).to_json().encode()]


def _results() -> list[bytes]:
    from tests.bot.make import result

    return [result(2.0).to_json().encode()]


_TOML = b"""[[kernel]]
file = "k.cu"
kernel = "scale"
tolerance = 1e-4
args.x = { role = "in", size = "n", fill = { kind = "uniform", low = 0, high = "n" } }
args.y = { role = "out", size = "2*n" }
check = [{ n = 1 }, { n = 129 }]
time = [{ n = 65536, weight = 2 }]
launch = { grid = ["cdiv(n, 256)"], block = ["256"], shared = "0" }
"""
_EXPRESSIONS = (b"n", b"cdiv(n, 256) * 3", b"max(1, n / 2) << 3", b"1 ? 2 : 3", b"-(n % 7) ** 2", b"0x1fUL + 1e3")
_NCU = b"""==PROF== Profiling "k" - 0: 0%....100% - 2 passes
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","dram__bytes.sum"
"","","","","","","","","","","","byte"
"0","7","python3","127.0.0.1","k","1","7","(32, 1, 1)","(4, 1, 1)","0","9.0","1,048,576"
==ERROR== Failed to find metric dram__bytes.sum
"""
_MEMCHECK = b"""========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at k(float *)+0x90
========= ERROR SUMMARY: 1 error
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
_REPORT = (
    b"touched 0 4096\nwritten 0 64\nstep 0 1 2 3 4 5 6 7 8 9\n"
    b"limited\nend\nfinding out_of_bounds - 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8\n"
)
_LOG = b"""/home/me/k.cu(12): error: identifier "z" is undefined\n          z = 1;\n
ptxas info    : Compiling entry function '_Z1kPf' for 'sm_90'
ptxas info    : Used 32 registers, used 1 barriers, 1024 bytes smem, 384 bytes cmem[0]
ptxas info    : Function properties for _Z1kPf
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n\x1b[31mred\x1b[0m"""
_SASS = b"""	.section	.text._Z1kPf
.text._Z1kPf:
.L_x_0:
        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0010*/              @!P0 BRA `(.L_x_0) ;
        /*0020*/                   STG.E desc[UR4][R2.64], R5 ;
        /*0030*/                   EXIT ;
"""
_DIFF = b"""diff --git a/src/a.cu b/src/b.cu
similarity index 90%
rename from src/a.cu
rename to src/b.cu
--- a/src/a.cu
+++ b/src/b.cu
@@ -1,3 +1,4 @@ void f()
 one
-two
+two and a half
+three
 four
\\ No newline at end of file
"""
_ANSWERS = (
    b'{"proposals": [{"idea": "Fuse", "edits": [{"file": "k.cu", "search": "2.5f * x[i] + 1.0f", '
    b'"replace": "fmaf(2.5f, x[i], 1.0f)"}], "kernel": "", "counter": "", "direction": "down", "launch": {"grid": "n"}}]}',
    b'{"proposals": [{"idea": "Two", "edits": [], "kernel": "", "launch": [{"kernel": "scale", "block": ["64"]}, {"kernel": "k"}]}]}',
    b"Idea: Two\nLaunch: scale\nGrid: (n + 63) / 64\nBlock: 64\nLaunch: k\nBlock: 32\n",
    b"## Fuse\n```\n<<<<<<< SEARCH\n2.5f * x[i] + 1.0f\n=======\nfmaf(2.5f, x[i], 1.0f)\n>>>>>>> REPLACE\n```\n",
    b"<think>hm</think>\n### Another block\n```cuda\n__global__ void scale(const float* x, float* y, int n) { }\n```\n",
)
_FRAME = io.BytesIO()
wire.send(_FRAME, {"op": "load", "load": {"key": "candidate"}}, [b"abc", b""])


TARGETS = (
    Target("parser", _parser, _sources),
    Target("items", _items, _sources),
    Target("screen", _screen, _attacks),
    Target("spec-in-comments", _spec_in_comments, _sources),
    Target("spec-in-toml", _spec_in_toml, lambda: [_TOML]),
    Target("arith", _arith, lambda: _EXPRESSIONS),
    Target("frames", _frames, lambda: [_FRAME.getvalue()]),
    Target("cubin", _cubin, lambda: [(Path(__file__).parent / "seeds" / "k.cubin").read_bytes()]),
    Target("profile", _profile, lambda: [_NCU]),
    Target("sanitizer", _sanitizer, lambda: [_MEMCHECK]),
    Target("cpu-report", _cpu_report, lambda: [_REPORT]),
    Target("compiler-log", _compiler_log, lambda: [_LOG]),
    Target("sass", _sass, lambda: [_SASS]),
    Target("bundle", _bundle, _bundles),
    Target("result", _result, _results),
    Target("command", _command, lambda: [b"optimize src/a.cu:softmax --budget 5m", b"apply 2", b"explain 1"]),
    Target("answer", _answer, lambda: _ANSWERS),
    Target("diff", _diff, lambda: [_DIFF]),
    Target("settings-toml", _toml_settings, lambda: [b'[budgets]\nkernel = "60s"\n[check]\ntargets = ["sm_90"]\n']),
    Target("settings-yaml", _yaml_settings, lambda: [b"budgets:\n  kernel: 60s\ncheck: {targets: [sm_90]}\n"]),
    Target("markdown", _markdown, lambda: [b"**a** <b> @me [x](http://y) `c` | 1. | ![i](j)", "\u202e#1".encode()]),
)


def by_name(name: str) -> Target:
    """A target. Raises StopIteration where there is none of this name."""
    return next(target for target in TARGETS if target.name == name)


def all_at_once(data: bytes) -> None:
    """The first byte says which reader gets the rest."""
    if data:
        TARGETS[data[0] % len(TARGETS)].run(data[1:])


def seeds_of_all() -> Iterable[bytes]:
    return itertools.chain.from_iterable(
        (bytes([number]) + seed for seed in target.seeds()) for number, target in enumerate(TARGETS)
    )
