"""`optiml show DIR`: print the result of a run of `optimize`, `tune` or `generate` again, with the tree if asked."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this verb to the command line."""
    parser = verbs.add_parser(
        "show",
        help="print a run's result again",
        description="Print the result of a run of optimize, tune or generate again.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the output folder of a run")
    parser.add_argument("--tree", action="store_true", help="also print every candidate as a tree")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0; what cannot be read raises."""
    from engine.generate.result import RESULT, GenerationResult
    from engine.report.generation import print_generation
    from engine.report.read import read_nodes, read_result
    from engine.report.terminal import print_result, print_tree
    from engine.report.tuning import print_tuning
    from engine.result import OptimizationResult
    from engine.tune.result import TuneResult

    folder: Path = arguments.folder
    files: dict[str, tuple[type, ...]] = {"result.json": (OptimizationResult, TuneResult), RESULT: (GenerationResult,)}
    result: Any = read_result(folder, files)
    nodes = read_nodes(folder) if arguments.tree else ()
    if isinstance(result, TuneResult):
        print_tuning(result, folder)
    elif isinstance(result, GenerationResult):
        print_generation(result, folder)
    else:
        print_result(result, folder)
    if nodes:
        print_tree(nodes)
    return 0
