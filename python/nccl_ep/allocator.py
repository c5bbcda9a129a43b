# SPDX-License-Identifier: Apache-2.0
"""An allocator of the caller's, for the memory of handles."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass

from . import _structs
from ._config import Configured

__all__ = ['AllocConfig', 'AllocFn', 'FreeFn']

# cudaError_t (void **ptr, size_t bytes, void *context) and cudaError_t (void *ptr, void *context); usable as decorators.
AllocFn = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_void_p)
FreeFn = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


@dataclass(kw_only=True)
class AllocConfig(Configured):
    """Both functions or neither, as addresses: ctypes.cast(function, ctypes.c_void_p).value.

    The caller keeps the functions alive as long as the group.
    """
    _STRUCT = _structs.AllocConfig
    alloc_fn: int = 0
    free_fn: int = 0
    context: int = 0
