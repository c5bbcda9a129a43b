# SPDX-License-Identifier: Apache-2.0
"""What configuration dataclasses share: the native struct, filled when they are made."""
from __future__ import annotations

import ctypes
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
        native = self._STRUCT.made()
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not None:
                _store(self, native, field.name, value)
        self._lowpp = native  # type: ignore[misc]

    @property
    def ptr(self) -> int:
        """The address of the native struct."""
        return self._lowpp.ptr


def _store(owner: Configured, native: _structs.Native, name: str, value: Any) -> None:
    c_name = _C_NAMES.get(name, name)
    if isinstance(value, Configured):
        setattr(native, c_name, value._lowpp)
        return
    try:
        number = operator.index(value.ptr if hasattr(value, 'ptr') else value)
    except TypeError:
        raise TypeError(f'{type(owner).__name__}.{name}: a Tensor or an integer is needed, not '
                        f'{type(value).__name__}') from None
    limit = 1 << (8 * ctypes.sizeof(dict(f[:2] for f in native._fields_)[c_name]))
    if not 0 <= number < limit:
        raise OverflowError(f'{type(owner).__name__}.{name}: {number} is not in [0, {limit})')
    setattr(native, c_name, number)


def ptr_of(value: Any) -> int:
    """The address of an argument that may be None (NULL), an address, or an object with `.ptr`."""
    if value is None:
        return 0
    return operator.index(value.ptr if hasattr(value, 'ptr') else value)
