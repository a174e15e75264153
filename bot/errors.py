"""The failures of the GitHub side; they end where the engine's errors end."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import OptimlError


class GitError(OptimlError):
    """git refused, or a commit is not in this clone."""


class DiffError(OptimlError):
    """A unified diff cannot be read."""


class BundleError(OptimlError):
    """A result bundle is no result bundle: too large, malformed, or of another commit."""


@dataclass
class ForgeError(OptimlError):
    """GitHub did not do what it was asked to. `status` is the HTTP status, 0 where no answer came."""

    status: int = 0


class DeniedError(ForgeError):
    """The token may not do this: read-only for a fork, a missing permission, a wrong token."""


class MissingError(ForgeError):
    """There is no such thing, or the token may not see it."""


class RejectedError(ForgeError):
    """GitHub found the request wrong (422): a line outside of the diff, a body that is too long, one pending review already."""


class LimitedError(ForgeError):
    """A rate limit asks for a longer wait than is allowed."""


class UnavailableError(ForgeError):
    """No usable answer after all tries: connections dropped, time-outs, 5xx."""
