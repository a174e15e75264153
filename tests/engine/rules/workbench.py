"""What the tests of rules share: a site from a few lines of CUDA, proposals by name, the compiler."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from engine.compile.cache import DiskCache
from engine.compile.program import Compiled, compile_text, nvrtc_version
from engine.compile.toolkit import include_folders
from engine.cuda.edit import edit_program
from engine.cuda.parse import parse
from engine.model import Program
from engine.rewrite.proposal import Proposal
from engine.rewrite.site import Site
from engine.rules import make_site, rules
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, Role, Step
from tests.support.shared_work import kept_folder

PATH = "kernels/a.cu"
_HOST = "\n// host\n"


def make(
    device: str,
    launch: str,
    *,
    sizes: Sequence[Mapping[str, int]] = ({"n": 1 << 24},),
    check: Sequence[Mapping[str, int]] = ({"n": 1}, {"n": 1003}),
    elements: Mapping[str, str] | None = None,
    newline: str = "\n",
    host: str = "",
) -> Site:
    """The site of the one kernel in `device`, launched by the host lines `launch`.

    Scalars take the size of their own name; `elements` gives the number of elements of buffers (default: `n`), `host` more parameters of
    the function that launches.
    """
    text = device.strip("\n") + _HOST + "void run(HOST) {\n" + launch.strip("\n") + "\n}\n"
    unit = parse(text.replace("(HOST)", "()").encode(), PATH)
    kernel = unit.kernels[0]
    given = ", ".join([*(unit.text(p.span) for p in kernel.parameters), *([host] if host else [])])
    data = text.replace("(HOST)", f"({given})").replace("\n", newline).encode()
    arguments = []
    for parameter in kernel.parameters:
        role: Role = "scalar" if not parameter.pointer else "in" if parameter.const else "inout"
        size = (elements or {}).get(parameter.name, "n") if parameter.pointer else ""
        arguments.append(Argument(parameter.name, parameter.base, role, size, Fill(), ""))
    spec = KernelSpec(
        PATH,
        (Step(kernel.name, "", tuple(a.name for a in arguments)),),
        tuple(arguments),
        tuple(Case(f"check{k}", c) for k, c in enumerate(check)),
        tuple(Case(f"time{k}", c) for k, c in enumerate(sizes)),
    )
    return make_site(Program({PATH: data}, PATH), spec)


def propose(site: Site, rule: str, **parameters: int | str) -> list[Proposal]:
    """The rule's proposals whose parameters hold the given ones. A rule that raises fails the test."""
    (found,) = [r for r in rules() if r.name == rule]
    return [p for p in found.propose(site) if all(p.parameters.get(k) == v for k, v in parameters.items())]


def one(site: Site, rule: str, **parameters: int | str) -> Site:
    """The site after the one proposal that fits."""
    (proposal,) = propose(site, rule, **parameters)
    return after(site, proposal)


def after(site: Site, proposal: Proposal) -> Site:
    """The site of the edited program; it must still be understood."""
    program = edit_program(site.program, proposal.edits)
    edited = make_site(program, site.spec)
    assert not edited.unit.errors
    return edited


def device(site: Site) -> str:
    """The device half of the program, with `\\n`."""
    return site.program.data.decode().replace("\r\n", "\n").split(_HOST)[0]


def host(site: Site) -> str:
    """The host half of the program."""
    return site.program.data.decode().replace("\r\n", "\n").split(_HOST)[1]


def compiles(site: Site, expression: str = "") -> None:
    """Compile the device half with NVRTC. Raises what the compiler raises.

    Optimiser and assembler take three quarters of the time. They are left out where they could refuse nothing: code without
    assembly, whose shared arrays fit a block.
    """
    source, wanted = device(site), expression or site.kernel.name
    if "asm" in source or _shared_bytes(_compile(source, wanted, "-arch=compute_90", "-G").ptx) > 48 << 10:
        _compile(source, wanted)


def _shared_bytes(ptx: str) -> int:
    return sum(int(count) for count in re.findall(r"^\s*\.shared\b.*\.b8 \S+\[(\d+)\];", ptx, re.M))


def machine_code(site: Site) -> str:
    """The kernel's instructions for sm_90, as nvdisasm writes them."""
    import nvidia

    (tool,) = [p for root in nvidia.__path__ for p in Path(root).glob("cu13/bin/nvdisasm*")]
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "a.cubin"
        cubin.write_bytes(_compile(device(site), site.kernel.name).code)
        return subprocess.run([tool, "-c", cubin], capture_output=True, text=True, check=True).stdout


@cache
def _compile(source: str, expression: str, *options: str) -> Compiled:
    folders = [f"--include-path={path}" for path in include_folders()]
    chosen = [*(options or ("-arch=sm_90",)), "--std=c++17"]
    key = repr((nvrtc_version(), source, expression, chosen))
    kept = _kept()
    if (found := kept.get(key)) is not None:
        header, code = found
        return Compiled(code, header["ptx"], tuple(header["names"]), header["log"])
    made = compile_text(source, "a.cu", [expression], [*chosen, *folders])
    kept.put(key, {"ptx": made.ptx, "names": made.names, "log": made.log}, made.code)
    return made


@cache
def _kept() -> DiskCache:
    return DiskCache(kept_folder() / "workbench")


SCALE = """
__global__ void scale(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = a * x[i];
    }
}
"""
SCALE_LAUNCH = "    scale<<<(n + 255) / 256, 256>>>(x, y, a, n);"
