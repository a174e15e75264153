"""rich's console, as every verb prints with it."""

from typing import NoReturn

import rich.console


class Console(rich.console.Console):
    """Leaves a reader that went away (`optiml show DIR | head`) to the command line, which ends with the code of success."""

    def on_broken_pipe(self) -> NoReturn:
        """rich's own ends the program with exit code 1, which here means refused."""
        raise BrokenPipeError
