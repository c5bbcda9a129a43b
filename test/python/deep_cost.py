#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What deep_ep's calls cost on the host beside the C library's: prints the least and the median of many calls, with C's
time, in which all waits are, taken out. One rank and one token, so that torch's own work on data is small. A goal is for
the least, which other load on the machine does not change, and for a machine on which the yardstick takes 105 us: on a
slower one it is as much larger."""
import statistics
import sys
import threading
import time

import torch

import deep_ep
from deep_ranks import DEVICE, GPU, Comm
from nccl_ep import bindings

CALLS = 300
YARDSTICK_US = 105


def yardstick():
    """How much slower than one on which it takes YARDSTICK_US this machine is just now, by calls such as ours; at least 1."""
    def call(number, shape=None, **more):
        return number, shape, more

    taken = []
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        for i in range(20):
            tensor = torch.empty(1, 4, dtype=torch.int64)
            call(tensor.data_ptr(), shape=tensor.shape, index=i)
            tensor.view(4)
        taken.append(time.perf_counter_ns() - start)
    return max(1, min(taken) / 1000 / YARDSTICK_US)


class Clock:
    """Adds up the time spent in the C library's functions."""

    def __init__(self):
        self.inside = 0
        library = bindings.library()
        for name in bindings.PROTOTYPES:
            setattr(library, name, self._timed(getattr(library, name)))

    def _timed(self, function):
        def call(*arguments):
            start = time.perf_counter_ns()
            try:
                return function(*arguments)
            finally:
                self.inside += time.perf_counter_ns() - start
        return call

    def measure(self, call, before):
        """Microseconds outside C: the least and the median. before: what comes before each call, and is not measured."""
        taken = []
        for _ in range(CALLS):
            before()
            if GPU:
                torch.cuda.synchronize()
            self.inside, start = 0, time.perf_counter_ns()
            call()
            taken.append(time.perf_counter_ns() - start - self.inside)
        return min(taken) / 1000, statistics.median(taken[CALLS // 10:]) / 1000


def main():
    torch.set_num_threads(1)
    clock = Clock()
    buffer = deep_ep.Buffer(None, comm=Comm(0, 1, [None], threading.Barrier(1)))
    x = torch.randn(1, 512, device=DEVICE).bfloat16()
    idx, weights = torch.zeros(1, 1, dtype=torch.int64, device=DEVICE), torch.ones(1, 1, device=DEVICE)
    given, last = {}, []

    def layout():
        per_rank, _, per_expert, owned, _ = buffer.get_dispatch_layout(idx, 4)
        given.update(num_tokens_per_rank=per_rank, num_tokens_per_expert=per_expert, is_token_in_rank=owned)

    def dispatch():
        return buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **given)

    layout()
    rows, _, _, _, handle, _ = dispatch()

    def ll_dispatch():
        got = buffer.low_latency_dispatch(x, idx, 4, 4, use_fp8=False, return_recv_hook=True)
        got[4]()
        last[:] = [got]

    def ll_fp8(**more):
        buffer.low_latency_dispatch(x, idx, 4, 4, return_recv_hook=True, **more)[4]()

    def ll_combine():
        buffer.low_latency_combine(last[0][0], idx, weights, last[0][2], return_recv_hook=True)[2]()

    slow = 0
    for name, call, goal in (
            ('get_dispatch_layout', layout, 0),
            ('dispatch', dispatch, 60),
            ('dispatch with a handle', lambda: buffer.dispatch(x, handle=handle), 0),
            ('combine', lambda: buffer.combine(rows, handle), 0),
            ('low_latency_dispatch and hook', ll_dispatch, 30),
            ('low_latency_combine and hook', ll_combine, 0),
            ('low_latency_dispatch of fp8', ll_fp8, 30),
            ('... with exponents', lambda: ll_fp8(round_scale=True, use_ue8m0=True), 30)):
        # As callers do: counts come from the layout just before.
        least, median = clock.measure(call, layout if call is dispatch else lambda: None)
        goal = round(goal * yardstick())
        missed = goal and least > goal
        slow += missed
        print(f'{name:32} {least:7.1f} us, median {median:7.1f}' + (f'  (goal {goal}' if goal else '') +
              (', missed)' if missed else ')' if goal else ''))
    return 1 if slow and not GPU else 0  # the goals were met on the CPU device; on a GPU it is a table


if __name__ == '__main__':
    sys.exit(main())
