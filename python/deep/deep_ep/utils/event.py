# SPDX-License-Identifier: Apache-2.0
"""Points in a stream, and what a call returns to be waited for."""
from __future__ import annotations

from typing import Any

import torch

__all__ = ['EventHandle', 'EventOverlap']


class EventHandle:
    """A point in the current stream. Where this process has not used a GPU there is nothing to wait for."""

    def __init__(self) -> None:
        self._event: Any = None
        if torch.cuda.is_initialized():
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream())

    @classmethod
    def on(cls, stream: Any) -> EventHandle:
        """A point in this stream of a GPU."""
        made = cls.__new__(cls)
        made._event = torch.cuda.Event()
        made._event.record(stream)
        return made

    def current_stream_wait(self) -> None:
        """The current stream waits on the device; the host does not."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)


class EventOverlap:
    """What calls return: `event` is None unless they were asynchronous. As a context manager it waits at the end.

    extra_tensors live as long as this object.
    """

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None):
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        """The current stream waits for the event, which must be there."""
        assert self.event is not None, 'the call was not asynchronous: there is no event to wait for'
        self.event.current_stream_wait()

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.event is not None:
            self.event.current_stream_wait()
