# SPDX-License-Identifier: Apache-2.0
"""python -m nccl_ep.info [-e] [-n] [-p] [-h] [--json] [--check] [--dump FOLDER]: what ep_info prints, by the ep_info that came
with the library in use.

    -l, --library   instead: the versions, and the libraries that the package found
"""
from __future__ import annotations

import os
import platform
import sys

from . import __version__, bindings, core, get_lib_version
from ._load import ep_candidates
from ._version import version_of


def ep_info_path() -> str:
    """ep_info of the same installation or build as libnccl_ep, so that it speaks of the same library."""
    library = bindings.get_library_path() or ''
    home = os.path.dirname(os.path.dirname(library))
    path = os.path.join(home, 'bin', 'ep_info')
    if not os.access(path, os.X_OK):
        raise RuntimeError(f'{library} was installed without its tools: there is no {path}')
    return path


def libraries() -> str:
    """Versions and paths, as comment lines and columns like ep_info's."""
    asked = next((path for path in ep_candidates() if os.path.exists(path)), 'the linker')
    nccl = core.standin_version()
    rows = [('nccl_ep', __version__, os.path.dirname(os.path.abspath(__file__))),
            ('libnccl_ep', version_of(bindings.anyep_version()), bindings.get_library_path()),
            ('  found by', '-', asked),
            ('  NCCL EP API', get_lib_version(), '-'),
            ('stand-in', f'{nccl // 10000}.{nccl // 100 % 100}.{nccl % 100}', core._standin.get().path),
            ('python', platform.python_version(), sys.executable)]
    lines = [f'# {"what":<14} {"version":<10} where']
    return '\n'.join(lines + [f'  {name:<14} {str(version):<10} {where}' for name, version, where in rows])


def main(arguments: list[str]) -> int:
    try:
        if arguments in (['-l'], ['--library']):
            print(libraries())
            return 0
        path = ep_info_path()
    except RuntimeError as e:
        print(f'nccl_ep.info: {e}', file=sys.stderr)
        return 1
    os.execv(path, ['ep_info', *arguments])


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
