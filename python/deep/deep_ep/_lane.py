# SPDX-License-Identifier: Apache-2.0
"""Where operations run: on the calling thread of the CPU device; on a GPU on the caller's stream, or on one of their own
where the caller wants to go on meanwhile.
"""
from __future__ import annotations

from typing import Any, Iterable

import torch

from .utils.event import EventHandle, EventOverlap

__all__ = ['HostLane', 'GpuLane', 'flags_check']


def flags_check(previous_event: EventOverlap | None, async_finish: bool) -> None:
    """DeepEP's rule for allocate_on_comm_stream: the caller must order both streams by events."""
    assert previous_event is not None and async_finish, 'allocate_on_comm_stream needs previous_event and async_finish'


class HostLane:
    """The CPU device: a call has done its work when it returns, so that there is nothing to order."""

    def enter(self, previous_event: EventOverlap | None, own: bool) -> Any:
        """Begins an operation after previous_event, else after all work of the current stream. own: not on that stream.
        Returns the stream to come back to, None where the operation runs on it."""

    def leave(self, compute: Any) -> None:
        """Returns to the caller's stream."""

    def done(self, compute: Any, async_finish: bool, taken: Iterable[Any], made: Iterable[Any]) -> EventOverlap:
        """Ends an operation that has read tensors of the caller and made new ones."""
        return EventOverlap(EventHandle() if async_finish else None)

    def current(self) -> int:
        """The current stream, as the library takes it."""
        return 0

    def turn(self) -> int:
        """The current stream, for an operation that may only begin when the one before it has ended."""
        return 0

    def fetch(self, numbers: torch.Tensor) -> Any:
        """Numbers that the host will read, by tolist(): begins their copy."""
        return numbers

    def torch_stream(self) -> Any:
        """The stream of operations, as torch knows it."""
        return torch.cpu.current_stream()


class _Copy:
    """Numbers on their way from the GPU. Reading them waits for the copy, not for what the stream does after it."""

    def __init__(self, numbers: torch.Tensor):
        self._numbers, self._version = numbers, numbers._version
        self._host = torch.empty(numbers.shape, dtype=numbers.dtype, device='cpu', pin_memory=True)
        self._event = torch.cuda.Event()
        self._host.copy_(numbers, non_blocking=True)
        self._event.record()

    def tolist(self) -> list[int]:
        if self._numbers._version != self._version:  # changed in place since
            return self._numbers.tolist()
        self._event.synchronize()
        return self._host.tolist()


class GpuLane(HostLane):
    """Operations that nothing overlaps run on the caller's stream: it would wait for them all the same, and there they need
    no events, and the allocator no second stream. The others run on a stream for communication, where their tensors are
    allocated; these are made known to both streams' allocators.
    """

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self._ptr = self.stream.cuda_stream
        self._device = self.stream.device_index
        self._events: list[Any] = []  # free ones
        self._last, self._last_ptr = self.stream, self._ptr  # of the last operation that had a turn
        # Without a Stream object, which takes longer to make than all else of a call to the library.
        self._raw = getattr(torch._C, '_cuda_getCurrentRawStream', None)

    def enter(self, previous_event: EventOverlap | None, own: bool) -> Any:
        event = None if previous_event is None else previous_event.event
        if event is None and not own:
            return None
        compute = torch.cuda.current_stream()
        torch.cuda.set_stream(self.stream)
        if event is None:
            self._wait(self.stream, compute)
        else:
            event.current_stream_wait()
        return compute

    def _wait(self, stream: Any, other: Any) -> None:
        """What wait_stream does. The event may be recorded again at once: a wait is for what had been when it was queued."""
        event = self._events.pop() if self._events else torch.cuda.Event()
        event.record(other)
        stream.wait_event(event)
        self._events.append(event)

    def leave(self, compute: Any) -> None:
        if compute is not None:
            torch.cuda.set_stream(compute)

    def done(self, compute: Any, async_finish: bool, taken: Iterable[Any], made: Iterable[Any]) -> EventOverlap:
        if compute is None:
            return EventOverlap()
        for tensor in made:
            if tensor is not None:
                tensor.record_stream(compute)
        if not async_finish:
            # What it has read may be used again behind this wait, so that the allocator need not know.
            self._wait(compute, self.stream)
            return EventOverlap()
        for tensor in taken:
            if tensor is not None:
                tensor.record_stream(self.stream)
        return EventOverlap(EventHandle.on(self.stream))

    def current(self) -> int:
        return self._raw(self._device) if self._raw is not None else torch.cuda.current_stream().cuda_stream

    def turn(self) -> int:
        ptr = self.current()
        if ptr != self._last_ptr:
            self._follow(ptr)
        return ptr

    def _follow(self, ptr: int) -> None:
        """Operations share memory. A stream that is being captured can wait for nothing outside: there it is the caller who
        orders replays."""
        if torch.cuda.is_current_stream_capturing():
            return
        current = torch.cuda.current_stream()
        self._wait(current, self._last)
        self._last, self._last_ptr = current, ptr

    def fetch(self, numbers: torch.Tensor) -> Any:
        # An event of a capture cannot be waited for, and tensors of inference do not tell when they are changed.
        if torch.cuda.is_current_stream_capturing() or numbers.is_inference():
            return numbers
        return _Copy(numbers)

    def torch_stream(self) -> Any:
        return self.stream
