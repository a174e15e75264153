"""`optiml optimize FILE`: search one kernel under a budget."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from engine.commands.options import (
    add_llm,
    add_machine,
    add_profile,
    check_model_is_asked,
    llm_settings,
    machine_of,
    parse_proposers,
)
from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.llm.lessons import MemorySettings
    from engine.search.progress import Budget

WAITING = 4  # exit code: prompts wait in the batch folder for their answers
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this verb to the command line."""
    parser = verbs.add_parser(
        "optimize",
        help="search for a faster version of a kernel",
        description="Search for a faster version of one kernel, and write a patch where one was found.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the .cu file")
    parser.add_argument("--kernel", metavar="NAME", help="which kernel, where the file has several with a spec")
    parser.add_argument(
        "--budget", default="60s", metavar="N", help="60s, 10m or 1h; a bare number is candidates (default: 60s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where results go (default: .optiml/<file>-<kernel>/ at the root of the repository)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the search's choices (default: 0)")
    parser.add_argument(
        "--search",
        choices=("mcts", "greedy", "random"),
        default="mcts",
        help="how the next edit is chosen: by a tree search, always from the best so far, or by chance (default: mcts)",
    )
    add_profile(parser)
    parser.add_argument("--no-proxies", action="store_true", help="reward time alone, not what counters say beside it")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the output folder")
    parser.add_argument(
        "--proposers", default="rules", metavar="LIST", help="who proposes edits, of rules, tuner, llm (default: rules)"
    )
    parser.add_argument(
        "--memory",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="read and write lessons of earlier runs (default: --no-memory)",
    )
    parser.add_argument(
        "--memory-file", type=Path, metavar="FILE", help="where lessons are (default: the user's cache)"
    )
    parser.add_argument("--memory-across", action="store_true", help="also tell lessons of other repositories")
    add_machine(parser)
    model = add_llm(parser, concurrency=2, plan="makes plans that the model writes as code (default: no plans)")
    model.add_argument(
        "--llm-judge",
        default="",
        metavar="NAME",
        help="scores proposals before they are tried; 'same': the model itself (default: none)",
    )
    model.add_argument(
        "--prompt-profile",
        choices=("none", "raw", "diagnosis"),
        default="diagnosis",
        help="what a model is told of the counters (default: diagnosis)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 whether something was found or not; what is refused raises."""
    budget = parse_budget(arguments.budget)
    check_machine(arguments)
    if arguments.file.is_dir():
        raise UsageError("is a folder", where=str(arguments.file), do="name one .cu file")
    if not arguments.file.is_file():
        raise UsageError("no such file", where=str(arguments.file), do="check the path")

    proposers = parse_proposers(arguments.proposers)
    check_model_is_asked(arguments, proposers)
    settings = llm_settings(arguments) if "llm" in proposers else None

    machine = machine_of(arguments, ahead=True)
    try:  # the device's worker starts beside these imports
        from engine.config import load_config
        from engine.optimize import Options, optimize
        from engine.report.terminal import Live, print_result
        from engine.source.load import repository_root

        config, _ = load_config(repository_root(arguments.file.resolve()))
        options = Options(
            path=arguments.file.resolve(),
            kernel=arguments.kernel,
            budget=budget,
            seed=arguments.seed,
            out=arguments.out.resolve() if arguments.out else None,
            resume=arguments.resume,
            search=arguments.search,
            profile=arguments.profile,
            proxies=not arguments.no_proxies,
            guardrails=config.guardrails,
            targets=config.targets,
            proposers=proposers,
            llm=settings,
            memory=_memory(arguments),
            command=("optiml", *sys.argv[1:]),
        )
        with Live(budget, quiet=arguments.format == "json") as live:
            result, out = optimize(options, machine, live.update)
    finally:
        machine.close()
    if arguments.format == "json":
        sys.stdout.write(result.to_json())
    else:
        print_result(result, out, repository_root(arguments.file.resolve()))
    if settings is not None and settings.batch is not None:
        requests = settings.batch / "requests.jsonl"
        if requests.exists() and requests.stat().st_size:
            return WAITING
    return 0


def _memory(arguments: argparse.Namespace) -> MemorySettings | None:
    if not arguments.memory:
        return None
    from engine.llm.lessons import MemorySettings, default_path
    from engine.source.load import repository_root

    path = arguments.memory_file or default_path()
    root = str(repository_root(arguments.file))
    return MemorySettings(path, root, across=arguments.memory_across, seed=arguments.seed)


def check_machine(arguments: argparse.Namespace) -> None:
    """Raises UsageError where --jobs or --arch says nothing that can be."""
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UsageError("--jobs must be at least 1")
    if arguments.arch is not None and not re.fullmatch(r"sm_\d{2,3}a?", arguments.arch):
        raise UsageError(f"'{arguments.arch}' is no architecture", do="write it like sm_90")


def parse_budget(text: str) -> Budget:
    """A Budget from "60s", "1.5m", "1h" or "200" (candidates). Raises UsageError."""
    from engine.search.progress import Budget

    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if not match or float(match[1]) <= 0 or (not match[2] and "." in match[1]):
        raise UsageError(
            f"'{text}' is no budget", do="write seconds, minutes or hours (60s, 10m, 1h) or candidates (200)"
        )
    if match[2]:
        return Budget(seconds=float(match[1]) * _UNITS[match[2]])
    return Budget(candidates=int(match[1]))
