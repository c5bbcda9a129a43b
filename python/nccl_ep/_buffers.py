# SPDX-License-Identifier: Apache-2.0
"""Address, shape and data type of other packages' arrays; none of these packages is imported here.

Resolved are torch tensors, DLPack, __cuda_array_interface__, __array_interface__ (numpy), and writable buffers of Python
(ctypes arrays, array.array, bytearray, memoryview). All must be dense and row-major: a descriptor has no strides.
"""
from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any, NamedTuple, Sequence

from .enums import NcclDataType as T
from .errors import NcclInvalid

__all__ = ['Found', 'datatype_of', 'resolve']


class Found(NamedTuple):
    """What a descriptor needs, and what must stay alive besides the object itself."""
    data: int
    shape: tuple[int, ...]
    datatype: T
    keep: Any = None


# Names of torch, numpy and ml_dtypes. Types without an NCCL equivalent travel as bytes only if they are bytes.
_NAMES = {
    'float16': T.FLOAT16, 'half': T.FLOAT16, 'float32': T.FLOAT32, 'float': T.FLOAT32, 'float64': T.FLOAT64,
    'double': T.FLOAT64, 'bfloat16': T.BFLOAT16, 'int8': T.INT8, 'int32': T.INT32, 'int64': T.INT64, 'uint8': T.UINT8,
    'bool': T.UINT8, 'bool_': T.UINT8, 'uint32': T.UINT32, 'uint64': T.UINT64, 'float8_e4m3fn': T.FLOAT8E4M3,
    'float8_e5m2': T.FLOAT8E5M2, 'float8_e8m0fnu': T.UINT8, 'float4_e2m1fn_x2': T.FLOAT4X2,
}
_KINDS = {'i1': T.INT8, 'u1': T.UINT8, 'b1': T.UINT8, 'i4': T.INT32, 'u4': T.UINT32, 'i8': T.INT64, 'u8': T.UINT64,
          'f2': T.FLOAT16, 'f4': T.FLOAT32, 'f8': T.FLOAT64}
_FORMATS = {'b': 'i', 'h': 'i', 'i': 'i', 'l': 'i', 'q': 'i', 'B': 'u', 'c': 'u', 'H': 'u', 'I': 'u', 'L': 'u', 'Q': 'u',
            '?': 'b', 'e': 'f', 'f': 'f', 'd': 'f'}
# (code, bits, lanes) of DLPack
_DLPACK = {
    (0, 8, 1): T.INT8, (0, 32, 1): T.INT32, (0, 64, 1): T.INT64, (1, 8, 1): T.UINT8, (1, 32, 1): T.UINT32,
    (1, 64, 1): T.UINT64, (2, 16, 1): T.FLOAT16, (2, 32, 1): T.FLOAT32, (2, 64, 1): T.FLOAT64, (4, 16, 1): T.BFLOAT16,
    (6, 8, 1): T.UINT8, (10, 8, 1): T.FLOAT8E4M3, (12, 8, 1): T.FLOAT8E5M2, (14, 8, 1): T.UINT8, (17, 4, 2): T.FLOAT4X2,
}


_torch_types: dict[Any, T] = {}  # by dtype: tensors are described in every call


def datatype_of(dtype: Any) -> T:
    """An NcclDataType from one, its integer, a name, or a dtype of torch or numpy."""
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        return T(dtype)
    name = dtype if isinstance(dtype, str) else getattr(dtype, 'name', None) or getattr(dtype, '__name__', None) or str(dtype)
    name = name.rpartition('.')[2]
    if name in _NAMES:
        return _NAMES[name]
    if name in T.__members__:
        return T[name]
    raise NcclInvalid(f'no NCCL data type for {dtype!r}')


def _of_kind(kind: str, what: str) -> T:
    if kind not in _KINDS:
        raise NcclInvalid(f'no NCCL data type for {what}')
    return _KINDS[kind]


def _dense(shape: Sequence[int], strides: Sequence[int] | None, unit: int) -> bool:
    """Whether strides (in multiples of `unit` bytes per element) are those of a dense row-major array."""
    if strides is None or 0 in shape:
        return True
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n != 1 and stride != unit:
            return False
        unit *= n
    return True


def _check_dense(ok: bool, obj: Any) -> None:
    if not ok:
        raise NcclInvalid(f'{type(obj).__name__}: the tensor is not contiguous; a descriptor has no strides, so make a '
                          'contiguous copy')


def _torch(obj: Any) -> Found | None:
    torch = sys.modules.get('torch')
    if torch is None or not isinstance(obj, torch.Tensor):
        return None
    _check_dense(obj.is_contiguous(), obj)
    datatype = _torch_types.get(obj.dtype)
    if datatype is None:
        datatype = _torch_types[obj.dtype] = datatype_of(obj.dtype)
    return Found(obj.data_ptr(), tuple(obj.shape), datatype)


