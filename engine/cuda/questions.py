"""What a rule asks of code, in one import.

- of a node (`syntax.py`): `text`, `walk`, `children`, `names`, `strip`, `inside`, `called`, `operands`, `compact`, `tokens`, `root_name`,
  `span`, `ancestors`, `is_integer_type`, `is_unroll`, `THREAD_NAMES`
- what it changes (`effects.py`): `assigned`, `written`, `pure`, `pure_value`
- what it declares (`declarations.py`): `Declared`, `declarators`, `declared_type`, `variables`
- which element it names (`subscripts.py`): `always`, `in_other_arm`, `index_of`, `is_target`, `only_stored`, `subscripts`,
  `unconditional`
- what an expression is (`polynomial.py`): `Polynomial`, `atom`, `number`, `polynomial`; its value (`engine.arith`): `evaluate`,
  `evaluate_int`, `ArithmeticError_`, `Number`
"""

from engine.arith import ArithmeticError_, Number, evaluate, evaluate_int
from engine.cuda.declarations import Declared, declarators, declared_type, variables
from engine.cuda.effects import assigned, pure, pure_value, written
from engine.cuda.polynomial import Polynomial, atom, number, polynomial
from engine.cuda.subscripts import always, in_other_arm, index_of, is_target, only_stored, subscripts, unconditional
from engine.cuda.syntax import (
    THREAD_NAMES,
    ancestors,
    called,
    children,
    compact,
    inside,
    is_integer_type,
    is_unroll,
    names,
    operands,
    root_name,
    span,
    strip,
    text,
    tokens,
    walk,
)

__all__ = [
    "THREAD_NAMES", "ArithmeticError_", "Declared", "Number", "Polynomial", "always", "ancestors", "assigned", "atom", "called",
    "children", "compact", "declarators", "declared_type", "evaluate", "evaluate_int", "in_other_arm", "index_of", "inside",
    "is_integer_type", "is_target", "is_unroll", "names", "number", "only_stored", "operands", "polynomial", "pure", "pure_value",
    "root_name", "span", "strip", "subscripts", "text", "tokens", "unconditional", "variables", "walk", "written",
]  # fmt: skip
