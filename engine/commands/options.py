"""Options that several verbs share: where a run computes, who proposes, and how a language model is asked."""

import argparse
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from engine.errors import UsageError
from engine.settings.memory_settings import MemorySettings, default_path

_CHOICE = re.compile(r"(.*invalid choice: '([^']*)') \(choose from (.*)\)", re.DOTALL)
_LIMIT_S = 40.0
_PROPOSERS = ("rules", "tuner", "llm")


def _meant(names: Sequence[str]) -> str:
    return f"; did you mean {' and '.join(dict.fromkeys(names))}?" if names else ""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, as all others are, and not a page of usage before it."""

    def parse_known_args(  # type: ignore[override]  # its overloads say no more than this
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As argparse's; what is left over is refused here, where the verb is known and its help can be named."""
        found, left = super().parse_known_args(args, namespace)
        if left:
            options = [
                name for word in left for name in self._near(word.partition("=")[0], self._option_string_actions)
            ]
            self.error(f"unrecognized arguments: {' '.join(left)}{_meant(options)}")
        return found, left

    def error(self, message: str) -> NoReturn:
        """Ends with exit code 2."""
        said = message.removeprefix("argument ")
        if match := _CHOICE.fullmatch(said):
            near = self._near(match[2], re.findall(r"[\w-]+", match[3]))
            said = f"{match[1]}{_meant(near)}" if near else said
        self.exit(2, f"{self.prog.split()[0]}: {said}; '{self.prog} --help' lists the options\n")

    @staticmethod
    def _near(word: str, known: Iterable[str]) -> list[str]:
        # Only wrong use pays for it.
        from difflib import get_close_matches

        return get_close_matches(word, list(known), n=1, cutoff=0.65) if word.strip("-") else []

    def _print_message(self, message: str, file: Any = None) -> None:
        # As argparse does from Python 3.11.4 on: `optiml --help | true` is no internal error.
        with suppress(OSError):
            super()._print_message(message, file)


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Whether lessons of earlier runs are read and written, and which."""
    parser.add_argument(
        "--memory",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="read and write lessons of earlier runs (default: --no-memory)",
    )
    parser.add_argument(
        "--memory-file", type=Path, metavar="FILE", help="database of lessons (default: in the user's cache)"
    )
    parser.add_argument("--memory-across", action="store_true", help="also use lessons of other repositories")


def check_memory(arguments: argparse.Namespace) -> None:
    """Raise UsageError where `add_memory` read options that only `--memory` gives an effect."""
    unused = [f"--memory-{name}" for name in ("file", "across") if getattr(arguments, f"memory_{name}")]
    if unused and not arguments.memory:
        raise UsageError("has no effect without --memory", unused[0], "add --memory, or omit it")


def memory_settings(arguments: argparse.Namespace, root: Path, seed: int = 0) -> MemorySettings | None:
    """Which lessons the options of `add_memory` ask for, in the repository at `root`; None without `--memory`."""
    check_memory(arguments)
    if not arguments.memory:
        return None
    path = arguments.memory_file or default_path()
    return MemorySettings(path.absolute(), str(root), across=arguments.memory_across, seed=seed)


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Where a run computes, and in which form it answers."""
    parser.add_argument(
        "--device",
        choices=("auto", "gpu", "cpu"),
        default="auto",
        help="gpu: verify and measure; cpu: screen and predict; auto: GPU if present (default: auto)",
    )
    parser.add_argument(
        "--arch",
        metavar="SM",
        help="target architecture without a GPU, e.g. sm_90 (default: this machine's GPU, else sm_90)",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="parallel compilers (default: one per core)")
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: only the result (default: text)"
    )
    parser.add_argument(
        "--unsafe-no-sandbox",
        action="store_true",
        help="run without a sandbox where none is available; only for trusted code",
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Which workers compute."""
    group = parser.add_argument_group("cluster", "use several devices through Dask (extra 'cluster')")
    group.add_argument(
        "--cluster",
        metavar="ADDR",
        help="local: one worker per GPU of this machine; or tcp://HOST:PORT, tls://HOST:PORT of a Dask scheduler",
    )
    group.add_argument(
        "--workers", type=int, metavar="N", help="workers of --cluster local (default: one per GPU, else by cores)"
    )


def add_format(parser: argparse.ArgumentParser) -> None:
    """In which form a verb answers."""
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: only one object (default: text)"
    )


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Whose kernels are meant."""
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="a repository, or a folder in one (default: the current folder)",
    )


