"""A stand-in for Nsight Compute and the worker under it: takes the same options, speaks the worker's frames, writes its log.

Installed as an executable by `install`; `MODE` is how it behaves. What it writes follows the raw page's documented layout:
a header, a row of units, a row for each profiled launch. It is no recording of a real profiler.
"""

from __future__ import annotations

import sys
from pathlib import Path

from engine.process.sandbox import NoSandbox
from engine.profile.ncu import Profiler, ProfilerSettings
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, LaunchExpr, Step

_SCRIPT = """#!{python}
import os, signal, sys, time
sys.path.insert(0, {root!r})
from engine.process import wire

MODE = {mode!r}
KNOWN_TO_FAIL = {unknown!r}
args = sys.argv[1:]
if args == ["--version"] and MODE == "unknown version":
    print("Nsight Compute, next generation")
    sys.exit(0)
if args == ["--version"]:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2031.2.0.0 (build 1) (public-release)")
    sys.exit(0)
started = os.path.join({counts!r}, str(os.getpid()))
if os.access({counts!r}, os.W_OK):  # not in a sandbox
    open(started, "w").write(" ".join(args))
metrics = args[args.index("--metrics") + 1].split(",")
log = args[args.index("--log-file") + 1]
setup = args[-1]
with open(setup, "rb") as file:
    header, _ = wire.receive(file)
sink = os.fdopen(os.dup(1), "wb")

def write(text):
    with open(log, "w") as file:
        file.write("==PROF== Connected to process 7 (/usr/bin/python3)\\n" + text)

bad = [m for m in metrics if m in KNOWN_TO_FAIL]
if bad:
    write("==ERROR== Failed to find metric " + bad[0] + "\\n")
    sys.exit(1)
if MODE == "cannot start":
    sys.stderr.write("libcuda.so.1 is missing\\n")
    sys.exit(127)
wire.send(sink, {{"ready": True, "prepare_s": 0.1}})
primed = False
try:
    batch, cubins = wire.receive(sys.stdin.buffer)
    if "prime" in batch:
        tries = os.path.join({counts!r}, "..", "tries")
        before = os.path.getsize(tries) if os.path.exists(tries) else 0
        if MODE == "busy" or MODE == "busy once" and not before:
            open(tries, "a").write("x")
            write("==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool "
                  "(like DCGM) is concurrently collecting profiling data.\\n==ERROR== Failed to profile \\"fill_words\\"\\n")
            sys.exit(9)
        primed = True
        wire.send(sink, {{"primed": True, "prime_s": 0.2}})
        batch, cubins = wire.receive(sys.stdin.buffer)
except wire.WireError:
    sys.exit(0)
rows = []
def row(kernel, grid, block, scale):
    number = len(rows)
    values = []
    for name in metrics:
        value = {{"gpu__time_duration.sum": "%d" % (1000 * scale), "dram__bytes.sum": "1,048,576"}}.get(name, "%d" % scale)
        values.append("n/a" if MODE == "not on this chip" and name == "dram__bytes.sum" else value)
    cells = [str(number), "7", "python3", "127.0.0.1", kernel, "1", "7", str(tuple(block)), str(tuple(grid)), "0", "9.0", *values]
    rows.append(",".join('"%s"' % c for c in cells))
if primed:
    row("fill_words", (1, 1, 1), (256, 1, 1), 1)
for item, cubin in zip(batch["items"], cubins):
    if cubin == b"hangs":
        time.sleep(60)
    if cubin == b"kills":
        os.kill(os.getpid(), signal.SIGKILL)
    if cubin == b"faults":
        wire.send(sink, {{"error": "CUDARuntimeError: cudaErrorIllegalAddress"}})
        break
    if MODE != "another kernel":
        for name, (grid, block, shared) in zip(item["entries"], item["launches"]):
            row(name, grid, block, len(cubin))
    else:
        row("somebody_elses", (1, 1, 1), (1, 1, 1), 1)
    wire.send(sink, {{"error": None, "seconds": 0.01}})
if MODE == "dies before its report":
    os.kill(os.getpid(), signal.SIGKILL)
if MODE == "unknown layout":
    write('{{"kernels": [{{"name": "_Z1kPf", "duration": 12}}]}}\\n')
    sys.exit(0)
if MODE == "permission":
    write("\\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
          "Counters on the target device 0.\\n==WARNING== No kernels were profiled.\\n")
    sys.exit(0)
units = {{"gpu__time_duration.sum": "ns", "dram__bytes.sum": "byte"}}
names = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"]
names += ["Grid Size", "Device", "CC", *metrics]
blank = ["" for _ in names[:11]] + [units.get(m, "") for m in metrics]
text = "".join('==PROF== Profiling "k" - %d: 0%%....50%%....100%% - 2 passes\\n' % i for i in range(len(rows)))
text += ",".join('"%s"' % n for n in names) + "\\n" + ",".join('"%s"' % n for n in blank) + "\\n" + "\\n".join(rows) + "\\n"
write(text)
"""


def spec() -> KernelSpec:
    """A kernel spec with one check case and one timing case."""
    return KernelSpec(
        file="k.cu",
        steps=(Step("k", "", ("x",), LaunchExpr(("1", "1", "1"), ("32", "1", "1"), "0")),),
        arguments=(Argument("x", "float", "out", "n", Fill("constant")),),
        check=(Case("small", {"n": 4}),),
        time=(Case("large", {"n": 1024}),),
    )


def install(folder: Path, mode: str = "", unknown: tuple[str, ...] = ()) -> Path:
    """The executable; each start leaves a file under `folder`/starts with its arguments."""
    import engine

    (folder / "starts").mkdir()
    path = folder / "ncu"
    root = str(Path(engine.__file__).parent.parent)
    path.write_text(
        _SCRIPT.format(python=sys.executable, root=root, mode=mode, unknown=unknown, counts=str(folder / "starts"))
    )
    path.chmod(0o755)
    return path


def profiler(folder: Path, mode: str = "", unknown: tuple[str, ...] = (), **options: object) -> Profiler:
    """A Profiler around the stand-in."""
    settings = ProfilerSettings(**options)  # type: ignore[arg-type]
    return Profiler(NoSandbox(), install(folder, mode, unknown), b"tools", folder / "scratch", spec(), settings)


def starts(folder: Path) -> list[str]:
    """The command lines that the stand-in was started with."""
    return [path.read_text() for path in (folder / "starts").iterdir()]
