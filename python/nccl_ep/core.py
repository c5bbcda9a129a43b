# SPDX-License-Identifier: Apache-2.0
"""Communicators: what Group.create needs of NCCL, by the names of nccl.core.

Communicator.init makes one of the stand-in, which needs no NCCL and no GPU, and allows several ranks on one. A
communicator of NCCL or RCCL that exists already is wrapped: Communicator(ptr=...), or Communicator.from_torch.
"""
from __future__ import annotations

import ctypes
import pathlib
import sys
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any

from . import _load, bindings
from ._buffers import resolve
from ._config import ptr_of
from ._version import __version__, version_of
from .enums import NcclDataType
from .errors import FunctionNotFoundError, NCCLError, NcclInvalid

__all__ = ['Communicator', 'LibraryInfo', 'Memory', 'NcclDataType', 'NcclInvalid', 'RegisteredWindowHandle', 'UniqueId',
           'VersionInfo', 'get_unique_id', 'get_version', 'mem_alloc', 'mem_free', 'standin_version']

WIN_COLL_SYMMETRIC = 1


class _Id(ctypes.Structure):
    _fields_ = [('internal', ctypes.c_char * 128)]


class _Query(ctypes.Structure):
    """The head of what ncclEpStandinQuery returns (plugin/standin/query.h)."""
    _fields_ = [('version', c_uint32), ('size', c_uint32), ('owns', ctypes.CFUNCTYPE(c_bool, c_void_p))]


_P = c_void_p
PROTOTYPES = {
    'ncclGetVersion': (c_int, POINTER(c_int)),
    'ncclGetLastError': (c_char_p, _P),
    'ncclGetErrorString': (c_char_p, c_int),
    'ncclGetUniqueId': (c_int, POINTER(_Id)),
    'ncclCommInitRank': (c_int, POINTER(_P), c_int, _Id, c_int),
    'ncclCommInitRankConfig': (c_int, POINTER(_P), c_int, _Id, c_int, _P),
    'ncclCommSplit': (c_int, _P, c_int, c_int, POINTER(_P), _P),
    'ncclCommFinalize': (c_int, _P),
    'ncclCommDestroy': (c_int, _P),
    'ncclCommAbort': (c_int, _P),
    'ncclCommGetAsyncError': (c_int, _P, POINTER(c_int)),
    'ncclCommCount': (c_int, _P, POINTER(c_int)),
    'ncclCommUserRank': (c_int, _P, POINTER(c_int)),
    'ncclCommCuDevice': (c_int, _P, POINTER(c_int)),
    'ncclMemAlloc': (c_int, POINTER(_P), c_size_t),
    'ncclMemFree': (c_int, _P),
    'ncclCommWindowRegister': (c_int, _P, _P, c_size_t, POINTER(_P), c_int),
    'ncclCommWindowDeregister': (c_int, _P, _P),
    'ncclEpStandinQuery': (POINTER(_Query),),
}

_standin = _load.Once(lambda: _load.open_standin(bindings.library(), PROTOTYPES))


def _owner(comm: int) -> _load.Library:
    """The library that made the communicator. The stand-in can tell; NCCL would crash on a pointer that is not its own."""
    standin = _standin.loaded
    if standin is not None and standin.ncclEpStandinQuery().contents.owns(comm):
        return standin
    nccl = _load.open_nccl(PROTOTYPES)
    if nccl is None:
        raise NcclInvalid(f'{comm:#x} is no live communicator of the stand-in, and no NCCL or RCCL is loaded')
    return nccl


def _call(library: _load.Library, name: str, *arguments: Any, comm: int = 0) -> None:
    status = getattr(library, name)(*arguments)
    if status:
        try:
            text = library.ncclGetLastError(comm or None)
        except FunctionNotFoundError:
            text = None
        raise NCCLError(status, (text or library.ncclGetErrorString(status) or b'').decode(errors='replace'), name)


def standin_version() -> int:
    """The NCCL version that the stand-in offers, as ncclGetVersion codes it."""
    out = c_int()
    _call(_standin.get(), 'ncclGetVersion', byref(out))
    return out.value


@dataclass(frozen=True)
class LibraryInfo:
    """version: packaging.version.Version, a tuple without packaging. cuda_variant: None, the libraries need no CUDA."""
    version: Any
    cuda_variant: Any
    path: pathlib.Path | None