def add_limit(parser: argparse.ArgumentParser) -> None:
    """How long a survey may take."""
    parser.add_argument(
        "--limit",
        type=float,
        default=_LIMIT_S,
        metavar="S",
        help=f"seconds after which no further kernel is run; the next call continues (default: {_LIMIT_S:.0f})",
    )


def add_profile(parser: argparse.ArgumentParser) -> None:
    """What Nsight Compute counts."""
    parser.add_argument(
        "--profile",
        choices=("none", "best", "all"),
        default="best",
        help="what Nsight Compute counts, where it is there: the best candidates in a small share of the time, or all that are right, "
        "which the search then waits for (default: best)",
    )


def add_llm(
    parser: argparse.ArgumentParser, *, concurrency: int, plan: str, optional: bool = False
) -> argparse._ArgumentGroup:
    """How a language model is asked; the group, for what a verb has besides.

    `concurrency` requests at once unless said otherwise; `plan` tells of the planning model. With `optional` it is asked only where
    `--llm` is given, alone for the server.
    """
    group = parser.add_argument_group(
        "language model", "its address and key are read only from OPENAI_BASE_URL and OPENAI_API_KEY"
    )
    add = group.add_argument
    if optional:
        door = "let a language model write the template; batch:DIR or replay:FILE instead of the server"
        add("--llm", nargs="?", const="", metavar="DOOR", help=door)
    else:
        add("--llm", default="", metavar="DOOR", help="batch:DIR or replay:FILE (default: the server)")
    add("--llm-model", default="", metavar="NAME", help="model name (default: the first that the server lists)")
    add("--llm-plan-model", default="", metavar="NAME", help=plan)
    add("--llm-budget", metavar="N", help="hard limit, e.g. 2.00usd or 50000tok (default: none)")
    add(
        "--llm-price",
        metavar="R/W",
        help="dollars per million tokens read/written, e.g. 2.50/10.00; required for a limit in dollars",
    )
    add("--llm-answer-tokens", type=int, default=6000, metavar="N", help="maximum tokens of one answer (default: 6000)")
    add(
        "--llm-timeout",
        type=float,
        default=180.0,
        metavar="S",
        help="time limit of one answer in seconds (default: 180)",
    )
    add("--llm-free-form", action="store_true", help="do not request structured output from the model")
    add(
        "--llm-concurrency", type=int, default=concurrency, metavar="N",
        help=f"parallel requests (default: {concurrency})",
    )  # fmt: skip
    add(
        "--llm-log",
        choices=("full", "answers"),
        default="full",
        help="content of exchanges.jsonl; answers: prompts only as hashes (default: full)",
    )
    return group


def parse_proposers(text: str) -> tuple[str, ...]:
    """The names of `--proposers`. Raises UsageError for one that is not there."""
    names = tuple(name.strip() for name in text.split(","))
    unknown = sorted(set(names) - set(_PROPOSERS))
    if unknown:
        raise UsageError(
            f"unknown proposer '{unknown[0][:40]}'",
            "--proposers",
            "expected rules, tuner, llm, or several: rules,tuner",
        )
    return names


def check_model_is_asked(arguments: argparse.Namespace, proposers: tuple[str, ...]) -> None:
    """Raises UsageError where a way to a model, a model or its budget is named and nobody would ask it."""
    for option in ("llm", "llm_model", "llm_plan_model", "llm_judge", "llm_budget", "llm_price"):
        if "llm" not in proposers and getattr(arguments, option, None):
            flag = "--" + option.replace("_", "-")
            raise UsageError(
                f"{flag} has no effect: llm is not among --proposers",
                do=f"add --proposers {','.join((*proposers, 'llm'))}",
            )
