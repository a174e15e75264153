"""`optiml tune FILE`: search a template of one kernel: the values of its named constants, or of a rule's figures."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from engine.commands.again import go_on
from engine.commands.command_line import STRATEGIES
from engine.commands.optimize import check_machine, machine_or_cluster, parse_budget
from engine.commands.options import memory_settings
from engine.cuda.load import repository_root
from engine.errors import UsageError
from engine.report.run_folder import read_result
from engine.report.safe_text import clean
from engine.report.terminal import Live
from engine.report.tuning import print_tuning
from engine.run.earlier_run import put_back
from engine.run.going_on import settle_tuning
from engine.run.template_run import output_folder, tune
from engine.settings.config import load_config
from engine.tune.tune_options import TuneOptions
from engine.tune.tuning_result import TuneResult

if TYPE_CHECKING:
    from engine.search.progress import Budget


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 whether something was found or not; what is refused raises."""
    budget = parse_budget(arguments.budget)
    check_machine(arguments)
    if arguments.strategy is not None and arguments.strategy not in STRATEGIES:
        raise UsageError(
            f"unknown strategy '{arguments.strategy[:40]}'", "--strategy", f"use one of {', '.join(STRATEGIES)}"
        )
    if not arguments.file.is_file():
        what = "is a folder" if arguments.file.is_dir() else "no such file"
        raise UsageError(what, where=str(arguments.file), do="name one .cu file")
    parameters: dict[str, str] = {}
    for text in arguments.param:
        name, equals, values = text.partition("=")
        if not equals or name.strip() in parameters:
            what = "names a parameter twice" if equals else "is not valid"
            raise UsageError(f"'{text[:60]}' {what}", "--param", "write --param BLOCK=64,128,256")
        parameters[name.strip()] = values

    try:
        with budget.interrupt.heard():
            _tuned(arguments, budget, parameters)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(go_on(arguments)) from None
    if budget.interrupt.asked:
        raise KeyboardInterrupt(go_on(arguments))
    return 0


def _tuned(arguments: argparse.Namespace, budget: Budget, parameters: dict[str, str]) -> None:
    root = repository_root(arguments.file.resolve())
    config, _ = load_config(root)
    llm = None
    if arguments.llm is not None:
        # The client's packages take a second to import, and most runs ask no model.
        from engine.commands.llm_settings import llm_settings

        llm = llm_settings(arguments)
    options = TuneOptions(
        path=arguments.file.resolve(),
        kernel=arguments.kernel,
        budget=budget,
        strategy=arguments.strategy,
        parameters=parameters,
        where=tuple(arguments.where),
        rule=arguments.rule,
        dispatch=arguments.dispatch,
        constants=arguments.constants,
        seed=arguments.seed,
        out=arguments.out.resolve() if arguments.out else None,
        resume=arguments.resume,
        guardrails=config.guardrails,
        targets=config.targets,
        command=("optiml", *sys.argv[1:]),
        model="" if llm is None else repr(llm),
        memory=memory_settings(arguments, root, arguments.seed),
    )
    found: list[TuneResult] = []
    held = ExitStack()
    try:
        with Live(budget, "checking this machine", quiet=arguments.format == "json") as live:
            machine = machine_or_cluster(arguments, held)
            held.callback(machine.close)
            live.phase("setting up the template and validating the spec")
            folder = output_folder(options)
            options, said, answered = settle_tuning(options, folder, machine)
            if said and arguments.format == "text":
                print(clean(said), file=sys.stderr)
            if answered:
                found.append(read_result(folder, {"result.json": (TuneResult,)}))
            else:
                with put_back(folder, options.kept):
                    tune(options, machine, live.update, found.append, llm)
    finally:
        held.close()
        for result in found:  # there is one where no dispatch code could be written, too
            if arguments.format == "json":
                sys.stdout.write(result.to_json())
            else:
                print_tuning(result, output_folder(options))
            sys.stdout.flush()
