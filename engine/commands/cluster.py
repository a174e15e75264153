"""`optiml cluster doctor`: what each worker of a cluster is, and why it cannot be used."""

from __future__ import annotations

import argparse
import importlib

from engine.commands.options import add_cluster, add_format


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this verb to the command line."""
    parser = verbs.add_parser(
        "cluster",
        help="describe the workers of a cluster",
        description="Describe each worker of a cluster: GPU, driver, clocks, versions, and other users of the GPU.",
    )
    parser.add_argument("what", choices=("doctor",), help="check every worker")
    parser.add_argument(
        "--device",
        choices=("auto", "gpu", "cpu"),
        default="auto",
        help="device that the workers must have (default: auto)",
    )
    add_cluster(parser)
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 where every worker can be used, else 1. Raises UsageError, MachineError."""
    # Dask is loaded for those who ask for it.
    return int(importlib.import_module("engine.commands.cluster_doctor").run(arguments))
