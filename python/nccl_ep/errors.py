# SPDX-License-Identifier: Apache-2.0
"""What the package raises."""
from __future__ import annotations

from .enums import NcclResult

__all__ = ['FunctionNotFoundError', 'NCCLEpError', 'NCCLError', 'NcclInvalid']


def _name(status: int) -> str:
    try:
        return ''.join(word.capitalize() for word in NcclResult(status).name.split('_'))
    except ValueError:
        return 'unknown'


class NCCLError(Exception):
    """A call of the communicator's library failed.

    status: its ncclResult_t. message: what the library says about it, '' if it says nothing. function: the C function.
    """
    what = 'NCCL'

    def __init__(self, status: int, message: str = '', function: str = ''):
        self.status, self.message, self.function = int(status), message, function
        text = f'{self.what} error code {self.status}'
        if function:
            text += f' ({_name(self.status)}) of {function}'
        super().__init__(f'{text}: {message}' if message else text)

    def __reduce__(self):
        return type(self), (self.status, self.message, self.function)


class NCCLEpError(NCCLError):
    """A call of libnccl_ep failed; message is anyEpGetLastError's of the calling thread."""
    what = 'NCCL EP'


class NcclInvalid(Exception):
    """An object of this package was misused: it is destroyed, or it cannot be described to the library."""


class FunctionNotFoundError(RuntimeError):
    """The library that was loaded has no such function."""

    def __init__(self, name: str, path: str = ''):
        self.name, self.path = name, path
        super().__init__(f'function {name} is not found' + (f' in {path}' if path else ''))

    def __reduce__(self):
        return type(self), (self.name, self.path)
