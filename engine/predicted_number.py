"""How a number that is predicted, not measured, is shown."""


def approximate(value: float) -> str:
    """Two significant digits behind a tilde: `~2.4`."""
    return f"~{float(f'{value:.2g}'):g}"
