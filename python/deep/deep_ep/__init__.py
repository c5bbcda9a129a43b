# SPDX-License-Identifier: Apache-2.0
"""deep_ep, by AnyEP: the interface of DeepEP 1.2.1 over nccl_ep, with the torch that is installed.

Buffer serves the high-throughput and the low-latency calls, within a node and between nodes, on GPUs and on CPUs. Importing
it opens no library and touches no device.
"""
import torch as _torch

from . import utils
from .buffer import Buffer
from .config import Config
from .utils.event import EventHandle, EventOverlap

__all__ = ['Buffer', 'Config', 'EventHandle', 'EventOverlap', '__version__', 'topk_idx_t', 'utils']
__version__ = '1.2.1'

topk_idx_t = _torch.int64
