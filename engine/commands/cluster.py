"""`optiml cluster doctor`: what each worker of a cluster is, and why it cannot be used."""

import argparse
import importlib


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 where every worker can be used, else 1. Raises UsageError, MachineError."""
    # Dask is loaded for those who ask for it.
    return int(importlib.import_module("engine.commands.cluster_doctor").run(arguments))