@dataclass(frozen=True)
class VersionInfo:
    """The fields of nccl4py 0.6 (nccl4py, nccl_bindings, libnccl) and those of 0.3 (nccl, nccl_ep). nccl4py is this package's
    release; libnccl and nccl are the stand-in with the NCCL version that it offers."""
    nccl4py: Any
    nccl_bindings: Any
    libnccl: LibraryInfo
    nccl: LibraryInfo
    nccl_ep: LibraryInfo


def get_version() -> VersionInfo:
    """Versions and files of the libraries, which this call opens."""
    standin = LibraryInfo(version_of(standin_version()), None, _path(_standin.get().path))
    ep = LibraryInfo(version_of(bindings.get_version()), None, _path(bindings.get_library_path()))
    major, minor, micro = (int(part) for part in __version__.split('.'))
    return VersionInfo(nccl4py=version_of(10000 * major + 100 * minor + micro), nccl_bindings=standin.version, libnccl=standin,
                       nccl=standin, nccl_ep=ep)


def _path(name: str | None) -> pathlib.Path | None:
    return pathlib.Path(name) if name else None


class UniqueId:
    """The 128 bytes by which the ranks of a communicator find each other; picklable. They contain a secret."""
    __slots__ = ('_bytes',)

    def __init__(self, data: bytes = bytes(128)):
        if len(data) != 128:
            raise NcclInvalid(f'a unique id has 128 bytes, not {len(data)}')
        self._bytes = bytes(data)

    @classmethod
    def from_bytes(cls, data: bytes) -> UniqueId:
        return cls(data)

    @property
    def as_bytes(self) -> bytes:
        return self._bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UniqueId) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __reduce__(self):
        return UniqueId, (self._bytes,)

    def __repr__(self) -> str:
        return '<UniqueId>' if any(self._bytes) else '<UniqueId empty>'  # the secret is not for logs


def get_unique_id(empty: bool = False) -> UniqueId:
    """A new id, for one rank to make and all to be given; empty: room for one that will be received."""
    if empty:
        return UniqueId()
    made = _Id()
    _call(_standin.get(), 'ncclGetUniqueId', byref(made))
    return UniqueId(bytes(made))


class Memory:
    """Memory of ncclMemAlloc: of the current device, shareable with other processes; host memory without a GPU."""

    def __init__(self, handle: int, size: int):
        self._handle, self.size = handle, size

    @property
    def handle(self) -> int:
        """The address."""
        if not self._handle:
            raise NcclInvalid('Cannot access handle: Memory has been closed')
        return self._handle

    def close(self) -> None:
        """Frees it; a second call does nothing."""
        handle, self._handle = self._handle, 0
        if handle:
            _call(_standin.get(), 'ncclMemFree', handle)

    def __repr__(self) -> str:
        return f'<Memory handle={self._handle:#x} size={self.size}>' if self._handle else '<Memory closed>'


def mem_alloc(size: int, device: Any = None) -> Memory:
    """device: None for the current one; an index needs torch, which then makes it current for this call."""
    out = c_void_p()
    if device is None:
        _call(_standin.get(), 'ncclMemAlloc', byref(out), size)
    else:
        torch = sys.modules.get('torch')
        if torch is None:
            raise NcclInvalid(f'device {device}: make it the current device and pass None; without torch this cannot')
        with torch.cuda.device(device):
            _call(_standin.get(), 'ncclMemAlloc', byref(out), size)
    return Memory(out.value or 0, size)


def mem_free(memory: Memory) -> None:
    """The same as memory.close()."""
    memory.close()


class RegisteredWindowHandle:
    """A window of a communicator: memory that peers may access. Tensor takes it as `window`."""

    def __init__(self, comm: Communicator, handle: int, user_ptr: int, size: int, keep: Any):
        self._comm, self._handle, self._keep = comm, handle, keep
        self.user_ptr, self.size = user_ptr, size

    @property
    def handle(self) -> int:
        """The ncclWindow_t."""
        if not self._handle:
            raise NcclInvalid('Cannot access handle: the window has been closed')
        return self._handle

    def close(self) -> None:
        """Deregisters it; a second call does nothing."""
        handle, self._handle, self._keep = self._handle, 0, None
        if handle:
            self._comm._call('ncclCommWindowDeregister', handle)

    def __repr__(self) -> str:
        return f'<RegisteredWindowHandle handle={self._handle:#x}>' if self._handle else '<RegisteredWindowHandle closed>'


