"""How many of the templates that rules write have a form with named constants (`--constants` of `optiml tune`).

    python benchmarks/named_constants.py [--check]

Goes through the examples and the suite, and prints a table by rule. With `--check` each form is compiled at some points beside what the
rule writes there; that takes minutes. Needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from engine.cuda.load import load_program
from engine.errors import OptimlError
from engine.run.machine import make_machine
from engine.spec.find import find_spec
from engine.tune.feasible import feasible
from engine.tune.named_constants import check, written
from engine.tune.offers import rule_templates
from engine.tune.template import program_at

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("examples", "benchmarks/suite")
MOST = 300  # points of a template


def main(given: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description="Count the templates of rules that can be written with named constants."
    )
    parser.add_argument("--check", action="store_true", help="compile them as well")
    arguments = parser.parse_args(given)
    machine = make_machine(device="cpu", jobs=os.cpu_count() or 1)
    counts: Counter[tuple[str, str]] = Counter()
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.cu")):
        spec, spec_path = find_spec(ROOT, path, None)
        program = load_program(path, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])
        builder = machine.builder(spec, ROOT, spec_path)
        for template in rule_templates(program, spec, machine.target):
            points = []
            for point in feasible(template, machine.target).points[:MOST]:
                try:
                    program_at(program, template, point)
                except OptimlError:
                    continue
                points.append(point)
            if not points:
                continue
            try:
                found = written(template, spec, points, points[len(points) // 2])
                if arguments.check:
                    check(found, spec, spec_path, builder.original)
            except OptimlError as error:
                counts[template.name, "none"] += 1
                print(f"{path.name}, {template.summary}: {error.what}", file=sys.stderr)
            else:
                counts[template.name, "some" if found.fixed else "all"] += 1
    print("| rule | all parameters | some | none |\n|---|---:|---:|---:|")
    names = sorted({name for name, _ in counts})
    for name in names:
        print(f"| {name} | {' | '.join(str(counts[name, kind]) for kind in ('all', 'some', 'none'))} |")
    total = [sum(counts[name, kind] for name in names) for kind in ("all", "some", "none")]
    print(f"| together | {' | '.join(map(str, total))} |")
    machine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
