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
    add_profile,
)

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[Parser]

STRATEGIES = ("exhaustive", "halving", "model", "bayes", "annealing", "random")


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
        description="Search for a faster version of each kernel named, and write a patch where one was found. A kernel without "
        "a spec gets one: from a recorded launch, else drafted from the source.",
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE[:KERNEL]", help="CUDA files, one kernel of each or all, and folders of them"
    )
    parser.add_argument("--kernel", metavar="NAME", help="which kernel of the file; as FILE:NAME")
    parser.add_argument(
        "--write-spec",
        action="store_true",
        help="write a drafted spec above its kernel (default: it counts for this run)",
    )
    parser.add_argument(
        "--budget", default="60s", metavar="N", help="60s, 10m or 1h; a bare number is candidates (default: 60s)"
    )
    parser.add_argument(
        "--exhaust",
        action="store_true",
        help="search for the whole --budget (default: end where the later half of the candidates gained less than 0.5 %%)",
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
        choices=("mcts", "greedy", "beam", "best-of", "random", "refine"),
        default="mcts",
        help="how the next edit is chosen: by a tree search, from the best so far, from the four best at each number of edits, "
        "of the original alone, by chance, or from the newest that passed (default: mcts)",
    )
    add_profile(parser)
    parser.add_argument("--no-proxies", action="store_true", help="reward time alone, not what counters say beside it")
    earlier = parser.add_mutually_exclusive_group()
    earlier.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in the output folder within this budget (default: with this budget on top, where program, "
        "spec and seed are the same)",
    )
    earlier.add_argument(
        "--fresh", action="store_true", help="begin anew; the run in the output folder is kept under another name"
    )
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
    add_cluster(parser)
    parser.add_argument(
        "--per-device", action="store_true", help="where workers have different devices, a search for each of them"
    )
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
    model.add_argument(
        "--prompt-parts", default="", metavar="PART=N,...",
        help="the most tokens of parts of a prompt: diagnosis, lineage, tried, memory, techniques, branch; 0 leaves one out",
    )  # fmt: skip


def _all(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "all",
        help="search every kernel of a repository, the most promising first",
        description="Rank the kernels by share of the time and headroom, search them within one budget, and write one patch.",
    )
    add_folder(parser)
    parser.add_argument(
        "--budget", default="20m", metavar="N", help="time for all kernels, e.g. 20m or 2h (default: 20m)"
    )
    parser.add_argument(
        "--budget-each", metavar="N", help="of each kernel instead of its part: 60s, or a bare number of candidates"
    )
    parser.add_argument(
        "--least",
        type=float,
        metavar="PART",
        help="skip kernels whose roofline would save less than this part of the time (default: 0.01 of a recorded run, else 0.1)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the searches' choices (default: 0)")
    parser.add_argument("--proposers", default="rules", metavar="LIST", help="of rules, tuner (default: rules)")
    parser.add_argument("--resume", action="store_true", help="go on with the campaign that was interrupted")
    add_limit(parser)
    add_machine(parser)
    add_cluster(parser)
    parser.add_argument(
        "--shared",
        action="store_true",
        help="the repository lies at the same path on every worker (default: the files of a kernel are sent)",
    )
    parser.add_argument(
        "--per-device", action="store_true", help="where workers have different devices, a campaign for each of them"
    )


def _list(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "list",
        help="list the kernels of a repository by what there is to win",
        description="List every kernel with the state of its spec, its share of a recorded run's time and its predicted headroom.",
    )
    add_folder(parser)
    add_limit(parser)
    add_machine(parser)


