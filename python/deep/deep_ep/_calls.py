# SPDX-License-Identifier: Apache-2.0
"""C calls whose arguments are kept: structs and descriptors are made once for a kind of tensors, and a call fills in what
differs, addresses and sizes. Made anew for each call, as nccl_ep's own classes do, they were most of a call's host time.

The library copies what it keeps of a descriptor, so that one may be filled again as soon as the call has returned.
"""
from __future__ import annotations

import ctypes
from typing import Any

import torch

import nccl_ep
from nccl_ep import bindings
from nccl_ep._buffers import datatype_of

__all__ = ['Spot', 'failed', 'struct_of']


class Spot:
    """A descriptor of tensors of one data type and as many dimensions."""
    __slots__ = ('native', 'sizes', 'ptr')

    def __init__(self, dtype: torch.dtype, *sizes: int):
        self.sizes: Any = (ctypes.c_size_t * len(sizes))(*sizes)
        self.native = bindings.Tensor.made()
        self.native.ndim_, self.native.datatype = len(sizes), datatype_of(dtype)
        self.native.sizes = ctypes.addressof(self.sizes)
        self.ptr = self.native.ptr

    def fill(self, tensor: torch.Tensor) -> None:
        """Of the caller's: any sizes, which the library judges. NcclInvalid where it is not dense."""
        if not tensor.is_contiguous():
            nccl_ep.Tensor(tensor)
        self.sizes[:] = tensor.shape
        self.native.data_ = tensor.data_ptr()

    def put(self, tensor: torch.Tensor, rows: int) -> None:
        """Dense, and with so many rows, but otherwise of the sizes that the descriptor has."""
        self.sizes[0] = rows
        self.native.data_ = tensor.data_ptr()


def struct_of(kind: Any, **spots: Spot | None) -> Any:
    """A struct of tensors; the caller keeps it and the descriptors."""
    made = kind.made()
    for name, spot in spots.items():
        if spot is not None:
            setattr(made, name, spot.ptr)
    return made


def failed(status: int, name: str) -> None:
    """Raises what bindings raise."""
    bindings.check_status(status, name)
