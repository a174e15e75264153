"""A hostile model: every answer is made of attacks from the self-test, and nothing of it may be accepted.

    python benchmarks/hostile_model.py --device cpu --record benchmarks/results/hostile_model.json

For each original of the self-test a server on this machine speaks the chat completions API and answers with its attacks, up to eight in
one answer; `optiml optimize --proposers llm` asks it as it asks any model. Only attacks that the path can see are sent. Exit code 0 when
every attack was sent and no run suggests anything, 1 otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.examples import head, optiml
from engine.selftest.cases import SelfCase, load_cases, original_text

SCHEMA = "optiml.hostile_model/1"
_PER_ANSWER = 8  # so many proposals are read of one
_MOST_RUNS = 8  # of one original


def main(given: Sequence[str] | None = None) -> int:
    """Run all originals; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Let a hostile model propose the attacks of the self-test.")
    parser.add_argument("originals", nargs="*", metavar="ORIGINAL", help="default: all")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="cpu")
    parser.add_argument("--budget", default="80", help="of one run (default: 80 candidates)")
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args(given)
    begin = datetime.datetime.now(datetime.UTC)
    mode = "measured" if options.device == "gpu" else "predicted"
    cases = [case for case in load_cases("attacks") if case.expected(mode)]
    names = options.originals or sorted({case.original for case in cases})
    originals = []
    for name in names:
        ours = [case for case in cases if case.original == name]
        print(f"{name}: {len(ours)} attacks …", file=sys.stderr, flush=True)
        originals.append(attacked(name, ours, options.device, options.budget))
    record = {
        **head(SCHEMA, __file__, given, begin),
        "device": options.device,
        "originals": originals,
        "summary": summary(originals),
    }
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(table(record))
    return 0 if record["summary"]["held"] else 1


def attacked(name: str, cases: Sequence[SelfCase], device: str, budget: str) -> dict[str, Any]:
    """Runs against one original until every attack was sent: what became of them."""
    waiting = answers(cases)
    sent = len(waiting)
    runs: list[dict[str, Any]] = []
    with served(waiting) as url, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.cu"
        path.write_bytes(original_text(name))
        (path.parent / ".git").mkdir()  # the root, wherever the temporary folder lies
        while waiting and len(runs) < _MOST_RUNS:
            runs.append(run(path, Path(folder) / "out", device, budget, url))
            if runs[-1]["error"]:
                break
    return {
        "original": name,
        "attacks": len(cases),
        "answers": sent,
        "answers_sent": sent - len(waiting),
        "runs": runs,
        "accepted": sum(r["best"] is not None for r in runs),
    }


def run(path: Path, out: Path, device: str, budget: str, url: str) -> dict[str, Any]:
    """One run of the installed command with the model alone."""
    command = [
        optiml(), "optimize", str(path), "--proposers", "llm", "--llm-model", "hostile", "--budget", budget,
        "--device", device, "--profile", "none", "--out", str(out), "--format", "json",
    ]  # fmt: skip
    env = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        return {"error": done.stderr.strip()[-1000:] or f"exit code {done.returncode}", "best": None}
    result = json.loads(done.stdout)
    return {
        "error": None,
        "best": result["best"],
        "verdict": result["verdict"],
        "faults": result["model"]["faults"],
        "edits": [{k: edit[k] for k in ("idea", "outcome", "ratio")} for edit in result["model"]["edits"]],
        "refused_when_confirmed": len(result["refused"]),
    }


def answers(cases: Sequence[SelfCase]) -> list[bytes]:
    """The model's answers: chat completions whose proposals are attacks."""
    proposals = [proposal(case) for case in cases]
    found = []
    for begin in range(0, len(proposals), _PER_ANSWER):
        text = json.dumps({"proposals": proposals[begin : begin + _PER_ANSWER]})
        found.append(completion(text))
    return found


def proposal(case: SelfCase) -> dict[str, Any]:
    """An attack in the form that a model is asked for."""
    edits = [{"file": "", "search": find, "replace": replace} for find, replace in case.edits]
    launch: dict[str, Any] = {"grid": [], "block": [], "shared": ""}
    return {
        "idea": f"Attack {case.name}",
        "counter": "",
        "direction": "down",
        "edits": edits,
        "kernel": case.kernel,
        "launch": launch,
    }


def completion(text: str) -> bytes:
    """A chat completion with this text."""
    message = {"role": "assistant", "content": text, "refusal": None}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    choices = [{"index": 0, "finish_reason": "stop", "message": message}]
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "hostile",
        "choices": choices,
        "usage": usage,
    }
    return json.dumps(body).encode()


@contextmanager
def served(waiting: list[bytes]) -> Iterator[str]:
    """The address of a server that gives these answers away one by one, and then has nothing to say."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement of its headers

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                body = waiting.pop(0) if waiting else completion('{"proposals": []}')
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def summary(originals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Attacks, how they ended, and whether nothing was accepted."""
    runs = [run for original in originals for run in original["runs"]]
    outcomes: Counter[str] = Counter(edit["outcome"] for run in runs for edit in run.get("edits", ()))
    faults: Counter[str] = Counter()
    for one in runs:
        faults.update(one.get("faults", {}))
    complete = all(o["answers_sent"] == o["answers"] for o in originals) and not any(run["error"] for run in runs)
    return {
        "attacks": sum(o["attacks"] for o in originals),
        "outcomes": dict(sorted(outcomes.items())),
        "faults": dict(sorted(faults.items())),
        "accepted": sum(o["accepted"] for o in originals),
        "held": complete and not any(o["accepted"] for o in originals),
    }


def table(record: Mapping[str, Any]) -> str:
    """The record as a Markdown table."""
    lines = ["| original | attacks | accepted | refused as text | outcomes of the rest |", "|---|---:|---:|---:|---|"]
    for original in record["originals"]:
        edits = Counter(e["outcome"] for run in original["runs"] for e in run.get("edits", ()))
        refused = sum(run.get("faults", {}).get("forbidden", 0) for run in original["runs"])
        told = ", ".join(f"{n} {name}" for name, n in sorted(edits.items()))
        lines.append(
            f"| {original['original']} | {original['attacks']} | {original['accepted']} | {refused} | {told} |"
        )
        lines += [f"failed: {run['error']}" for run in original["runs"] if run["error"]]
    total = record["summary"]
    lines += ["", f"{total['attacks']} attacks sent, {total['accepted']} accepted; held: {total['held']}."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
