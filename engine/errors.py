"""The one family of errors that reaches a person: one sentence with what, where and what to do."""

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass
class OptimlError(Exception):
    """A failure that a person can act on.

    `what` says what is wrong, `where` names the file, line or key (may be empty), `do` says what to do next.
    Subclasses set `exit_code`: 1 findings or refused, 2 wrong use, 3 internal error.
    """

    what: str
    where: str = ""
    do: str = ""
    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}; {self.do}" if self.do else text


class UsageError(OptimlError):
    """The command line asks for something that is not there: no such file, no such kernel, a bad option."""

    exit_code: ClassVar[int] = 2


class SourceError(OptimlError):
    """A CUDA file cannot be read: wrong encoding, syntax at a place that matters. `where` is `path:line`."""

    exit_code: ClassVar[int] = 2


class SpecError(OptimlError):
    """A kernel spec has a wrong type, an unknown key or a missing part. `where` is `path:line` where known."""

    exit_code: ClassVar[int] = 2


class RefusedError(OptimlError):
    """The input is well formed, but nothing can be certified with it: the spec does not validate."""


class NotPredictedError(RefusedError):
    """The spec validates, and the original's speed cannot be predicted: a search of it needs a GPU."""


class MachineError(OptimlError):
    """A part of this machine is missing or failed: GPU, driver, compiler, sandbox, disk."""


@dataclass
class CompileError(OptimlError):
    """A compiler refused the code. `log` is its output: text about untrusted code, so data and nothing else."""

    log: str = field(default="", repr=False)
