"""`optiml nvcc …`: compile a CUDA program for the CPU with nvcc's options."""

from __future__ import annotations

import argparse


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this verb to the command line."""
    # No option is ours: all of them are nvcc's.
    parser = verbs.add_parser(
        "nvcc",
        help="compile a CUDA program for the CPU, with nvcc's options",
        description="Replacement for nvcc: the host compiler compiles the program, and its kernels run on the CPU.",
        prefix_chars="\0",
        add_help=False,
    )
    parser.add_argument("arguments", nargs="*", metavar="…", help="as for nvcc")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0, or 1 where the program cannot be compiled."""
    from engine.capture.cpu_nvcc import main
    from engine.settings.folders import cache_folder

    return main(arguments.arguments, cache_folder())