def _interface(obj: Any, name: str) -> Found | None:
    """__cuda_array_interface__ and __array_interface__ are the same dictionary."""
    about = getattr(obj, name, None)
    if not isinstance(about, dict):
        return None
    shape, typestr = tuple(about['shape']), about['typestr']
    if typestr[0] == '>':
        raise NcclInvalid(f'{type(obj).__name__}: big-endian data')
    if typestr[1] == 'V':  # ml_dtypes: the type string says only how wide it is
        datatype = datatype_of(getattr(obj, 'dtype', typestr))
    else:
        datatype = _of_kind(typestr[1:], typestr)
    if about.get('mask') is not None:
        raise NcclInvalid(f'{type(obj).__name__}: masked arrays cannot be described')
    _check_dense(_dense(shape, about.get('strides'), datatype.itemsize), obj)
    data = about.get('data')
    if not isinstance(data, tuple):
        return None  # a buffer object: the buffer protocol answers
    return Found(int(data[0] or 0), shape, datatype)


class _DLTensor(ctypes.Structure):
    _fields_ = [('data', c_void_p), ('device_type', c_int32), ('device_id', c_int32), ('ndim', c_int32), ('code', c_uint8),
                ('bits', c_uint8), ('lanes', c_uint16), ('shape', POINTER(c_int64)), ('strides', POINTER(c_int64)),
                ('byte_offset', c_uint64)]


class _DLVersioned(ctypes.Structure):
    """DLManagedTensorVersioned up to the tensor; the older DLManagedTensor begins with the tensor itself."""
    _fields_ = [('major', ctypes.c_uint32), ('minor', ctypes.c_uint32), ('manager', c_void_p), ('deleter', c_void_p),
                ('flags', c_uint64), ('tensor', _DLTensor)]


_DL_GPUS = (2, 10, 13)  # CUDA, ROCm, CUDA managed


# Prototypes of our own: the functions of ctypes.pythonapi are shared with every other package of the process.
_is_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(('PyCapsule_IsValid', ctypes.pythonapi))
_in_capsule = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, ctypes.c_char_p)(('PyCapsule_GetPointer', ctypes.pythonapi))


def _capsule_pointer(capsule: Any, name: bytes) -> int | None:
    return _in_capsule(capsule, name) if _is_capsule(capsule, name) else None


def _dlpack(obj: Any) -> Found | None:
    """The capsule is kept, not consumed: it releases the producer's data when the descriptor is dropped."""
    export = getattr(obj, '__dlpack__', None)
    if not callable(export):
        return None
    device = getattr(obj, '__dlpack_device__', lambda: (1, 0))()[0]
    # -1: no synchronisation, the caller names the stream in each call
    capsule = export(stream=-1) if int(device) in _DL_GPUS else export()
    at = _capsule_pointer(capsule, b'dltensor')
    if at is not None:
        tensor = _DLTensor.from_address(at)
    else:
        at = _capsule_pointer(capsule, b'dltensor_versioned')
        if at is None:
            raise NcclInvalid(f'{type(obj).__name__}: __dlpack__() gave no DLPack capsule')
        versioned = _DLVersioned.from_address(at)
        if versioned.major != 1:
            raise NcclInvalid(f'{type(obj).__name__}: DLPack {versioned.major}.{versioned.minor} is unknown')
        tensor = versioned.tensor
    kind = (tensor.code, tensor.bits, tensor.lanes)
    if kind not in _DLPACK:
        raise NcclInvalid(f'no NCCL data type for DLPack code {kind[0]}, {kind[1]} bits, {kind[2]} lanes')
    shape = tuple(tensor.shape[:tensor.ndim])
    _check_dense(_dense(shape, tensor.strides[:tensor.ndim] if tensor.strides else None, 1), obj)
    return Found((tensor.data or 0) + tensor.byte_offset, shape, _DLPACK[kind], capsule)


def _buffer(obj: Any) -> Found | None:
    try:
        view = memoryview(obj)
    except TypeError:
        return None
    letter = view.format.lstrip('@=<')
    if letter not in _FORMATS:
        raise NcclInvalid(f'no NCCL data type for the buffer format {view.format!r}')
    _check_dense(view.c_contiguous, obj)
    if view.readonly:
        raise NcclInvalid(f'{type(obj).__name__}: the buffer is read-only')
    datatype = _of_kind(f'{_FORMATS[letter]}{view.itemsize}', f'the buffer format {view.format!r}')
    held = (ctypes.c_char * view.nbytes).from_buffer(view)
    return Found(ctypes.addressof(held) if view.nbytes else 0, tuple(view.shape or ()), datatype, held)


def resolve(obj: Any) -> Found:
    """Raises NcclInvalid for what cannot be described."""
    found = _torch(obj)
    if found is None:
        found = _interface(obj, '__cuda_array_interface__')
    if found is None:
        found = _interface(obj, '__array_interface__')
    if found is None:
        found = _dlpack(obj)
    if found is None:
        found = _buffer(obj)
    if found is None:
        raise NcclInvalid(f'{type(obj).__name__} is no tensor: it has neither data_ptr, DLPack, an array interface nor a '
                          'buffer')
    return found
