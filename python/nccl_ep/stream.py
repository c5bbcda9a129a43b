# SPDX-License-Identifier: Apache-2.0
"""Streams: what a `stream` argument may be, and streams of the CPU device."""
from __future__ import annotations

from typing import Any

from . import bindings
from .errors import NcclInvalid

__all__ = ['HostStream', 'hold', 'stream_ptr']


def stream_ptr(stream: Any) -> int:
    """The cudaStream_t of an int, an object with __cuda_stream__() or .cuda_stream, or None: stream 0."""
    if stream is None:
        return 0
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, '__cuda_stream__', None)
    if callable(protocol):
        return int(protocol()[1])
    native = getattr(stream, 'cuda_stream', None)  # torch.cuda.Stream before it had the protocol
    if isinstance(native, int) and not isinstance(native, bool):
        return native
    raise TypeError(f'stream: an int, None, or an object with __cuda_stream__() is needed, not {type(stream).__name__}')


_orphans: list[Any] = []


class HostStream:
    """A stream of the CPU device: a thread that runs operations in order, so that calls return before they are done.

    It is accepted as `stream` on communicators without a GPU, and holds the arguments of the operations given to it until
    synchronize() or destroy(), which runs what is left: host memory has no allocator that knows of streams.
    """

    def __init__(self) -> None:
        self._ptr = bindings.host_stream_create()
        self._held: list[Any] = []

    @property
    def ptr(self) -> int:
        if not self._ptr:
            raise NcclInvalid('Cannot use: HostStream is not initialized or has been destroyed')
        return self._ptr

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def synchronize(self) -> None:
        """Waits for everything launched so far."""
        held = len(self._held)
        bindings.host_stream_synchronize(self.ptr)
        del self._held[:held]  # not what another thread has launched since

    def destroy(self) -> None:
        """Runs what is left and ends the thread; a second call does nothing."""
        ptr, self._ptr = self._ptr, 0
        if ptr:
            bindings.host_stream_destroy(ptr)
            self._held.clear()

    def __del__(self) -> None:
        # Dropped without destroy(): its operations may still run, and waiting for other ranks is not the collector's task.
        if getattr(self, '_ptr', 0) and self._held:
            _orphans.append(self._held)

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.destroy()

    def __repr__(self) -> str:
        return f'<HostStream ptr={self._ptr:#x}>' if self._ptr else '<HostStream destroyed>'


def hold(stream: Any, *arguments: Any) -> None:
    """Keeps the arguments of an operation alive where the stream can tell when it is done."""
    if isinstance(stream, HostStream):
        stream._held.append(arguments)