def _extent(buffer: Any) -> tuple[int, int]:
    """Address and bytes."""
    if isinstance(buffer, Memory):
        return buffer.handle, buffer.size
    found = resolve(buffer)
    count = 1
    for n in found.shape:
        count *= n
    return found.data, count * found.datatype.itemsize


class Communicator:
    """An ncclComm_t. init() makes one; Communicator(ptr=...) wraps one that exists, whose owner destroys it."""

    def __init__(self, ptr: int | None = None):
        self._ptr = int(ptr or 0)
        self._library: _load.Library | None = None

    @classmethod
    def init(cls, nranks: int, rank: int, unique_id: UniqueId, config: Any = None) -> Communicator:
        """A communicator of the stand-in. Collective: returns when all ranks have called it. config: an ncclConfig_t."""
        library, out = _standin.get(), c_void_p()
        made = _Id.from_buffer_copy(unique_id.as_bytes)
        if config is None:
            _call(library, 'ncclCommInitRank', byref(out), nranks, made, rank)
        else:
            _call(library, 'ncclCommInitRankConfig', byref(out), nranks, made, rank, ptr_of(config))
        comm = cls(out.value or 0)
        comm._library = library
        return comm

    @classmethod
    def from_torch(cls, group: Any = None) -> Communicator:
        """The NCCL or RCCL communicator of a torch.distributed process group, on the current device; torch owns it.

        For any other backend, and for several ranks on one GPU, make one: interop.torch.get_nccl_comm_from_group.
        """
        from .interop.torch import comm_ptr
        return cls(comm_ptr(group))

    def _live(self, operation: str) -> int:
        if not self._ptr:
            raise NcclInvalid(f'Cannot {operation}: Communicator is not initialized or has been destroyed')
        return self._ptr

    def _call(self, name: str, *arguments: Any) -> None:
        ptr = self._live(name)
        if self._library is None:
            self._library = _owner(ptr)
        _call(self._library, name, ptr, *arguments, comm=ptr)

    def _int(self, name: str) -> int:
        out = c_int()
        self._call(name, byref(out))
        return out.value

    @property
    def ptr(self) -> int:
        """The ncclComm_t."""
        return self._live('access ptr')

    @property
    def rank(self) -> int:
        return self._int('ncclCommUserRank')

    @property
    def nranks(self) -> int:
        return self._int('ncclCommCount')

    @property
    def device(self) -> int:
        """The GPU of this rank; -1 for the CPU device."""
        return self._int('ncclCommCuDevice')

    def get_async_error(self) -> int:
        """An ncclResult_t: whether the communicator has failed."""
        return self._int('ncclCommGetAsyncError')

    @property
    def is_valid(self) -> bool:
        """Whether there is a communicator: not after destroy() and abort()."""
        return bool(self._ptr)

    def get_last_error(self) -> str:
        """The message of the communicator's failure, else of this thread's last one."""
        ptr = self._live('get last error')
        if self._library is None:
            self._library = _owner(ptr)
        return (self._library.ncclGetLastError(ptr) or b'').decode(errors='replace')

    def split(self, color: int | None = None, key: int = 0, config: Any = None) -> Communicator:
        """Collective: a communicator of the ranks with the same color, ordered by key; none (not valid) for color None."""
        out = c_void_p()
        self._call('ncclCommSplit', -1 if color is None else color, key, byref(out), ptr_of(config))
        comm = Communicator(out.value)
        comm._library = self._library
        return comm

    def register_window(self, buffer: Any, flags: int | None = None) -> RegisteredWindowHandle:
        """Collective. buffer: of mem_alloc, or a tensor that lies in such memory. flags: default symmetric."""
        user_ptr, size = _extent(buffer)
        out = c_void_p()
        self._call('ncclCommWindowRegister', user_ptr, size, byref(out), WIN_COLL_SYMMETRIC if flags is None else flags)
        return RegisteredWindowHandle(self, out.value or 0, user_ptr, size, buffer)

    def finalize(self) -> None:
        """Waits for what is under way."""
        self._call('ncclCommFinalize')

    def destroy(self) -> None:
        """Frees it; a second call does nothing."""
        if self._ptr:
            self._call('ncclCommDestroy')
            self._ptr = 0

    def abort(self) -> None:
        """Frees it without waiting for the other ranks; a second call does nothing."""
        if self._ptr:
            self._call('ncclCommAbort')
            self._ptr = 0

    def __repr__(self) -> str:
        return f'<Communicator ptr={self._ptr:#x}>' if self._ptr else '<Communicator destroyed>'
