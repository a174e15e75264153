"""Findings of optiml-check as text or as a document that code hosts and editors read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hooks.common import show

if TYPE_CHECKING:
    from hooks.finding import Finding

FORMATS = ("text", "json", "sarif", "github", "gitlab")
_SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_NUMBER = re.compile(r"(?<![\w.])\d[\d.]*")
_RULES = {
    "spec": "The kernel spec cannot be read or does not fit the kernel",
    "compile": "The kernel does not compile for its target",
    "spills": "Registers are spilled to local memory",
    "occupancy": "Low occupancy",
    "coalescing": "Uncoalesced access to global memory",
    "bank-conflicts": "Bank conflicts in shared memory",
}


def rendered(form: str, findings: Sequence[Finding], notes: Sequence[str], fail: Sequence[str]) -> str:
    """The text for standard output. Findings of a kind in `fail` are errors, the others warnings."""
    levels = ["error" if finding.kind in fail else "warning" for finding in findings]
    if form == "text":
        pairs = zip(findings, levels, strict=True)
        lines = [f"{f.path}:{f.line}: {f.kernel}: {level}: {f.text} [{f.kind}]" for f, level in pairs]
        return "".join(f"{show(line)}\n" for line in (*lines, *(f"note: {note}" for note in notes)))
    if form == "github":
        return "".join(f"{line}\n" for line in _github(findings, levels, notes))
    prints = fingerprints(findings)
    if form == "sarif":
        document: Any = _sarif(findings, levels, prints, notes)
    elif form == "gitlab":
        document = [_gitlab(*each) for each in zip(findings, levels, prints, strict=True)]
    else:
        each = [
            {**asdict(finding), "level": level, "fingerprint": mark}
            for finding, level, mark in zip(findings, levels, prints, strict=True)
        ]
        document = {"version": 1, "findings": each, "notes": list(notes)}
    return json.dumps(document, indent=2) + "\n"


def fingerprints(findings: Sequence[Finding]) -> list[str]:
    """One for each finding, the same while its line or its numbers change; equal ones of a kernel are counted."""
    seen: dict[str, int] = {}
    found = []
    for finding in findings:
        same = json.dumps([finding.path, finding.kernel, finding.kind, _NUMBER.sub("#", finding.text)])
        seen[same] = seen.get(same, 0) + 1
        found.append(hashlib.sha256(f"{same}{seen[same]}".encode()).hexdigest())
    return found


def _github(findings: Sequence[Finding], levels: Sequence[str], notes: Sequence[str]) -> Iterator[str]:
    """Workflow commands: https://docs.github.com/actions/reference/workflow-commands-for-github-actions"""

    def escaped(text: str, more: str = "") -> str:
        return "".join(f"%{ord(sign):02X}" if sign in "%" + more else sign for sign in show(text))

    for finding, level in zip(findings, levels, strict=True):
        title = f"optiml-check {finding.kind}: {finding.kernel}"
        given = {"file": finding.path, "line": str(finding.line), "title": title}
        properties = ",".join(f"{name}={escaped(value, ':,')}" for name, value in given.items())
        yield f"::{level} {properties}::{escaped(finding.text)}"
    for note in notes:
        yield f"::notice title=optiml-check::{escaped(note)}"


def _gitlab(finding: Finding, level: str, fingerprint: str) -> dict[str, Any]:
    """An issue of GitLab's code quality report: https://docs.gitlab.com/ci/testing/code_quality/"""
    return {
        "description": show(f"{finding.kernel}: {finding.text}"),
        "check_name": f"optiml-{finding.kind}",
        "fingerprint": fingerprint,
        "severity": "major" if level == "error" else "minor",
        "location": {"path": show(finding.path), "lines": {"begin": finding.line}},
    }


def _sarif(
    findings: Sequence[Finding], levels: Sequence[str], prints: Sequence[str], notes: Sequence[str]
) -> dict[str, Any]:
    """SARIF 2.1.0: https://docs.oasis-open.org/sarif/sarif/v2.1.0/"""
    from importlib.metadata import version

    kinds = list(_RULES)
    results = []
    for finding, level, mark in zip(findings, levels, prints, strict=True):
        uri = quote(finding.path.encode("utf-8", "surrogateescape"))
        place = {
            "physicalLocation": {
                "artifactLocation": {"uri": uri, "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": max(1, finding.line)},
            },
            "logicalLocations": [{"name": show(finding.kernel), "kind": "function"}],
        }
        results.append(
            {
                "ruleId": finding.kind,
                "ruleIndex": kinds.index(finding.kind),
                "level": level,
                "message": {"text": show(f"{finding.kernel}: {finding.text}")},
                "locations": [place],
                "partialFingerprints": {"optimlCheck/v1": mark},
            }
        )
    said = [{"level": "note", "message": {"text": show(note)}} for note in notes]
    driver = {
        "name": "optiml-check",
        "version": version("optiml-cuda"),
        "rules": [{"id": kind, "shortDescription": {"text": text}} for kind, text in _RULES.items()],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "utf16CodeUnits",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": said}],
        "results": results,
    }
    return {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
