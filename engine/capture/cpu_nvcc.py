"""`optiml nvcc`: takes nvcc's place on PATH, and compiles programs whose kernels run on the CPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from engine.capture.cpu_library import PROGRAM, CpuRuntime, cpu_runtime
from engine.capture.cpu_source import to_host_source
from engine.errors import CompileError, OptimlError, UsageError

_VERSION = "nvcc: OptiML's stand-in for the CPU\nCuda compilation tools, release 13.0, V13.0.88\n"
_COMPILE_S = 600.0
COMMANDS = "commands.jsonl"  # in the folder of the recording that this runs in
# Options of nvcc with a value of their own, and what becomes of them.
_VALUES_DROPPED = {
    "-arch", "--gpu-architecture", "-gencode", "--generate-code", "-code", "--gpu-code", "-Xptxas", "--ptxas-options",
    "-maxrregcount", "--maxrregcount", "-ccbin", "--compiler-bindir", "-t", "--threads", "-diag-suppress", "--diag-suppress",
    "-Xcudafe", "-m", "--machine", "-Xnvlink", "-Xfatbin", "-cudart", "--cudart", "-lto", "-split-compile", "-Werror",
    "-default-stream", "--default-stream",
}  # fmt: skip
_VALUES_KEPT = {"-I", "--include-path", "-isystem", "-D", "--define-macro", "-U", "-include", "-L", "-l", "-idirafter"}
_LONG = {
    "--include-path": "-I",
    "--define-macro": "-D",
    "--output-file": "-o",
    "--library": "-l",
    "--library-path": "-L",
}
_DROPPED = re.compile(
    r"-(?:G|dc|rdc=.*|lineinfo|use_fast_math|m64|O[0-9]?|std=c\+\+(?:03|11|14)|forward-unknown.*|restrict|dlto|extra-device-vectorization)"
    r"|--(?:use_fast_math|generate-line-info|device-debug|device-c|relocatable-device-code=.*|expt-.*|extended-lambda|forward-.*"
    r"|optimize=.*|resource-usage|ftz=.*|prec-.*|fmad=.*|default-stream=.*|keep|restrict|Wno-.*|Werror=.*|ptxas-options=.*|threads=.*|diag-.*)"
    r"|-(?:expt-.*|extended-lambda|arch=.*|gencode=.*|code=.*|Xptxas=.*|maxrregcount=.*|t=?[0-9]+|ftz=.*|prec-.*|fmad=.*|default-stream=.*|res-usage|Wno-deprecated-gpu-targets|cudart=.*|diag-.*|threads=.*)"
    r"|--(?:gpu-architecture=.*|generate-code=.*|gpu-code=.*|cudart=.*|maxrregcount=.*)"
)
_SOURCES = (".cu", ".cpp", ".cc", ".cxx", ".c", ".C")
# Libraries whose functions are in the runtime, as far as it has them: the linker names those that it has not.
_PROVIDED = re.compile(r"-l(?:cudart.*|cuda|cudadevrt|cublas|cublasLt)")
_HOST_LIBRARIES = ("cudnn", "curand", "cufft", "cusparse", "cusolver", "nccl", "npp", "nvrtc", "nvjpeg")
_MISSING_SYMBOL = re.compile(r"undefined reference to `([A-Za-z_]\w*)")
_MISSING_HEADER = re.compile(r"fatal error: ([\w./]+): No such file")


class _MissingHeader(CompileError):
    """A file includes a header that is on no path."""

    def __init__(self, header: str, where: str) -> None:
        super().__init__(
            f"the header '{header}' was not found", where, "the CPU runtime provides only the CUDA runtime's headers"
        )
        self.header = header


@dataclass
class _Options:
    """One command line of nvcc, as far as the CPU needs it."""

    sources: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # objects and archives
    compile: list[str] = field(default_factory=list)
    link: list[str] = field(default_factory=list)
    output: str = ""
    compile_only: bool = False
    preprocess: bool = False
    as_cuda: bool = False
    debug: bool = False
    verbose: bool = False


def main(arguments: Sequence[str], cache: Path) -> int:
    """Compile and link as nvcc would. Exit code 0, or 1 with one sentence on stderr."""
    if any(a in ("--version", "-V") for a in arguments):
        sys.stdout.write(_VERSION)
        return 0
    try:
        options = _read(arguments)
        if not options.sources and not options.others:
            raise UsageError("no input files", "nvcc", "name a .cu file")
        _note(options.sources, arguments)
        _Driver(cpu_runtime(cache), options).run()
        return 0
    except CompileError as error:
        print(f"optiml nvcc: {error}", file=sys.stderr)
        if error.log:
            print(error.log, file=sys.stderr)
        return 1
    except OptimlError as error:
        print(f"optiml nvcc: {error}", file=sys.stderr)
        return 1


def _note(sources: Sequence[str], arguments: Sequence[str]) -> None:
    """Leave the command for the recording that this runs in, as an entry of a compile_commands.json a line."""
    folder = os.environ.get("OPTIML_CAPTURE_DIR")
    if not folder:
        return
    command = ["nvcc", *_expanded(arguments)]
    with suppress(OSError), open(f"{folder}/{COMMANDS}", "a", encoding="utf-8", errors="surrogateescape") as file:
        for source in sources:
            file.write(json.dumps({"directory": os.getcwd(), "file": source, "arguments": command}) + "\n")


def _read(arguments: Sequence[str]) -> _Options:
    found = _Options()
    waiting = list(_expanded(arguments))
    while waiting:
        word = waiting.pop(0)
        name, equals, rest = word.partition("=")
        if equals and name in _LONG:
            word, waiting = _LONG[name], [rest, *waiting]
        word = _LONG.get(word, word)
        if word in _VALUES_DROPPED:
            waiting[:1] = []
        elif word in ("-Xcompiler", "--compiler-options", "-Xlinker", "--linker-options"):
            values = waiting.pop(0).split(",") if waiting else []
            (found.compile if "ompiler" in word else found.link).extend(
                values if "ompiler" in word else [f"-Wl,{v}" for v in values]
            )
            found.link += [v for v in values if v in ("-fopenmp", "-pthread")]
        elif word.startswith(("-Xcompiler=", "--compiler-options=")):
            waiting = ["-Xcompiler", word.partition("=")[2], *waiting]
        elif word == "-o":
            found.output = waiting.pop(0) if waiting else ""
        elif word in ("-c", "--compile", "-dc", "--device-c"):
            found.compile_only = True
        elif word in ("-E", "--preprocess"):
            found.preprocess = True
        elif word == "-x":
            found.as_cuda = bool(waiting) and waiting.pop(0) == "cu"
        elif word in ("-v", "--verbose"):
            found.verbose = True
        elif word in ("-g", "--debug"):
            found.compile.append("-g")
        elif word in ("-l", "-L"):
            found.link.append(word + (waiting.pop(0) if waiting else ""))
        elif word in _VALUES_KEPT:
            found.compile += [word, waiting.pop(0) if waiting else ""]
        elif _DROPPED.fullmatch(word):
            found.compile_only = found.compile_only or word in ("-dc", "--device-c")
        elif word.startswith(("-l", "-L", "-Wl,")):
            found.link.append(word)
        elif word.startswith("-"):
            found.compile.append(word)
            found.link += [word] if word in ("-fopenmp", "-pthread") else []
        elif word.endswith(_SOURCES):
            found.sources.append(word)
        else:
            found.others.append(word)
    return found


def _expanded(arguments: Sequence[str]) -> Sequence[str]:
    """The command line with `--options-file` and `@FILE` read. Raises UsageError."""
    out: list[str] = []
    for word in arguments:
        if not word.startswith("@"):
            out.append(word)
            continue
        try:
            out += Path(word[1:]).read_text(errors="replace").split()
        except OSError as error:
            raise UsageError(f"cannot be read ({error.strerror})", word) from None
    return out


class _Driver:
    """Runs the host compiler for one command line."""

    def __init__(self, runtime: CpuRuntime, options: _Options) -> None:
        self._runtime, self._options = runtime, options
        kept = [i for i, w in enumerate(options.compile) if not _is_toolkit(options.compile, i)]
        words = [options.compile[i] for i in kept]
        standard = [] if any(w.startswith("-std=") for w in words) else ["-std=gnu++17"]
        self._flags = [*standard, *words]

    def run(self) -> None:
        """Raises CompileError with the compiler's words, and with the name of what is not there."""
        options = self._options
        options.link = [word for word in options.link if not _PROVIDED.fullmatch(word)]
        for library in options.link:
            if library.removeprefix("-l") in _HOST_LIBRARIES and library.startswith("-l"):
                do = "on the CPU, only the program's own kernels can run"
                raise CompileError(f"the library '{library.removeprefix('-l')}' has no CPU version", "nvcc", do)
        with tempfile.TemporaryDirectory(prefix="optiml-nvcc-") as scratch:
            objects = []
            for number, source in enumerate(options.sources):
                own = Path(source).stem + ".o"
                target = (options.output or own) if options.compile_only else f"{scratch}/{number}-{own}"
                self._compile(source, target, Path(scratch))
                objects.append(target)
            if not options.compile_only and not options.preprocess:
                self._link(objects)

    def _compile(self, source: str, target: str, scratch: Path) -> None:
        flags = list(self._runtime.flags)
        at = flags.index("-include")
        plain = [*flags[:at], *flags[at + 2 :]]
        argv = [*self._runtime.toolchain.argv, *self._flags]
        if not source.endswith(".cu") and not self._options.as_cuda:
            # As nvcc has it, only a CUDA file includes the runtime's header unasked.
            kept = [*argv, *(w for w in plain if w != "-fsanitize=thread")]
            if source.endswith(".c"):
                kept = [self._runtime.toolchain.argv[0], *self._flags[1:], "-x", "c"]
            self._run([*kept, "-c", source, "-o", target], source)
            return
        marked = [] if self._options.preprocess else ["-DOPTIML_MARKED=1"]
        preprocess = [*flags, *marked, "-E", "-x", "c++", source]
        try:
            text = self._run([*argv, *preprocess], source)
        except _MissingHeader as error:
            if not error.header.startswith("thrust/") or not self._runtime.thrust:
                raise
            text = self._run([argv[0], *self._runtime.thrust, *argv[1:], *preprocess], source)
        if self._options.preprocess:
            sys.stdout.write(text)
            return
        changed = scratch / "changed.cpp"
        changed.write_text(to_host_source(text, source), encoding="utf-8", errors="surrogateescape")
        # The header is in the text already.
        includes = [w for w in self._flags if w != "-fopenmp"] + (["-fopenmp"] if "-fopenmp" in self._flags else [])
        self._run(
            [*self._runtime.toolchain.argv, *_without_includes(includes), *plain, "-c", str(changed), "-o", target],
            source,
        )

    def _link(self, objects: Sequence[str]) -> None:
        options = self._options
        argv = [*self._runtime.toolchain.argv, *objects, *options.others, *map(str, self._runtime.objects)]
        self._run(
            [*argv, "-o", options.output or "a.out", "-rdynamic", *options.link, "-ldl", "-lpthread", "-lm"],
            options.output,
        )

    def _run(self, argv: Sequence[str], where: str) -> str:
        if self._options.verbose:
            print(" ".join(argv), file=sys.stderr)
        try:
            done = subprocess.run(
                list(argv), capture_output=True, text=True, errors="surrogateescape", timeout=_COMPILE_S,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise CompileError("the host compiler could not be run", argv[0], str(error)[:200]) from None
        if done.returncode == 0:
            return done.stdout
        said = done.stderr.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        missing = sorted(set(_MISSING_SYMBOL.findall(said)))
        if missing:
            raise CompileError(
                f"the CPU runtime does not implement {', '.join(missing[:8])}", where, "this program needs a GPU"
            )
        if header := _MISSING_HEADER.search(said):
            raise _MissingHeader(header[1], where)
        first = next((line for line in said.splitlines() if "error" in line), said.strip()[:300])
        raise CompileError(f"the host compiler reports an error: {first[:300]}", where, log=said[-3000:])


def _without_includes(words: Sequence[str]) -> list[str]:
    out, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == "-include":
            skip = True
        else:
            out.append(word)
    return out


def _is_toolkit(words: Sequence[str], at: int) -> bool:
    """Whether the word is `-I` of an installed toolkit, or that option's value: ours comes first."""
    for word in (
        words[at].removeprefix("-I") if words[at].startswith("-I") else "",
        words[at] if at and words[at - 1] == "-I" else "",
        words[at + 1] if words[at] == "-I" and at + 1 < len(words) else "",
    ):
        if word and os.path.isfile(os.path.join(word, "cuda_runtime.h")) and Path(word).resolve() != PROGRAM:
            return True
    return False
