# SPDX-License-Identifier: Apache-2.0
"""What configuration dataclasses share: the native struct, filled when they are made."""
from __future__ import annotations

import dataclasses
import operator
from typing import Any, ClassVar

from . import _structs

# Fields of this package whose C name differs.
_C_NAMES = {'quantization_recipe': 'quant_recipe'}


class Configured:
    """Base of the dataclasses.

    `_lowpp` is the native struct. It is filled once: later assignments to a field do not reach it, those to an attribute
    of `_lowpp` do. None leaves a member zero; a Tensor, or anything else with `.ptr`, is stored as its address, and lives
    as long as the field refers to it.
    """
    _STRUCT: ClassVar[type[_structs.Native]]
    _lowpp: ClassVar[Any]

    def __post_init__(self) -> None:
        kind = type(self)
        native = kind._STRUCT.made()
        for name, c_name, limit in _plans.get(kind) or _plan(kind):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, Configured):
                setattr(native, c_name, value._lowpp)
                continue
            if not isinstance(value, int):
                value = _address(self, name, value)
            if not 0 <= value < limit:
                raise OverflowError(f'{kind.__name__}.{name}: {value} is not in [0, {limit})')
            if value:
                setattr(native, c_name, value)
        self._lowpp = native  # type: ignore[misc]

    @property
    def ptr(self) -> int:
        """The address of the native struct."""
        return self._lowpp.ptr


# Per class: a field's name, its C name, and the first value that does not fit.
_plans: dict[type, list[tuple[str, str, int]]] = {}


def _plan(kind: Any) -> list[tuple[str, str, int]]:
    plan = []
    for field in dataclasses.fields(kind):
        c_name = _C_NAMES.get(field.name, field.name)
        plan.append((field.name, c_name, 1 << 8 * getattr(kind._STRUCT, c_name).size))
    _plans[kind] = plan
    return plan


def _address(owner: Configured, name: str, value: Any) -> int:
    try:
        return operator.index(value.ptr if hasattr(value, 'ptr') else value)
    except TypeError:
        raise TypeError(f'{type(owner).__name__}.{name}: a Tensor or an integer is needed, not '
                        f'{type(value).__name__}') from None


def ptr_of(value: Any, kind: type | None = None) -> int:
    """The address of an argument: None (NULL), an address, a `kind`, or a foreign object with `.ptr`.

    All structs have the same magic number, so that C cannot tell inputs from outputs: a wrong class is refused here.
    """
    if value is None:
        return 0
    if kind is not None and isinstance(value, kind):
        return value.ptr  # type: ignore[attr-defined]
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind is None or not hasattr(value, '_lowpp'):
        ptr = getattr(value, 'ptr', None)
        if isinstance(ptr, int):
            return ptr
    raise TypeError(f'{kind.__name__ if kind else "an address or an object with .ptr"} is needed, not {type(value).__name__}')
