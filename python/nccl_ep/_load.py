# SPDX-License-Identifier: Apache-2.0
"""Finds and opens libnccl_ep and the stand-in communicator, at first use and never at import.

libnccl_ep is searched in $NCCL_EP_HOME (lib, lib64), then in lib/ beside this file, then where the linker searches. The
stand-in lies beside libnccl_ep under a SONAME of its own, libnccl_ep_standin.so: with NCCL's, a torch that is imported
afterwards would be given the stand-in for its NCCL.
"""
from __future__ import annotations

import ctypes
import os
import pathlib
import threading
from typing import Any, Callable, Mapping, Sequence

from .errors import FunctionNotFoundError

EP_NAMES = ('libnccl_ep.so.0', 'libnccl_ep.so')
STANDIN_NAME = 'libnccl_ep_standin.so'
HERE = pathlib.Path(__file__).resolve().parent
# How a function is called: its result type, then its arguments' types.
Prototypes = Mapping[str, Sequence[Any]]


class _LinkMap(ctypes.Structure):
    """The public head of link_map (link.h)."""
    _fields_ = [('l_addr', ctypes.c_size_t), ('l_name', ctypes.c_char_p)]


def _path_of(dll: ctypes.CDLL) -> str:
    """The file of an open library, '' for the program itself."""
    link_map = ctypes.POINTER(_LinkMap)()
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    if dlinfo(dll._handle, 2, ctypes.byref(link_map)):  # RTLD_DI_LINKMAP
        return ''
    name = link_map.contents.l_name
    return os.path.realpath(os.fsdecode(name)) if name else ''


class Library:
    """An open library whose functions are attributes, with their prototypes set; a missing one fails at its first use."""

    def __init__(self, dll: ctypes.CDLL, prototypes: Prototypes):
        self._dll, self._prototypes = dll, prototypes
        self.path = _path_of(dll)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith('_') or name not in self._prototypes:
            raise AttributeError(name)
        try:
            function = getattr(self._dll, name)
        except AttributeError:
            raise FunctionNotFoundError(name, self.path) from None
        function.restype, *arguments = self._prototypes[name]
        function.argtypes = arguments
        setattr(self, name, function)
        return function


class Once:
    """A library that is opened by the first get(); a failure is not remembered, the next get() tries again."""

    def __init__(self, opener: Callable[[], Library]):
        self._opener, self._lock = opener, threading.Lock()
        self._library: Library | None = None

    def get(self) -> Library:
        if self._library is not None:
            return self._library
        with self._lock:
            if self._library is None:
                self._library = self._opener()
            return self._library

    @property
    def loaded(self) -> Library | None:
        return self._library


def _open(what: str, candidates: Sequence[str], mode: int) -> ctypes.CDLL:
    """The first candidate that opens. A file that is there but does not open is an error, not a reason to go on."""
    for path in candidates:
        if os.sep in path and not os.path.exists(path):
            continue
        try:
            return ctypes.CDLL(path, mode=mode)
        except OSError as e:
            if os.sep in path:
                raise RuntimeError(f'Failed to dlopen {what} ({path}): {e}') from e
    raise RuntimeError(f'Failed to dlopen {what} ({", ".join(candidates)}): not found; install the package with its '
                       'libraries, or set NCCL_EP_HOME to a folder whose lib/ has them')


def ep_candidates() -> list[str]:
    """Where libnccl_ep is searched, in this order; bare names are the linker's."""
    home = os.environ.get('NCCL_EP_HOME')
    folders = [os.path.join(home, name) for name in ('lib', 'lib64')] if home else []
    folders.append(str(HERE / 'lib'))
    return [os.path.join(folder, name) for folder in folders for name in EP_NAMES] + list(EP_NAMES)


def open_ep(prototypes: Prototypes) -> Library:
    """libnccl_ep, with global symbols: some callers find its functions by CDLL(None)."""
    return Library(_open('libnccl_ep', ep_candidates(), os.RTLD_NOW | os.RTLD_GLOBAL), prototypes)


def open_standin(ep: Library, prototypes: Prototypes) -> Library:
    """The stand-in beside libnccl_ep or this package, with local symbols: NCCL's names in it must not reach others."""
    folder = os.path.dirname(ep.path)
    candidates = [os.path.join(folder, STANDIN_NAME), str(HERE / 'lib' / STANDIN_NAME), STANDIN_NAME]
    return Library(_open('libnccl_ep_standin', candidates, os.RTLD_NOW | os.RTLD_LOCAL), prototypes)


def open_nccl(prototypes: Prototypes) -> Library | None:
    """The NCCL or RCCL that this process has loaded already, or None."""
    for name in ('libnccl.so.2', 'librccl.so.1'):
        try:
            return Library(ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_NOLOAD), prototypes)
        except OSError:
            pass
    program = ctypes.CDLL(None)  # a program may have NCCL linked in
    return Library(program, prototypes) if hasattr(program, 'ncclCommCount') else None
