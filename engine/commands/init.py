"""`optiml init FILE`: draft the kernel spec from the source."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Literal

from engine.capture.recorded_spec import recorded_spec
from engine.commands.defining_files import where_defined
from engine.commands.json_answer import print_json
from engine.commands.targets import KernelTarget, parse_targets
from engine.cuda.load import load_program, repository_root
from engine.cuda.parse import parse
from engine.errors import NotPredictedError, OptimlError, UsageError
from engine.process.sandbox import sandbox
from engine.report.terminal import Live
from engine.run.machine import make_machine
from engine.run.ready_spec import Known, SpecMaker
from engine.run.spec_writing import write_spec
from engine.search.progress import Budget
from engine.spec.drafted_contents import is_index
from engine.spec.find import described, project_options
from engine.spec.gaps import assumed_strides, assumed_values, assumptions, lines_of, proposal

if TYPE_CHECKING:
    from engine.spec.draft import Draft

UNPREDICTED = "the draft is valid; optimize refuses a search of it without a GPU: "  # benchmarks/foreign.py reads it
_FAILS = "the original kernel fails"
_RACES = "has data races"
_MOST_VALUES = 6  # that a sentence names
REJECTS = "optimize rejects this draft: "  # benchmarks/foreign.py reads it


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 for a draft that `optimize` takes here, else 1. Raises UsageError, SourceError, SpecError."""
    (target,) = parse_targets([arguments.file], arguments.kernel)
    if target.file.is_dir():
        raise UsageError("is a folder", target.shown, "name one .cu file")
    target = _defined(target)
    root = repository_root(target.file)
    name = _kernel(target)
    there = described(root, target.file).get(name.partition("<")[0].strip())
    if there and arguments.write:
        raise UsageError(f"'{name}' already has a spec", there, "edit that one, or delete it first")
    validate = not (arguments.static or there)
    maker = SpecMaker(root, sandbox(False), recorded=recorded_spec, static=arguments.static)
    known = Known(name, project_options(root, target.file))
    form: Literal["comments", "toml"] = "toml" if arguments.format == "toml" else "comments"
    with Live(
        Budget(), "analysing the source, running the kernel to find its buffers", quiet=arguments.format == "json"
    ) as live:
        made, _, notes = maker.drafted(target.file, known, form=form)
        live.phase("validating the draft")
        refused, unpredicted = _refusal(maker, target, name, made) if validate and not made.missing else ("", "")
        if (values := assumed_values(made.text)) and _FAILS in refused:
            # What is wrong may be one of these and no size.
            refused += (
                f"; the draft assumed {', '.join(values[:_MOST_VALUES])}: write the values that the program passes"
            )
        if (values := assumed_strides(made.text)) and _RACES in refused:
            # Rows that are closer than they are long share elements.
            given = ", ".join(values[:_MOST_VALUES])
            refused += (
                f"; or, where rows overlap as the draft assumed {given}, write the values that the program passes"
            )
        indices = [a.name for a in made.spec.arguments if is_index(a) and a.fill.kind == "integers"]
        if indices and _RACES in refused:
            # Threads that meet at one element because some index stands there twice are no fault of the kernel.
            names = "', '".join(indices[:_MOST_VALUES])
            refused += f"; or, where '{names}' are indices that must differ, write their fill, such as permutation"
    if unpredicted:
        notes = (*notes, f"{UNPREDICTED}{unpredicted}")
    missing = [(gap, proposal(gap, made.text, made.spec.time[0].sizes)) for gap in made.missing]
    path = write_spec(target.file, made.spec.kernel, made.text, form) if arguments.write else None
    if arguments.format == "json":
        gaps = [{"what": str(gap), "line": line} for gap, line in missing]
        print_json(
            "optiml.init/1", file=target.shown, kernel=name, text=made.text, missing=gaps, refused=refused,
            assumed=assumptions(made.text), notes=notes, validated=validate, written=path,
        )  # fmt: skip
        return 1 if made.missing or refused or unpredicted else 0
    for note in notes:
        print(note, file=sys.stderr)
    if path is not None:
        print(f"wrote {path}", file=sys.stderr)
    else:
        sys.stdout.write(made.text)
    for gap, line in missing:
        print(f"missing: {gap}{f'; write: {line}' if line else ''}", file=sys.stderr)
    for assumed in assumptions(made.text):
        if "template arguments" in assumed:
            print(assumed, file=sys.stderr)  # another instance may be the one that matters
    if refused:
        print(f"{REJECTS}{refused}", file=sys.stderr)
    elif there:
        print(f"not validated: {there} has a spec of '{name}' already, which 'optiml optimize' takes", file=sys.stderr)
    elif unpredicted:
        print(f"on a machine with a GPU run 'optiml optimize {target.shown}'", file=sys.stderr)
    elif not made.missing:
        check = "not run (--static); " if arguments.static else ""
        print(f"{check}check what is marked as assumed, then run 'optiml optimize {target.shown}'", file=sys.stderr)
    return 1 if made.missing or refused or unpredicted else 0


def _defined(target: KernelTarget) -> KernelTarget:
    """The target in the file that defines its kernels. Raises UsageError where several headers do."""
    found = where_defined(target)
    if len(found) > 1:
        files = ", ".join(each.shown for each in found)
        raise UsageError(f"the kernels of this file are in several headers: {files}", target.shown, "name one of them")
    return found[0]


def _kernel(target: KernelTarget) -> str:
    names = [k.qualified for k in parse(target.file.read_bytes(), target.shown).kernels]
    if target.kernel is not None:
        return target.kernel
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError("contains no kernel (no __global__ function)", target.shown, "name a file with a kernel")
    raise UsageError(f"has several kernels: {', '.join(names)}", target.shown, "name one as FILE:KERNEL")


def _refusal(maker: SpecMaker, target: KernelTarget, name: str, made: Draft) -> tuple[str, str]:
    """Why `optimize` would not take the draft, which is read and validated as a search does it; and why this machine cannot search it.

    Both are "" where it can.
    """
    lines = "".join(f"// optiml: {line}\n" for key, line in lines_of(made.text).items() if key != "file")
    machine = None
    try:
        spec = maker.read_back(target.file, name, lines)
        machine = make_machine()
        program = load_program(
            target.file, kernels=[s.kernel for s in spec.steps], include=spec.compile.include, unit=spec.compile.unit
        )
        evaluator = machine.evaluator(spec, repository_root(target.file), None)
        try:
            evaluator.open(program)
        finally:
            evaluator.close()
    except NotPredictedError as error:
        return "", str(error)
    except OptimlError as error:
        return str(error), ""
    finally:
        if machine is not None:
            machine.close()
    return "", ""
