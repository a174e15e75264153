"""optiml-check's findings as documents for code hosts and editors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from engine.errors import MachineError
from engine.settings.config import KINDS
from hooks import check, compilers
from hooks.finding import Finding
from hooks.formats import _RULES, fingerprints, rendered
from tests.npm import member

Output = pytest.CaptureFixture[str]
# A name that tries to end a workflow command, and a text that tries to begin one.
HOSTILE = Finding("a b,line=9::%\nx\u202e.cu", 3, "k::t<1, 2>", "compile", "bad\n::add-mask::100%\x1b[2J")
SPILLS = Finding(
    "k.cu", 8, "scale", "spills", "40 bytes of registers spilled on sm_90 (16 stored, 24 loaded per thread)"
)
SCHEMA = (
    "@microsoft/jest-sarif",
    "1.0.0-beta.0",
    "lib/schemas/sarif-2.1.0-rtm.5.json",
)  # SARIF 2.1.0 as Microsoft ships it


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from texts(each)
    elif isinstance(value, str):
        yield value


def test_sarif_has_the_form_of_the_standard() -> None:
    document = json.loads(rendered("sarif", [HOSTILE, SPILLS], ["k.cu: out of time\n"], ["compile"]))
    jsonschema.Draft4Validator(json.loads(member(*SCHEMA).read_bytes())).validate(document)
    assert not re.search(r"[\x00-\x1f\u202e]", "".join(texts(document)))
    run = document["runs"][0]
    first, second = run["results"]
    assert (first["level"], second["level"]) == ("error", "warning")
    assert [run["tool"]["driver"]["rules"][r["ruleIndex"]]["id"] for r in run["results"]] == ["compile", "spills"]
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20b%2Cline%3D9%3A%3A%25%0Ax%E2%80%AE.cu"
    assert run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"] == "k.cu: out of time?"


def test_the_schema_can_refuse() -> None:
    document = json.loads(rendered("sarif", [SPILLS], [], []))
    document["runs"][0]["results"][0]["level"] = "major"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(json.loads(member(*SCHEMA).read_bytes())).validate(document)


def test_every_kind_is_a_rule() -> None:
    assert tuple(_RULES) == KINDS


def test_a_workflow_command_cannot_be_left() -> None:
    text = rendered("github", [HOSTILE, SPILLS], ["::stop-commands::x\n::error::y", "plain"], ["compile"])
    lines = text.splitlines()
    assert len(lines) == 4
    assert lines[0] == (
        "::error file=a b%2Cline=9%3A%3A%25?x?.cu,line=3,title=optiml-check compile%3A k%3A%3At<1%2C 2>"
        "::bad?::add-mask::100%25?[2J"
    )
    assert lines[1].startswith("::warning file=k.cu,line=8,title=optiml-check spills%3A scale::40 bytes of registers")
    assert lines[2] == "::notice title=optiml-check::./::stop-commands::x?::error::y"
    for line in lines:
        assert re.match(r"::(error|warning|notice) (\w+=[^,:]*)(,\w+=[^,:]*)*::", line)


def test_text_is_no_workflow_command() -> None:
    """A file of such a name was printed as it is, and a runner carries out lines that begin so."""
    assert rendered("text", [replace(HOSTILE, path="::add-mask::x.cu")], [], []).startswith("./::add-mask::x.cu:3: ")


def test_gitlab_gets_what_it_needs_of_each_issue() -> None:
    first, second = json.loads(rendered("gitlab", [HOSTILE, SPILLS], ["a note"], ["compile"]))
    assert set(first) == {"description", "check_name", "fingerprint", "severity", "location"}
    assert (first["severity"], second["severity"]) == ("major", "minor")
    assert second["location"] == {"path": "k.cu", "lines": {"begin": 8}}
    assert second["check_name"] == "optiml-spills"


def test_json_holds_findings_and_notes() -> None:
    document = json.loads(rendered("json", [SPILLS], ["a note"], ["compile"]))
    assert document["notes"] == ["a note"]
    (finding,) = document["findings"]
    assert finding["level"] == "warning"
    assert {key: finding[key] for key in ("path", "line", "kernel", "kind", "text")} == vars(SPILLS)


def test_a_fingerprint_outlives_lines_and_numbers() -> None:
    (mark,) = fingerprints([SPILLS])
    moved = replace(SPILLS, line=99, text="44 bytes of registers spilled on sm_90 (20 stored, 24 loaded per thread)")
    assert fingerprints([moved]) == [mark]
    others = [
        replace(SPILLS, path="l.cu"),
        replace(SPILLS, kernel="other"),
        replace(SPILLS, kind="occupancy"),
        replace(SPILLS, text=SPILLS.text.replace("sm_90", "sm_80")),
    ]
    assert len({mark, *fingerprints(others)}) == 5
    assert len(set(fingerprints([SPILLS, moved]))) == 2


@pytest.mark.parametrize("form", ["json", "sarif", "gitlab"])
def test_the_hook_writes_one_document(
    repository: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, edit: Callable[[str, str], None], form: str
) -> None:
    def none(unsafe: bool) -> None:
        raise MachineError("no sandbox here")

    monkeypatch.setattr(compilers, "sandbox", none)
    edit("2.0f * x[i]", "3.0f * x[i]")
    assert check.main(["--format", form]) == 0
    out, err = capsys.readouterr()
    json.loads(out)
    assert "not analysed: no sandbox here" in (err if form == "gitlab" else out)


def test_the_exit_code_is_that_of_text(repository: Path, capsys: Output, edit: Callable[[str, str], None]) -> None:
    edit('size = "n" }\n// optiml: time', 'sice = "n" }\n// optiml: time')
    assert check.main(["--format", "github"]) == 1
    assert capsys.readouterr().out.startswith("::error file=k.cu,line=4,title=optiml-check spec%3A scale::unknown key")
