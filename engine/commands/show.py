"""`optiml show DIR`: print the result of a run of `optimize`, `tune` or `generate` again, with the tree if asked."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.commands.json_answer import print_json
from engine.generate.generation_result import RESULT, GenerationResult
from engine.report.generation_report import print_generation
from engine.report.run_folder import read_nodes, read_result
from engine.report.terminal import print_result, print_tree
from engine.report.tuning import print_tuning
from engine.run.result import OptimizationResult
from engine.tune.tuning_result import TuneResult


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0; what cannot be read raises."""
    folder: Path = arguments.folder
    files: dict[str, tuple[type, ...]] = {"result.json": (OptimizationResult, TuneResult), RESULT: (GenerationResult,)}
    result: Any = read_result(folder, files)
    nodes = read_nodes(folder) if arguments.tree else ()
    if arguments.format == "json":
        tree = [asdict(node) for node in nodes] if arguments.tree else None
        print_json("optiml.show/1", result=json.loads(result.to_json()), tree=tree)
        return 0
    if isinstance(result, TuneResult):
        print_tuning(result, folder)
    elif isinstance(result, GenerationResult):
        print_generation(result, folder)
    else:
        print_result(result, folder)
    if nodes:
        print_tree(nodes)
    return 0
