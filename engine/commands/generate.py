"""`optiml generate "SENTENCE"`: a kernel from a sentence, checked against a reference."""

import argparse
import re
import shlex
import sys
from pathlib import Path

from engine.commands.again import again, go_on
from engine.commands.llm_settings import llm_settings
from engine.commands.optimize import check_machine, machine_of, parse_budget
from engine.commands.options import memory_settings, parse_proposers
from engine.cuda.load import repository_root
from engine.errors import UsageError
from engine.generate.generation import GenerateOptions, Told, generate, sentence_of
from engine.generate.oracle import read_reference
from engine.generate.strategies import chosen
from engine.llm.batch import REQUESTS, RESPONSES
from engine.llm.session import EXCHANGES
from engine.process.interrupt import Interrupt
from engine.report.generation_report import Screen, print_generation
from engine.search.progress import Budget
from engine.settings.config import load_config

WAITING = 4  # exit code: questions wait in the batch folder for their answers


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when a kernel was written, 1 when none agrees with the reference, 4 when questions wait."""
    budget = None if arguments.generate_only else parse_budget(arguments.budget)
    check_machine(arguments)
    if not 0 <= arguments.repairs <= 10 or not 1 <= arguments.seeds <= 16:
        raise UsageError("expected --repairs from 0 to 10 and --seeds from 1 to 16")
    proposers = parse_proposers(arguments.proposers)
    sentence = sentence_of(arguments.sentence)
    strategies = chosen(arguments.strategies)
    reference = read_reference(arguments.reference) if arguments.reference is not None else None
    out = _free(arguments.out)
    settings = llm_settings(arguments)
    work = arguments.work or Path(".optiml") / f"generate-{_slug(sentence)}"

    root = repository_root(Path.cwd() / "any")
    config, _ = load_config(root)
    quiet = arguments.format == "json"
    interrupt = budget.interrupt if budget is not None else Interrupt()
    screen = Screen(budget or Budget(), quiet=quiet)
    machine = None
    try:
        options = GenerateOptions(
            sentence=arguments.sentence.strip(), llm=settings, work=work.resolve(), reference=reference, out=out, budget=budget,
            strategies=strategies, seeds=arguments.seeds, repairs=arguments.repairs, seed=arguments.seed, proposers=proposers,
            guardrails=config.guardrails, targets=config.targets, profile=arguments.profile,
            command=("optiml", *sys.argv[1:]), interrupt=interrupt,
            memory=memory_settings(arguments, root, arguments.seed),
        )  # fmt: skip
        with interrupt.heard(), screen:
            machine = machine_of(arguments)
            told = Told(screen.step, screen.draft, screen.reference, screen.progress)
            result = generate(options, machine, told)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_left(arguments, work)) from None
    finally:
        if machine is not None:
            machine.close()
    if result is None:
        assert settings.batch is not None
        print(
            f"optiml: questions wait in {settings.batch / REQUESTS}; put their answers into {settings.batch / RESPONSES} and "
            "run the same command again",
            file=sys.stderr,
        )
        return WAITING
    if quiet:
        sys.stdout.write(result.to_json())
    else:
        print_generation(result, work)
    if interrupt.asked and result.written:
        raise KeyboardInterrupt(f"continue with: {shlex.join(['optiml', 'optimize', result.written])}")
    if interrupt.asked:
        raise KeyboardInterrupt(_left(arguments, work))
    return 0 if result.written else 1


def _left(arguments: argparse.Namespace, work: Path) -> str:
    """What an interrupted run leaves: answers that were paid for, and the command that uses them."""
    answers = work / EXCHANGES
    if not answers.is_file() or not answers.stat().st_size:
        return "nothing was written"
    if arguments.llm:  # a batch goes on by itself, a replay has its answers
        return f"no kernel was written; {go_on(arguments)}"
    return f"no kernel was written; to reuse the answers so far, run: {again(arguments, add=('--llm', f'replay:{answers}'))}"


def _free(out: Path | None) -> Path | None:
    """Where to write. A file that is there is somebody's work. Raises UsageError."""
    if out is None:
        return None
    if out.suffix not in (".cu", ".cuh"):
        raise UsageError(f"'{out.name}' is not a CUDA file", "--out", "name a .cu file")
    if out.exists():
        raise UsageError("already exists", str(out), "name another file, or remove it")
    if not out.resolve().parent.is_dir():
        raise UsageError("its folder does not exist", str(out), "make the folder, or name another")
    return out.resolve()


def _slug(sentence: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", sentence.lower())[:5])[:48] or "kernel"
