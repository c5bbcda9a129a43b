#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine of every layout on the CPU device, with ranks as threads and as processes."""
import unittest

import ranks
import rounds


class Threads(unittest.TestCase):
    """The library's calls block: they must not hold the interpreter's lock, or two ranks of a process wait for ever."""


class Processes(unittest.TestCase):
    def test_everything(self):
        ranks.as_processes(rounds.everything)

    def test_two_nodes(self):
        """LL between pretended nodes of one rank each: rows go by the transport."""
        ranks.as_processes(rounds.ll_two_nodes, NCCL_EP_RANKS_PER_NODE='1')

    def test_ht_two_nodes(self):
        ranks.as_processes(rounds.ht_two_nodes, NCCL_EP_RANKS_PER_NODE='1')

    def test_three_ranks(self):
        ranks.as_processes(rounds.ht_flat, ranks=3)


def _threads(function):
    return lambda self: ranks.as_threads(function)


for _round in rounds.ROUNDS:
    setattr(Threads, 'test_' + _round.__name__, _threads(_round))

if __name__ == '__main__':
    ranks.main('__main__')
