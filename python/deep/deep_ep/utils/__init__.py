# SPDX-License-Identifier: Apache-2.0
"""The names that Megatron and Primus-Turbo take from deep_ep.utils."""
from ..config import Config
from .event import EventHandle, EventOverlap

__all__ = ['Config', 'EventHandle', 'EventOverlap']