def _generate(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "generate",
        help="make a kernel from a sentence, with a language model",
        description="Make a kernel from a sentence with a language model, check it against a reference, and search on from it.",
    )
    parser.add_argument("sentence", metavar="SENTENCE", help='what it computes: "row-wise softmax of an fp32 matrix"')
    parser.add_argument(
        "--reference",
        metavar="FILE.py:FUNCTION",
        help="what is right, in NumPy or CuPy (default: drafted by the model)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the .cu file (default: in the work folder)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where all else goes (default: .optiml/generate-…/)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--generate-only", action="store_true", help="end with the fastest of the strategies")
    mode.add_argument("--optimize", action="store_true", help="search on from the best of them (the default)")
    parser.add_argument(
        "--budget",
        default="60s",
        metavar="N",
        help="of that search: 60s, 10m or 1h; a bare number is candidates (default: 60s)",
    )
    parser.add_argument(
        "--strategies", default="", metavar="LIST", help="who writes kernels, separated by commas (default: all)"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="kernels that start the search (default: 3)")
    parser.add_argument(
        "--repairs",
        type=int,
        default=2,
        metavar="N",
        help="how often a failed kernel goes back to the model (default: 2)",
    )
    parser.add_argument(
        "--proposers",
        default="rules",
        metavar="LIST",
        help="who proposes edits in that search, of rules, tuner, llm (default: rules)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the search's choices (default: 0)")
    add_profile(parser)
    add_machine(parser)
    add_llm(parser, concurrency=4, plan="makes the plans (default: the model itself)")


def _tune(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "tune",
        help="find the best values of a kernel's constants",
        description="Find the best values of a kernel's constants, or of the figures of a rule's edit.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the .cu file")
    parser.add_argument("--kernel", metavar="NAME", help="which kernel, where the file has several with a spec")
    parser.add_argument(
        "--budget", default="60s", metavar="N", help="60s, 10m or 1h; a bare number is points (default: 60s)"
    )
    parser.add_argument(
        "--strategy", metavar="NAME", help=f"of {', '.join(STRATEGIES)} (default: by the number of points)"
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
        help="also write what a rule's template came to with named constants, to be tuned again",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the choices (default: 0)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where results go (default: .optiml/<file>-<kernel>-tune/)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in the output folder")
    add_machine(parser)
    add_cluster(parser)


def _init(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "init",
        help="draft the kernel spec of a file",
        description="Draft the spec of one kernel, say what was assumed, and print it or write it.",
    )
    parser.add_argument("file", metavar="FILE[:KERNEL]", help="the .cu file, and which kernel of it")
    parser.add_argument("--kernel", metavar="NAME", help="which kernel, where the file has several")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the draft instead of printing it; a spec that is there is never overwritten",
    )
    parser.add_argument(
        "--format",
        choices=("comments", "toml", "json"),
        default="comments",
        help="lines above the kernel, or an optiml.toml beside the file; json: the lines and what is said of them (default: comments)",
    )
    parser.add_argument(
        "--static",
        action="store_true",
        help="read the text only; do not run the kernel on the CPU to find the arrays' sizes",
    )


def _doctor(verbs: Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "doctor",
        help="say what this machine has, what is missing, and how to get it",
        description="Say which of the parts that OptiML uses this machine has, what each missing one costs, and how to get it.",
    )
    add_format(parser)


