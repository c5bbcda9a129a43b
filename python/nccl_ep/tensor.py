# SPDX-License-Identifier: Apache-2.0
"""Descriptors of tensors."""
from __future__ import annotations

import ctypes
from typing import Any, Sequence

from . import _structs
from ._buffers import Found, datatype_of, resolve
from .enums import NcclDataType
from .errors import NcclInvalid

__all__ = ['Tensor']


def _from_pointer(ptr: int, dtype: Any, shape: Sequence[int] | None) -> Found:
    if dtype is None or shape is None:
        raise ValueError('a tensor at an address needs dtype and shape')
    sizes = tuple(int(n) for n in shape)
    if ptr < 0 or any(n < 0 for n in sizes):
        raise ValueError(f'address {ptr:#x}, shape {sizes}: negative')
    return Found(ptr, sizes, datatype_of(dtype))


class Tensor:
    """A dense row-major tensor in device memory (host memory on the CPU device), as the C calls take it.

    buffer: a torch tensor, an object with DLPack, __cuda_array_interface__ or __array_interface__ (numpy), a writable
    buffer of Python, or an address, which needs dtype and shape. window and window_offset, only together: the data is in a
    window of Communicator.register_window, at this offset. The buffer is kept alive, the window is not.
    """
    __slots__ = ('_buffer', '_found', '_sizes', '_lowpp', '__weakref__')

    def __init__(self, buffer: Any, *, dtype: Any = None, shape: Sequence[int] | None = None, window: Any = None,
                 window_offset: int | None = None):
        if isinstance(buffer, int) and not isinstance(buffer, bool):
            found, self._buffer = _from_pointer(buffer, dtype, shape), None
        elif dtype is not None or shape is not None:
            raise ValueError('dtype and shape are for tensors at an address; a tensor object has its own')
        else:
            found, self._buffer = resolve(buffer), buffer
        if not found.shape:
            raise ValueError('a tensor needs at least one dimension')
        if (window is None) != (window_offset is None):
            raise NcclInvalid('window and window_offset are given together or not at all')
        self._found = found
        self._sizes = (ctypes.c_size_t * len(found.shape))(*found.shape)
        native = _structs.Tensor.made()
        native.ndim_, native.datatype, native.data_ = len(found.shape), found.datatype, found.data
        native.sizes = ctypes.addressof(self._sizes)
        if window_offset is not None:
            native.win_hdl, native.win_offset = int(window.handle), int(window_offset)
        self._lowpp = native

    @property
    def ptr(self) -> int:
        """The address of the ncclEpTensor_t."""
        return self._lowpp.ptr

    @property
    def ndim(self) -> int:
        return self._lowpp.ndim_

    @property
    def sizes(self) -> tuple[int, ...]:
        return self._found.shape

    @property
    def datatype(self) -> NcclDataType:
        return self._found.datatype

    @property
    def data(self) -> int:
        """The address of the first element."""
        return self._lowpp.data_

    @property
    def buffer(self) -> Any:
        """The object that was given; None for an address."""
        return self._buffer

    def __repr__(self) -> str:
        return f'<Tensor sizes={self.sizes} dtype={self.datatype.name} data={self.data:#x}>'
