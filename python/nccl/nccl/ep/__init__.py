# SPDX-License-Identifier: Apache-2.0
"""nccl.ep, by AnyEP: the modules of nccl_ep under NVIDIA's name, the same objects.

nccl.core stays nccl4py's where that is installed; else it is nccl_ep.core, the stand-in communicator, as soon as this
module has been imported. So is nccl.get_version, which nccl4py has lost after 0.3 and TensorRT-LLM asks.
"""
import importlib as _importlib
import importlib.util as _util
import sys as _sys

import nccl_ep as _nccl_ep
from nccl_ep import *  # noqa: F401,F403
from nccl_ep import __all__, __version__  # noqa: F401


def _alias(name, target):
    module = _sys.modules[name] = _importlib.import_module(target)
    parent, _, leaf = name.rpartition('.')
    setattr(_sys.modules[parent], leaf, module)


for _name in ('allocator', 'enums', 'group', 'handle', 'tensor', 'interop', 'interop.torch'):
    _alias(f'{__name__}.{_name}', f'{_nccl_ep.__name__}.{_name}')
if 'nccl.core' not in _sys.modules and _util.find_spec('nccl.core') is None:
    _alias('nccl.core', 'nccl_ep.core')
if not hasattr(_sys.modules['nccl'], 'get_version'):
    _sys.modules['nccl'].get_version = _importlib.import_module('nccl_ep.core').get_version
