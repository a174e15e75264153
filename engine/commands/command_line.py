"""The command line: every verb with its options. What a verb does is in the module of its name, which is loaded when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from engine.commands.options import (
    Parser,
    add_cluster,
    add_folder,
    add_format,
    add_limit,
    add_llm,
    add_machine,
    add_memory,
    add_profile,
)

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[Parser]

STRATEGIES = ("exhaustive", "model", "random")


def make_parser() -> Parser:
    """The parser of all verbs, in the order in which help lists them."""
    parser = Parser(
        prog="optiml", description="Find faster versions of CUDA kernels, checked against the original and measured."
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND")
    for add in (
        _optimize,
        _all,
        _list,
        _generate,
        _tune,
        _init,
        _doctor,
        _cluster,
        _show,
        _selftest,
        _memory,
        _bench,
        _report,
        _capture,
        _nvcc,
        _completion,
        _mcp,
    ):
        add(verbs)
    return parser


def _optimize(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "optimize",
        help="search for a faster version of a kernel",
        description="Search for a faster version of each given kernel, and write a patch if one is found. "
        "A kernel without a spec gets one: from a recorded launch, else drafted from the source.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE[:KERNEL]", help="CUDA files, FILE:KERNEL, or folders")
    parser.add_argument("--kernel", metavar="NAME", help="kernel of the file, same as FILE:NAME")
    parser.add_argument(
        "--write-spec",
        action="store_true",
        help="write a drafted spec above its kernel (default: use it only for this run)",
    )
    parser.add_argument(
        "--budget", default="60s", metavar="N", help="60s, 10m or 1h; a plain number is candidates (default: 60s)"
    )
    parser.add_argument(
        "--exhaust",
        action="store_true",
        help="search for the whole --budget (default: stop early when the later half of the candidates gained less than 0.5 %%)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="output folder (default: .optiml/<file>-<kernel>/ at the root of the repository)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of the search (default: 0)")
    parser.add_argument(
        "--search",
        choices=("mcts", "greedy", "epsilon-greedy", "beam", "best-of", "random", "refine"),
        default="greedy",
        help="how the next edit is chosen: by a tree search, from the best so far (epsilon-greedy: one in ten at random), from the four "
        "best at each number of edits, "
        "of the original alone, by chance, or from the newest that passed (default: greedy)",
    )
    add_profile(parser)
    parser.add_argument("--no-proxies", action="store_true", help="reward the speedup alone, no counters")
    earlier = parser.add_mutually_exclusive_group()
    earlier.add_argument(
        "--resume",
        action="store_true",
        help="resume the run in the output folder within this budget "
        "(default: with this budget on top, if program, spec and seed are unchanged)",
    )
    earlier.add_argument(
        "--fresh", action="store_true", help="start over; the run in the output folder is kept under another name"
    )
    parser.add_argument(
        "--proposers", default="rules", metavar="LIST", help="proposers of edits: rules, tuner, llm (default: rules)"
    )
    add_memory(parser)
    add_machine(parser)
    add_cluster(parser)
    parser.add_argument("--per-device", action="store_true", help="run one search per kind of device")
    model = add_llm(
        parser, concurrency=2, plan="model that makes plans for the other to write as code (default: no plans)"
    )
    model.add_argument(
        "--llm-judge",
        default="",
        metavar="NAME",
        help="model that scores proposals before they are tried; 'same': the model itself (default: none)",
    )
    model.add_argument(
        "--prompt-profile",
        choices=("none", "raw", "diagnosis"),
        default="diagnosis",
        help="how profiler results appear in prompts (default: diagnosis)",
    )
    model.add_argument(
        "--prompt-parts", default="", metavar="PART=N,...",
        help='maximum tokens of parts of a prompt: diagnosis, lineage, tried, memory, techniques, branch; 0 leaves one out',
    )  # fmt: skip


def _all(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "all",
        help="search every kernel of a repository, most promising first",
        description="Rank the kernels by time share and headroom, search them within one budget, and write one patch.",
    )
    add_folder(parser)
    parser.add_argument(
        "--budget", default="20m", metavar="N", help="time for all kernels, e.g. 20m or 2h (default: 20m)"
    )
    parser.add_argument(
        "--budget-each", metavar="N", help="budget for each kernel instead of its share: 60s, or a number of candidates"
    )
    parser.add_argument(
        "--least",
        type=float,
        metavar="PART",
        help="skip kernels whose roofline would save less than this fraction of the time (default: 0.01 of a recorded run, else 0.1)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of the searches (default: 0)")
    parser.add_argument("--proposers", default="rules", metavar="LIST", help="proposers: rules, tuner (default: rules)")
    parser.add_argument("--resume", action="store_true", help="resume the interrupted campaign")
    add_limit(parser)
    add_machine(parser)
    add_cluster(parser)
    parser.add_argument(
        "--shared",
        action="store_true",
        help="the repository is at the same path on every worker (default: send each kernel's files)",
    )
    parser.add_argument("--per-device", action="store_true", help="run one campaign per kind of device")


def _list(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "list",
        help="list the kernels of a repository by possible gain",
        description="List every kernel with the state of its spec, its share of a recorded run's time and its predicted headroom.",
    )
    add_folder(parser)
    add_limit(parser)
    add_machine(parser)


def _generate(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "generate",
        help="generate a kernel from a description, with a language model",
        description="Generate a kernel from a description with a language model, check it against a reference, and optimise it.",
    )
    parser.add_argument("sentence", metavar="SENTENCE", help='what it computes: "row-wise softmax of an fp32 matrix"')
    parser.add_argument(
        "--reference",
        metavar="FILE.py:FUNCTION",
        help="reference: a function in NumPy, CuPy or PyTorch, or a module of PyTorch (default: drafted by the model)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the .cu file (default: in the work folder)")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="folder for all other output (default: .optiml/generate-…/)"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--generate-only", action="store_true", help="stop at the fastest strategy's kernel")
    mode.add_argument("--optimize", action="store_true", help="search from the best of them (the default)")
    parser.add_argument(
        "--budget",
        default="60s",
        metavar="N",
        help="budget of that search: 60s, 10m or 1h; a plain number is candidates (default: 60s)",
    )
    parser.add_argument(
        "--strategies",
        default="",
        metavar="LIST",
        help="strategies that write kernels, separated by commas (default: all)",
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="kernels that start the search (default: 3)")
    parser.add_argument(
        "--repairs",
        type=int,
        default=2,
        metavar="N",
        help="how often a failed kernel is returned to the model (default: 2)",
    )
    parser.add_argument(
        "--proposers",
        default="rules",
        metavar="LIST",
        help="proposers of that search: rules, tuner, llm (default: rules)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of the search (default: 0)")
    add_profile(parser)
    add_memory(parser)
    add_machine(parser)
    add_llm(parser, concurrency=4, plan="model that makes the plans (default: the model itself)")


def _tune(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "tune",
        help="find the best values of a kernel's constants",
        description="Find the best values of a kernel's constants, or of the parameters of a rule's edit.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the .cu file")
    parser.add_argument("--kernel", metavar="NAME", help="kernel of the file, if several have a spec")
    parser.add_argument(
        "--budget", default="60s", metavar="N", help="60s, 10m or 1h; a plain number is points (default: 60s)"
    )
    parser.add_argument(
        "--strategy", metavar="NAME", help=f"{', '.join(STRATEGIES)} (default: by the number of points)"
    )
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="e.g. BLOCK=64,128 or BLOCK='32..512 step 32'",
    )
    parser.add_argument("--where", action="append", default=[], metavar="COND", help="e.g. 'BLOCK * ITEMS <= 4096'")
    parser.add_argument(
        "--rule", metavar="NAME", help="let this rewrite rule write the template (NAME/2: its second form)"
    )
    parser.add_argument("--dispatch", action="store_true", help="generate code that selects the best values by shape")
    parser.add_argument(
        "--constants",
        action="store_true",
        help="also write the result of a rule's template with named constants, so that it can be tuned again",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="output folder (default: .optiml/<file>-<kernel>-tune/)"
    )
    parser.add_argument("--resume", action="store_true", help="resume the run in the output folder")
    add_memory(parser)
    add_llm(parser, concurrency=1, plan="model that plans the template (default: none)", optional=True)
    add_machine(parser)
    add_cluster(parser)


def _init(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "init",
        help="draft the kernel spec of a kernel",
        description="Draft the spec of one kernel, list the assumptions, and print or write it.",
    )
    parser.add_argument("file", metavar="FILE[:KERNEL]", help="the .cu file, and which kernel of it")
    parser.add_argument("--kernel", metavar="NAME", help="which kernel, where the file has several")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the draft instead of printing it; an existing spec is never overwritten",
    )
    parser.add_argument(
        "--format",
        choices=("comments", "toml", "json"),
        default="comments",
        help="lines above the kernel, or an optiml.toml beside the file; json: the lines and their notes (default: comments)",
    )
    parser.add_argument(
        "--static",
        action="store_true",
        help="only analyse the source; do not run the kernel on the CPU to find array sizes",
    )


def _doctor(verbs: Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "doctor",
        help="report what this machine has, what is missing, and how to install it",
        description="Report which components this machine has, what is unavailable without each missing one, and how to install it.",
    )
    add_format(parser)


def _cluster(verbs: Verbs) -> None:
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


def _show(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "show",
        help="print a run's result again",
        description="Print the result of a run of optimize, tune or generate again.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the output folder of a run")
    parser.add_argument("--tree", action="store_true", help="also print every candidate as a tree")
    add_format(parser)


def _selftest(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "selftest",
        help="check that incorrect kernels are refused on this machine and correct ones are not",
        description="Run attacks on the verifier and honest edits through the stages that check every candidate.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these cases, with wildcards (default: all)")
    parser.add_argument(
        "--suite", choices=("attacks", "honest", "all"), default="all", help="which cases (default: all)"
    )
    parser.add_argument(
        "--device", choices=("auto", "gpu", "cpu"), default="auto", help="as for optimize (default: auto)"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="parallel compilers (default: one per core)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="rounds, each on fresh inputs (default: 1)")
    parser.add_argument(
        "--cases", type=Path, metavar="FOLDER", help="run the cases of this folder instead (see docs/selftest.md)"
    )
    parser.add_argument(
        "--generated", action="store_true", help="run newly written cases of all generators instead (see --seed)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the generators (default: a new one each time)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of the output (default: text)")
    parser.add_argument("--verbose", action="store_true", help="print every case, not only failures")
    parser.add_argument(
        "--unsafe-no-sandbox", action="store_true", help="run the cases without a sandbox where none is available"
    )


def _memory(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "memory",
        help="list, export, import or delete the lessons of earlier runs",
        description="List, export, import or delete the lessons that runs with --memory wrote.",
    )
    parser.add_argument("action", choices=("list", "export", "import", "forget"), help="the action")
    parser.add_argument(
        "lines", nargs="?", type=Path, metavar="FILE", help="JSON-lines file to write (export) or read (import)"
    )
    parser.add_argument(
        "--memory-file", type=Path, metavar="FILE", help="database of lessons (default: in the user's cache)"
    )
    parser.add_argument(
        "--repository", type=Path, metavar="DIR", help="repository of the lessons (default: the current one)"
    )
    parser.add_argument("--all", action="store_true", help="lessons of all repositories")
    add_format(parser)


def _bench(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "bench",
        help="repeat the project's measurements (needs a checkout)",
        description="Repeat tables of the project's measurements by name, and record them; without a name, list the tables.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="the tables (default: list them)")
    parser.add_argument("--only", default="", metavar="ROWS", help="only these rows, separated by commas")
    parser.add_argument("--resume", action="store_true", help="continue a record with missing or failed rows")
    parser.add_argument("--limit", metavar="N", help="start no row that would not end within e.g. 540s or 9m")
    parser.add_argument("--seconds", type=float, metavar="N", help="seconds of each search (default: the table's)")
    parser.add_argument("--candidates", type=int, metavar="N", help="candidates per run of an ablation (default: 100)")
    parser.add_argument("--seeds", type=int, metavar="N", help="number of seeds (default: the table's)")
    parser.add_argument(
        "--gpus", metavar="N", help="rows in parallel, one per GPU: the number of GPUs, or their list, e.g. 0,1,2,3"
    )
    add_cluster(parser)
    parser.add_argument(
        "--device", choices=("auto", "gpu", "cpu"), default="auto", help="as for optimize (default: auto)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the records (default: benchmarks/results)")
    parser.add_argument("--checkout", type=Path, metavar="DIR", help="the project's checkout (default: this package's)")
    parser.add_argument(
        "--checkouts", type=Path, metavar="DIR", help="of 'foreign': holds owner__name of each repository"
    )
    add_format(parser)
    parser.add_argument("--row-to", type=Path, help=argparse.SUPPRESS)  # what a worker starts for each row


def _report(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "report",
        help="write a run as one HTML page",
        description="Write a run of optimize or tune as one self-contained HTML page. With two folders: compare two runs of optimize.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the output folder of a run")
    parser.add_argument("other", type=Path, nargs="?", metavar="DIR", help="output folder of a second run to compare")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="output file (default: report.html or comparison.html in the last DIR)",
    )
    add_format(parser)


def _capture(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "capture",
        help="run a program and record its kernels' times, launches and arguments",
        description=(
            "Run a command twice, without a sandbox: once for the time of each kernel, once for the arguments "
            "of the kernels that take time. The recording stays in .optiml/capture of this repository."
        ),
        usage="%(prog)s [options] -- COMMAND …",
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="the program and its arguments, after --")
    parser.add_argument(
        "--kernel",
        action="append",
        default=[],
        metavar="NAME",
        help="record arguments of this kernel (again for more; default: kernels of this repository with 1%% of the time)",
    )
    parser.add_argument("--launches", type=int, default=3, metavar="N", help="launches of each kernel (default: 3)")
    parser.add_argument(
        "--cpu", action="store_true", help="run the kernels on the CPU: COMMAND builds with nvcc, or is a .cu file"
    )
    parser.add_argument("--times-only", action="store_true", help="one run, times only")
    parser.add_argument("--limit", metavar="TIME", help="end each run after this time, e.g. 90s or 5m")
    parser.add_argument("--max-buffer", type=int, default=16, metavar="MIB", help="MiB of one buffer (default: 16)")
    parser.add_argument("--max-total", type=int, default=1024, metavar="MIB", help="MiB of all buffers (default: 1024)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where the recording is stored (default: .optiml/capture)"
    )
    add_format(parser)


def _nvcc(verbs: Verbs) -> None:
    # No option is ours: all of them are nvcc's.
    parser = verbs.add_parser(
        "nvcc",
        help="compile a CUDA program for the CPU, with nvcc's options",
        description="Replacement for nvcc: the host compiler compiles the program, and its kernels run on the CPU.",
        prefix_chars="\0",
        add_help=False,
    )
    parser.add_argument("arguments", nargs="*", metavar="…", help="as for nvcc")


def _completion(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "completion",
        help="print a shell completion script",
        description="Print the script that completes commands, options and file names in a shell.",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def _mcp(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "mcp",
        help="serve this repository to an editor's assistant over the Model Context Protocol",
        description="Serve the tools optimize, profile_diagnose, explain and apply on standard input and output for this repository.",
    )
    parser.add_argument(
        "--unsafe-no-sandbox",
        action="store_true",
        help="run without a sandbox where none is available; only for trusted code",
    )
