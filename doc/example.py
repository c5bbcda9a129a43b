#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One layer of a mixture of experts over several processes: dispatch, experts, combine. Usage: example.py [RANKS]

Expert e multiplies its rows by e + 1. No GPU, torch or numpy is needed; with torch or numpy, give Tensor() their arrays
instead of those of ctypes, and a stream of the GPU instead of None.
"""
import ctypes
import multiprocessing
import sys

import nccl_ep as ep

TOKENS, TOPK, HIDDEN, LOCAL = 4, 2, 64, 2  # of each rank; LOCAL: experts


def zeros(kind, *shape):
    for n in reversed(shape):
        kind = kind * n
    return kind()


def layer(rank, ranks, handle, x, idx, weights):
    """y[t] = sum over k of weights[t, k] * expert idx[t, k] of x[t]."""
    rows = zeros(ctypes.c_float, LOCAL, ranks * TOKENS, HIDDEN)
    count = zeros(ctypes.c_int32, LOCAL)
    handle.update(ep.Tensor(idx), stream=None)
    handle.dispatch(ep.DispatchInputs(tokens=ep.Tensor(x)), ep.DispatchOutputs(tokens=ep.Tensor(rows)),
                    layout_info=ep.LayoutInfo(expert_counters=ep.Tensor(count)), stream=None)
    for e in range(LOCAL):
        for row in rows[e][:count[e]]:
            row[:] = [v * (rank * LOCAL + e + 1) for v in row]
    y = zeros(ctypes.c_float, TOKENS, HIDDEN)
    handle.combine(ep.CombineInputs(tokens=ep.Tensor(rows)),
                   ep.CombineOutputs(tokens=ep.Tensor(y), topk_weights=ep.Tensor(weights)), stream=None)
    return y


def rank_main(rank, ranks, uid):
    experts = ranks * LOCAL
    comm = ep.Communicator.init(ranks, rank, uid)
    group = ep.Group.create(comm, ep.GroupConfig(algorithm=ep.Algorithm.LOW_LATENCY, num_experts=experts,
                                                 max_dispatch_tokens_per_rank=TOKENS, max_token_bytes=4 * HIDDEN))
    handle = group.init_handle(ep.Layout.EXPERT_MAJOR, TOPK)
    x, idx = zeros(ctypes.c_float, TOKENS, HIDDEN), zeros(ctypes.c_int64, TOKENS, TOPK)
    weights = zeros(ctypes.c_float, TOKENS, TOPK)
    for t in range(TOKENS):
        x[t][:] = [float(rank + t)] * HIDDEN
        idx[t][:] = [(rank + t + k) % experts for k in range(TOPK)]
        weights[t][:] = [0.5] * TOPK
    y = layer(rank, ranks, handle, x, idx, weights)
    for t in range(TOKENS):
        want = sum(0.5 * (e + 1) * (rank + t) for e in idx[t])
        if list(y[t]) != [want] * HIDDEN:
            raise SystemExit(f'rank {rank}: token {t} is {y[t][0]}, must be {want}')
    print(f'rank {rank} of {ranks}: {TOKENS} tokens over {experts} experts: correct')
    handle.destroy()
    group.destroy()
    comm.destroy()


def main():
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    context = multiprocessing.get_context('spawn')
    uid = ep.get_unique_id()
    processes = [context.Process(target=rank_main, args=(rank, ranks, uid)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max(abs(process.exitcode) for process in processes)


if __name__ == '__main__':
    sys.exit(main())
