"""`optiml nvcc …`: compile a CUDA program for the CPU with nvcc's options."""

import argparse

from engine.capture.cpu_nvcc import main
from engine.settings.folders import cache_folder


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0, or 1 where the program cannot be compiled."""
    return main(arguments.arguments, cache_folder())