def _cluster(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "cluster",
        help="say what the workers of a cluster are",
        description="Look at each worker of a cluster: its GPU, driver, clocks, versions, and who else uses it.",
    )
    parser.add_argument("what", choices=("doctor",), help="look at every worker")
    parser.add_argument(
        "--device", choices=("auto", "gpu", "cpu"), default="auto", help="what workers are wanted for (default: auto)"
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
        help="check that cheating kernels are refused here and honest ones are not",
        description="Run attacks on the verifier and honest edits through the stages that judge every candidate.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these cases, with wildcards (default: all)")
    parser.add_argument(
        "--suite", choices=("attacks", "honest", "all"), default="all", help="which cases (default: all)"
    )
    parser.add_argument(
        "--device", choices=("auto", "gpu", "cpu"), default="auto", help="as for optimize (default: auto)"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="compilers at once (default: one per core)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="rounds, each on fresh inputs (default: 1)")
    parser.add_argument(
        "--cases", type=Path, metavar="FOLDER", help="run the cases of this folder instead (see docs/selftest.md)"
    )
    parser.add_argument(
        "--generated", action="store_true", help="run newly written cases of all generators instead (see --seed)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the generators (default: another one each time)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of the output (default: text)")
    parser.add_argument("--verbose", action="store_true", help="print every case, not only what went wrong")
    parser.add_argument(
        "--unsafe-no-sandbox", action="store_true", help="run the cases without a sandbox where none can be had"
    )


def _memory(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "memory",
        help="list, export, import or forget what earlier runs taught",
        description="List, move or delete the lessons that runs with --memory wrote.",
    )
    parser.add_argument("action", choices=("list", "export", "import", "forget"), help="what to do with them")
    parser.add_argument(
        "lines", nargs="?", type=Path, metavar="FILE", help="of JSON lines: to write (export), to read (import)"
    )
    parser.add_argument(
        "--memory-file", type=Path, metavar="FILE", help="where lessons are (default: the user's cache)"
    )
    parser.add_argument(
        "--repository", type=Path, metavar="DIR", help="whose lessons (default: the repository around this folder)"
    )
    parser.add_argument("--all", action="store_true", help="the lessons of every repository")
    add_format(parser)


def _bench(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "bench",
        help="measure some of the project's tables again (needs a checkout)",
        description="Measure tables of the project's figures by name, and record them; without a name, list the tables.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="the tables (default: list them)")
    parser.add_argument("--only", default="", metavar="ROWS", help="only these rows, separated by commas")
    parser.add_argument("--resume", action="store_true", help="go on with a record that has rows missing or failed")
    parser.add_argument("--limit", metavar="N", help="begin no row that would not end within 540s, 9m …")
    parser.add_argument("--seconds", type=float, metavar="N", help="seconds of each search (default: the table's)")
    parser.add_argument(
        "--candidates", type=int, metavar="N", help="candidates of each run of an ablation (default: 100)"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="how many seeds (default: the table's)")
    parser.add_argument(
        "--gpus", metavar="N", help="rows at once, one a GPU here: how many GPUs, or which, as in 0,1,2,3"
    )
    add_cluster(parser)
    parser.add_argument(
        "--device", choices=("auto", "gpu", "cpu"), default="auto", help="as for optimize (default: auto)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the records are (default: benchmarks/results)")
    parser.add_argument("--checkout", type=Path, metavar="DIR", help="the project's checkout (default: this package's)")
    add_format(parser)
    parser.add_argument("--row-to", type=Path, help=argparse.SUPPRESS)  # what a worker starts for each row


def _report(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "report",
        help="make one HTML file of a run",
        description="Make one HTML file of a run of optimize or tune, to be opened anywhere. With two folders: compare two runs of "
        "optimize.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the output folder of a run")
    parser.add_argument(
        "other", type=Path, nargs="?", metavar="DIR", help="the output folder of a second run, to compare"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the page goes (default: report.html or comparison.html in the last DIR)",
    )
    add_format(parser)


def _capture(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "capture",
        help="run a program and record its kernels: time, launches, arguments",
        description=(
            "Run a command of yours twice, without a sandbox: once for the time of each kernel, once for the arguments of the "
            "kernels that take time. The recording stays in .optiml/capture of this repository."
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
    parser.add_argument("--limit", metavar="TIME", help="end each run after this time, as in 90s or 5m")
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
        description="Stand in for nvcc: the host compiler compiles the program, its kernels run on the CPU machine.",
        prefix_chars="\0",
        add_help=False,
    )
    parser.add_argument("arguments", nargs="*", metavar="…", help="as for nvcc")


def _completion(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "completion",
        help="print the completion script of a shell",
        description="Print the script that completes commands, options and files in a shell.",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def _mcp(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "mcp",
        help="serve this repository to an editor's assistant, by the Model Context Protocol",
        description="Serve the tools optimize, profile_diagnose, explain and apply on standard input and output, for the repository here.",
    )
    parser.add_argument(
        "--unsafe-no-sandbox",
        action="store_true",
        help="run the code without a sandbox where none can be had; only for code you trust",
    )
