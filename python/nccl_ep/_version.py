# SPDX-License-Identifier: Apache-2.0
"""The release of the package, and version numbers of libraries."""
from __future__ import annotations

from typing import Any, NamedTuple

__version__ = '0.1.0'  # that of meson.build


class _Release(NamedTuple):
    """What is used of packaging.version.Version, where packaging is not installed."""
    major: int
    minor: int
    micro: int

    def __str__(self) -> str:
        return f'{self.major}.{self.minor}.{self.micro}'


def version_of(code: int) -> Any:
    """packaging.version.Version of a version code, or a tuple (major, minor, micro) without packaging."""
    release = _Release(code // 10000, code // 100 % 100, code % 100)
    try:
        from packaging.version import Version
    except ImportError:
        return release
    return Version(str(release))
