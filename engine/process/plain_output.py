"""Output for terminals that take ASCII alone: what they cannot show is written as what stands for it."""

import codecs
import io
import os
from typing import TextIO

_HANDLER = "optiml-plain"
# One character each, so that tables and cut lines keep their width.
_PLAIN = str.maketrans("×µμ–—→←⟨⟩“”‘’…·²³°•", "xuu--><<>\"\"''~.23o*")


def adapt(stream: TextIO | None) -> None:
    """Have a stream replace what its encoding lacks; with the locale C or POSIX that is all but ASCII."""
    if not isinstance(stream, io.TextIOWrapper):
        return
    codecs.register_error(_HANDLER, _replaced)
    if _is_c_locale():
        stream.reconfigure(encoding="ascii", errors=_HANDLER)
    else:
        stream.reconfigure(errors=_HANDLER)


def _is_c_locale() -> bool:
    """Whether the user's locale is C: Python itself then writes UTF-8, and sets LC_CTYPE to C.UTF-8."""
    said = os.environ.get
    if said("PYTHONIOENCODING") or said("PYTHONUTF8") == "1":
        return False
    plain = ("C", "POSIX")
    if said("LC_ALL"):
        return said("LC_ALL") in plain
    return said("LANG") in plain and said("LC_CTYPE", "C") in (*plain, "", "C.UTF-8")


def _replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end
