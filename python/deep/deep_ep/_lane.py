# SPDX-License-Identifier: Apache-2.0
"""Where operations run: a stream of their own on a GPU, the calling thread on the CPU device."""
from __future__ import annotations

from typing import Any, Iterable

import torch

from .utils.event import EventHandle, EventOverlap

__all__ = ['HostLane', 'GpuLane', 'flags_check']


def flags_check(previous_event: EventOverlap | None, async_finish: bool, allocate_on_comm_stream: bool) -> None:
    """DeepEP's rule: memory of the communication stream is safe only where the caller orders both streams by events."""
    if allocate_on_comm_stream:
        assert previous_event is not None and async_finish, 'allocate_on_comm_stream needs previous_event and async_finish'


class HostLane:
    """The CPU device: a call has done its work when it returns, so that there is nothing to order."""
    ptr = 0  # of the stream of operations, as the library takes it

    def enter(self, previous_event: EventOverlap | None) -> Any:
        """Begins an operation after previous_event, else after all work of the current stream."""

    def leave(self, compute: Any) -> None:
        """Returns to the caller's stream."""

    def done(self, compute: Any, async_finish: bool, taken: Iterable[Any], made: Iterable[Any]) -> EventOverlap:
        """Ends an operation that has read tensors of the caller and made new ones."""
        return EventOverlap(EventHandle() if async_finish else None)

    def current(self) -> int:
        """The caller's stream, as the library takes it."""
        return 0

    def torch_stream(self) -> Any:
        """The stream of operations, as torch knows it."""
        return torch.cpu.current_stream()


class GpuLane(HostLane):
    """A stream for communication. Tensors are allocated on it, and known to both streams' allocators."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.ptr = self.stream.cuda_stream

    def enter(self, previous_event: EventOverlap | None) -> Any:
        compute = torch.cuda.current_stream()
        torch.cuda.set_stream(self.stream)
        if previous_event is not None and previous_event.event is not None:
            previous_event.current_stream_wait()
        else:
            torch.cuda.current_stream().wait_stream(compute)
        return compute

    def leave(self, compute: Any) -> None:
        torch.cuda.set_stream(compute)

    def done(self, compute: Any, async_finish: bool, taken: Iterable[Any], made: Iterable[Any]) -> EventOverlap:
        for tensor in taken:
            if tensor is not None:
                tensor.record_stream(self.stream)
        for tensor in made:
            if tensor is not None:
                tensor.record_stream(compute)
        if async_finish:
            with torch.cuda.stream(self.stream):
                return EventOverlap(EventHandle())
        compute.wait_stream(self.stream)
        return EventOverlap()

    def current(self) -> int:
        return torch.cuda.current_stream().cuda_stream

    def torch_stream(self) -> Any:
        return self.stream
