"""Whether a function that Numba compiles can raise an error, read from the code that LLVM has made of it.

A kernel of CUDA cannot raise: the thread ends before it has stored anything, and a division by zero gives an infinity
or whatever the device makes of it. A compiled function returns its status, 0 if all went well, beside its result. Where
LLVM has taken out what is never reached (the check of a divisor that is a constant, or that was compared with zero
before), a function in which nothing can raise returns the constant 0, and no other one does.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numba
from numba.core.dispatcher import Dispatcher


@cache
def may_raise(compiled: Any, types: tuple[str, ...]) -> bool:
    """Whether a function that `numba.njit` has made may raise for arguments of these types ("int64", "float64"), as far
    as its code shows. True where Numba compiles nothing.
    """
    names = ", ".join(f"x{k}" for k in range(len(types)))
    scope: dict[str, Any] = {"compiled": compiled}
    exec(f"def called({names}):\n    return compiled({names})\n", scope)
    caller = numba.njit(scope["called"])  # what is called may come from a cache on disk, and shows no code then
    if not isinstance(caller, Dispatcher):  # NUMBA_DISABLE_JIT
        return True
    kinds = tuple(getattr(numba.types, name) for name in types)
    caller.compile(kinds)
    name = caller.overloads[kinds].fndesc.llvm_func_name
    body = re.search(rf'^define [^\n]*@"?{re.escape(name)}"?\(.*?^}}', caller.inspect_llvm(kinds), re.M | re.S)
    returned = [] if body is None else re.findall(r"^\s*ret (.*)", body[0], re.M)
    return not returned or any(not re.match(r"i32 0\b", value) for value in returned)


__all__ = ["may_raise"]
