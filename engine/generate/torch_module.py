"""A reference that is a class of PyTorch's: KernelBench's form of a task, a module with `forward` beside `get_init_inputs`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

_SEED = 0


def is_module(found: object, torch: Any) -> bool:
    """Whether something is a class of modules."""
    return torch is not None and inspect.isclass(found) and issubclass(found, torch.nn.Module)


def as_function(kind: Any, held: Mapping[str, Any], torch: Any) -> Callable[..., Any]:
    """The module as a function of `forward`'s arguments and of its own parameters, whose names have `_` for each dot.

    It is made once, with what `get_init_inputs` of its file (`held`) returns, and computes in the type of its inputs. Raises ValueError
    where two arguments have one name, and whatever making the module raises.
    """
    torch.manual_seed(_SEED)
    given = held.get("get_init_inputs")
    module = kind(*(given() if callable(given) else ()))
    weights = {name.replace(".", "_"): name for name, _ in module.named_parameters()}
    taken = list(inspect.signature(module.forward).parameters.values())
    if twice := sorted(weights.keys() & {p.name for p in taken}):
        raise ValueError(f"'{twice[0]}' is an argument of forward and a parameter of the module")

    def function(**values: Any) -> Any:
        real = next((v.dtype for v in values.values() if isinstance(v, torch.Tensor) and v.is_floating_point()), None)
        if real is not None:
            torch.set_default_dtype(real)  # for constants that `forward` makes
        own = {weights[name]: value for name, value in values.items() if name in weights}
        rest = {name: value for name, value in values.items() if name not in weights}
        with torch.no_grad():
            return torch.func.functional_call(module, own, (), rest)

    # What it takes, for those who ask; weights may not be left out, so they precede what may.
    own = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in weights]
    function.__signature__ = inspect.Signature([*taken, *own])  # type: ignore[attr-defined]
    return function
