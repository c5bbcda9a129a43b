# SPDX-License-Identifier: Apache-2.0
"""Round trips of every layout, forward and backward, as rank functions: a test runs them on threads or processes."""
import ctypes

import nccl_ep as ep
from model import (HIDDEN, LOCAL, TMAX, TOPK, Data, add, expert, expert_rows, owner_sum, rank_rows, weighted_sum)
from ranks import F32, I32, I64, U8, flatten, rows, same, tensor

POISON = -99.0


def everyone_of(me, counts, seed=0):
    return [Data(r, me.ranks, counts[r % len(counts)], seed) for r in range(me.ranks)]


def group_of(me, algorithm, **more):
    config = dict(algorithm=algorithm, num_experts=LOCAL * me.ranks, max_dispatch_tokens_per_rank=TMAX,
                  max_token_bytes=4 * HIDDEN)
    return ep.Group.create(me.comm, ep.GroupConfig(**{**config, **more}))


def idx_tensor(data, kind=I64):
    return ep.Tensor(tensor(kind, (data.count, TOPK), data.idx))


def x_tensor(data):
    return ep.Tensor(tensor(F32, (data.count, HIDDEN), data.x))


def weights_tensor(data):
    return ep.Tensor(tensor(F32, (data.count, TOPK), data.weights))


# ---- LL ----

def ll_round(me, group, counts, seed=0, stream=None, staged=False):
    """Expert-major: dispatch, experts, combine with weights."""
    everyone = everyone_of(me, counts, seed)
    mine = everyone[me.rank]
    handle = group.create_handle(ep.Layout.EXPERT_MAJOR, idx_tensor(mine), stream=stream)
    out, count = tensor(F32, (LOCAL, me.ranks * TMAX, HIDDEN), fill=POISON), tensor(I32, (LOCAL,), fill=-1)
    handle.dispatch(ep.DispatchInputs(tokens=x_tensor(mine)), ep.DispatchOutputs(tokens=ep.Tensor(out)),
                    layout_info=ep.LayoutInfo(expert_counters=ep.Tensor(count)),
                    config=ep.DispatchConfig(send_only=int(staged)), stream=stream)
    handle.complete(stream=stream)
    if stream is not None:
        stream.synchronize()
    answers = tensor(F32, (LOCAL, me.ranks * TMAX, HIDDEN))
    for e in range(LOCAL):
        first = me.rank * LOCAL
        want = [row for _, _, row in expert_rows(everyone, first + e)]
        same(f'rank {me.rank}: rows of expert {e}', count[e], len(want))
        same(f'rank {me.rank}: tokens of expert {e}', sorted(rows(out[e])[:count[e]]), sorted(want))
        same(f'rank {me.rank}: the row after those of expert {e}', list(out[e][count[e]]), [POISON] * HIDDEN)
        for i in range(count[e]):
            answers[e][i][:] = expert(list(out[e][i]), first + e)
    sums = tensor(F32, (mine.count, HIDDEN), fill=POISON)
    handle.combine(ep.CombineInputs(tokens=ep.Tensor(answers)),
                   ep.CombineOutputs(tokens=ep.Tensor(sums), topk_weights=weights_tensor(mine)),
                   config=ep.CombineConfig(send_only=int(staged)), stream=stream)
    handle.complete(stream=stream)
    if stream is not None:
        stream.synchronize()
    same(f'rank {me.rank}: sums', rows(sums), weighted_sum(mine))
    handle.destroy()


def ll_expert_major(me):
    group = group_of(me, ep.Algorithm.LOW_LATENCY)
    ll_round(me, group, (TMAX, 4))
    ll_round(me, group, (3, 0), seed=1)      # a rank without tokens
    ll_round(me, group, (0, 0), seed=2)      # and all of them
    ll_round(me, group, (TMAX, TMAX), seed=3, staged=True)
    with ep.HostStream() as stream:
        ll_round(me, group, (5, 2), seed=4, stream=stream, staged=True)
    assert group.window_bytes() > 0
    group.destroy()


def ll_rank_major(me):
    group = group_of(me, ep.Algorithm.LOW_LATENCY)
    everyone = everyone_of(me, (TMAX, 4))
    mine = everyone[me.rank]
    handle = group.init_handle(ep.Layout.RANK_MAJOR, TOPK)
    handle.update(idx_tensor(mine, I32), stream=None)
    shape = (me.ranks, TMAX, TOPK)
    out, out_weights = tensor(F32, (me.ranks, TMAX, HIDDEN), fill=POISON), tensor(F32, shape)
    out_idx, count = tensor(I32, shape, fill=-9), tensor(I32, (me.ranks,), fill=-1)
    info = ep.LayoutInfo(src_rank_counters=ep.Tensor(count))
    info._lowpp.recv_topk_idx_kind = int(ep.ExpertIdKind.GLOBAL)  # as TensorRT-LLM does
    handle.dispatch(ep.DispatchInputs(tokens=x_tensor(mine), topk_weights=weights_tensor(mine)),
                    ep.DispatchOutputs(tokens=ep.Tensor(out), topk_weights=ep.Tensor(out_weights),
                                       topk_idx=ep.Tensor(out_idx)), layout_info=info, stream=0)
    answers = tensor(F32, (me.ranks, TMAX, HIDDEN))
    for source in everyone:
        s, want = source.rank, [(t, row) for src, t, row in rank_rows(everyone, me.rank) if src == source.rank]
        same(f'rank {me.rank}: rows of rank {s}', count[s], len(want))
        got = {tuple(out[s][i]): (list(out_idx[s][i]), list(out_weights[s][i])) for i in range(count[s])}
        for t, row in want:
            idx, weights = got[tuple(row)]
            same(f'rank {me.rank}: experts of rank {s} token {t}', idx,
                 [e if e >= 0 and e // LOCAL == me.rank else -1 for e in source.idx[t]])
            same(f'rank {me.rank}: weights of rank {s} token {t}', weights, source.weights[t])
        same(f'rank {me.rank}: ids past the count', set(flatten(rows(out_idx[s])[count[s]:])) - {-1}, set())
        for i in range(count[s]):
            answers[s][i][:] = expert(list(out[s][i]), me.rank)
    sums = tensor(F32, (mine.count, HIDDEN), fill=POISON)
    handle.combine(ep.CombineInputs(tokens=ep.Tensor(answers)), ep.CombineOutputs(tokens=ep.Tensor(sums)), stream=None)
    same(f'rank {me.rank}: sums', rows(sums), owner_sum(mine))
    handle.destroy()
    group.destroy()


def ll_two_nodes(me):
    group = group_of(me, ep.Algorithm.LOW_LATENCY)
    ll_round(me, group, (TMAX, 4))
    times, counts = group.net_times(), group.net_counts()
    same('nodes', group.nodes(), list(range(me.ranks)))
    assert times.net and times.device and isinstance(times.ordered, bool), times  # its clocks start with this call
    assert counts.puts and counts.bytes and counts.signals and counts.commands >= counts.puts, counts
    group.destroy()


# ---- HT ----

def ht_flat(me, crossed=False):
    capacity = me.ranks * TMAX
    group = group_of(me, ep.Algorithm.HIGH_THROUGHPUT, max_recv_tokens_per_rank=capacity, num_topk=TOPK)
    for seed, counts in enumerate(((TMAX, 4), (3, 0), (0, 0))):
        ht_flat_round(me, group, everyone_of(me, counts, seed), capacity)
        group.barrier()
    stream = ep.HostStream()
    group.barrier(stream)
    stream.synchronize()
    stream.destroy()
    reach = group.reach_counts()
    assert crossed or reach.direct + reach.staged > 0, reach
    same('rows went to other nodes', reach.crossedDispatch > 0 and reach.crossedCombine > 0, crossed)
    same('nodes', group.nodes(), [r if crossed else 0 for r in range(me.ranks)])
    group.destroy()


def ht_two_nodes(me):
    """The same, by the transport."""
    ht_flat(me, crossed=True)


def ht_flat_round(me, group, everyone, capacity):
    mine, want = everyone[me.rank], rank_rows(everyone, me.rank)
    total = tensor(I32, (1,), fill=-1)
    handle = group.create_handle(ep.Layout.FLAT, idx_tensor(mine),
                                 layout_info=ep.LayoutInfo(recv_total_counter=ep.Tensor(total)), stream=None)
    same(f'rank {me.rank}: recv_total', total[0], len(want))
    out, out_weights = tensor(F32, (capacity, HIDDEN), fill=POISON), tensor(F32, (capacity, TOPK), fill=POISON)
    out_idx = tensor(I64, (capacity, TOPK), fill=-9)
    handle.dispatch(ep.DispatchInputs(tokens=x_tensor(mine), topk_weights=weights_tensor(mine)),
                    ep.DispatchOutputs(tokens=ep.Tensor(out), topk_weights=ep.Tensor(out_weights),
                                       topk_idx=ep.Tensor(out_idx)), stream=None)
    same(f'rank {me.rank}: rows', rows(out)[:len(want)], [row for _, _, row in want])
    same(f'rank {me.rank}: ids past the count', set(flatten(rows(out_idx)[len(want):])) - {-1}, set())
    for i, (source, t, _) in enumerate(want):
        here = sorted((e % LOCAL, w) for e, w in zip(everyone[source].idx[t], everyone[source].weights[t])
                      if e >= 0 and e // LOCAL == me.rank)
        tail = TOPK - len(here)
        same(f'rank {me.rank}: experts of row {i}', list(out_idx[i]), [e for e, _ in here] + [-1] * tail)
        same(f'rank {me.rank}: weights of row {i}', list(out_weights[i]), [w for _, w in here] + [0.0] * tail)
    answers = tensor(F32, (len(want), HIDDEN), [expert(row, me.rank) for _, _, row in want])
    sums = tensor(F32, (mine.count, HIDDEN), fill=POISON)
    handle.combine(ep.CombineInputs(tokens=ep.Tensor(answers)), ep.CombineOutputs(tokens=ep.Tensor(sums)), stream=None)
    same(f'rank {me.rank}: sums', rows(sums), owner_sum(mine))
    for n in (2, 1, 0):
        handle.bias(*[x_tensor(mine)] * n)
        handle.combine(ep.CombineInputs(tokens=ep.Tensor(answers)), ep.CombineOutputs(tokens=ep.Tensor(sums)), stream=None)
        same(f'rank {me.rank}: sums with {n} biases', rows(sums),
             [add([x] * n + [row]) for x, row in zip(mine.x, owner_sum(mine))])
    handle.complete(stream=None)
    ht_flat_backward(me, handle, everyone, want)
    handle.destroy()


def ht_flat_backward(me, handle, everyone, want):
    """The gradient of combine is a dispatch, that of dispatch a combine with the gradients of the weights."""
    mine, n = everyone[me.rank], len(want)
    grads = tensor(F32, (me.ranks * TMAX, HIDDEN), fill=POISON)
    handle.dispatch(ep.DispatchInputs(tokens=x_tensor(mine)), ep.DispatchOutputs(tokens=ep.Tensor(grads)),
                    config=ep.DispatchConfig(pass_direction=ep.PassDir.BWD), stream=None)
    same(f'rank {me.rank}: gradients of rows', rows(grads)[:n], [row for _, _, row in want])
    # The gradient of a row's weights: 100 * (expert + 1), in the order of the row, ascending by local id.
    back = []
    for source, t, _ in want:
        here = sorted(e for e in everyone[source].experts(t) if e // LOCAL == me.rank)
        back.append([100.0 * (e + 1) for e in here] + [0.0] * (TOPK - len(here)))
    sums, out = tensor(F32, (mine.count, HIDDEN), fill=POISON), tensor(F32, (mine.count, TOPK), fill=POISON)
    answers = tensor(F32, (n, HIDDEN), [row for _, _, row in want])
    handle.combine(ep.CombineInputs(tokens=ep.Tensor(answers), topk_weights=ep.Tensor(tensor(F32, (n, TOPK), back))),
                   ep.CombineOutputs(tokens=ep.Tensor(sums), topk_weights=ep.Tensor(out)),
                   config=ep.CombineConfig(pass_direction=ep.PassDir.BWD), stream=None)
    same(f'rank {me.rank}: gradients of tokens', rows(sums),
         [add([mine.x[t] for _ in mine.owners(t)]) for t in range(mine.count)])
    same(f'rank {me.rank}: gradients of weights', rows(out),
         [[100.0 * (e + 1) if e >= 0 else 0.0 for e in mine.idx[t]] for t in range(mine.count)])


def ht_expert_major(me):
    """Eager: outputs have the size of recv_total. Zones aligned to 4, and a backward pass by a second handle over the
    same memory."""
    align = 4
    group = group_of(me, ep.Algorithm.HIGH_THROUGHPUT, num_topk=TOPK)
    config = ep.HandleConfig(dispatch_output_per_expert_alignment=align)
    everyone = everyone_of(me, (5, 2))
    mine = everyone[me.rank]
    size = group.handle_mem_size(ep.Layout.EXPERT_MAJOR, TOPK, config=config)
    memory = ep.Tensor(tensor(U8, (size,)))
    handle = group.init_handle(ep.Layout.EXPERT_MAJOR, TOPK, config=config, handle_mem=memory)
    count, offset, total = (tensor(I64, (n,), fill=-1) for n in (LOCAL, LOCAL, 1))
    handle.update(idx_tensor(mine), layout_info=ep.LayoutInfo(
        expert_counters=ep.Tensor(count), expert_offsets=ep.Tensor(offset), recv_total_counter=ep.Tensor(total)), stream=None)
    zones = [expert_rows(everyone, me.rank * LOCAL + e) for e in range(LOCAL)]
    padded = [-(-len(zone) // align) * align for zone in zones]
    same(f'rank {me.rank}: counters', list(count), padded)
    same(f'rank {me.rank}: offsets', list(offset), [sum(padded[:e]) for e in range(LOCAL)])
    same(f'rank {me.rank}: recv_total', total[0], sum(padded))
    n = total[0]
    want = [row for zone, size in zip(zones, padded)
            for row in [r for _, _, r in zone] + [[0.0] * HIDDEN] * (size - len(zone))]
    out, out_weights = tensor(F32, (n, HIDDEN), fill=POISON), tensor(F32, (n,), fill=POISON)
    handle.dispatch(ep.DispatchInputs(tokens=x_tensor(mine), topk_weights=weights_tensor(mine)),
                    ep.DispatchOutputs(tokens=ep.Tensor(out), topk_weights=ep.Tensor(out_weights)), stream=None)
    same(f'rank {me.rank}: rows', rows(out), want)
    for e, zone in enumerate(zones):
        same(f'rank {me.rank}: weights of expert {e}', out_weights[offset[e]:offset[e] + count[e]],
             [everyone[s].weights[t][everyone[s].idx[t].index(me.rank * LOCAL + e)] for s, t, _ in zone]
             + [0.0] * (padded[e] - len(zone)))
    second = group.init_handle(ep.Layout.EXPERT_MAJOR, TOPK, config=config, handle_mem=memory)
    handle.destroy()
    back, sums = tensor(F32, (mine.count, TOPK), fill=POISON), tensor(F32, (mine.count, HIDDEN), fill=POISON)
    second.combine(ep.CombineInputs(tokens=ep.Tensor(out), topk_weights=ep.Tensor(out_weights)),
                   ep.CombineOutputs(tokens=ep.Tensor(sums), topk_weights=ep.Tensor(back)),
                   config=ep.CombineConfig(pass_direction=ep.PassDir.BWD), stream=None)
    same(f'rank {me.rank}: sums', rows(sums), [add([mine.x[t] for _ in mine.experts(t)]) for t in range(mine.count)])
    same(f'rank {me.rank}: weights back', rows(back),
         [[w if e >= 0 else 0.0 for e, w in zip(mine.idx[t], mine.weights[t])] for t in range(mine.count)])
    second.destroy()
    group.destroy()


def ht_window(me):
    """zero_copy ON: dispatch writes into memory of mem_alloc that is registered as a window, combine reads from it."""
    capacity = me.ranks * TMAX
    group = group_of(me, ep.Algorithm.HIGH_THROUGHPUT, max_recv_tokens_per_rank=capacity, num_topk=TOPK,
                     zero_copy=ep.ZeroCopyMode.ON)
    memory = ep.mem_alloc(capacity * HIDDEN * 4)
    window = me.comm.register_window(memory)
    same('the window', (window.user_ptr, window.size), (memory.handle, memory.size))
    out = ep.Tensor(memory.handle, dtype=ep.NcclDataType.FLOAT32, shape=(capacity, HIDDEN), window=window, window_offset=0)
    everyone = everyone_of(me, (TMAX, 4))
    mine, want = everyone[me.rank], rank_rows(everyone, me.rank)
    handle = group.create_handle(ep.Layout.FLAT, idx_tensor(mine), stream=None)
    handle.dispatch(ep.DispatchInputs(tokens=x_tensor(mine), topk_weights=weights_tensor(mine)),
                    ep.DispatchOutputs(tokens=out, topk_weights=ep.Tensor(tensor(F32, (capacity, TOPK))),
                                       topk_idx=ep.Tensor(tensor(I64, (capacity, TOPK)))), stream=None)
    got = (F32 * HIDDEN * capacity).from_address(memory.handle)
    same(f'rank {me.rank}: rows in the window', rows(got)[:len(want)], [row for _, _, row in want])
    sums = tensor(F32, (mine.count, HIDDEN), fill=POISON)
    handle.combine(ep.CombineInputs(tokens=out), ep.CombineOutputs(tokens=ep.Tensor(sums)), stream=None)
    same(f'rank {me.rank}: sums', rows(sums), [add([mine.x[t] for _ in mine.owners(t)]) for t in range(mine.count)])
    handle.destroy()
    group.destroy()
    window.close()
    memory.close()


def bf16_ht(me):
    """A type that ctypes has not, by address: bf16 is the upper half of a float."""
    capacity = me.ranks * TMAX
    group = group_of(me, ep.Algorithm.HIGH_THROUGHPUT, max_recv_tokens_per_rank=capacity, max_token_bytes=2 * HIDDEN)
    everyone = everyone_of(me, (4, 3))
    mine, want = everyone[me.rank], rank_rows(everyone, me.rank)

    def half(values, count):
        return tensor(ctypes.c_uint16, (count, HIDDEN), [[int.from_bytes(bytes(F32(v)), 'little') >> 16 for v in row]
                                                         for row in values])

    def described(array):
        return ep.Tensor(ctypes.addressof(array), dtype='bfloat16', shape=(len(array), HIDDEN))

    x, out = half(mine.x, mine.count), half([[0.0] * HIDDEN] * capacity, capacity)
    handle = group.create_handle(ep.Layout.FLAT, idx_tensor(mine), stream=None)
    handle.dispatch(ep.DispatchInputs(tokens=described(x), topk_weights=weights_tensor(mine)),
                    ep.DispatchOutputs(tokens=described(out), topk_weights=ep.Tensor(tensor(F32, (capacity, TOPK))),
                                       topk_idx=ep.Tensor(tensor(I64, (capacity, TOPK)))), stream=None)
    same(f'rank {me.rank}: bf16 rows', rows(out)[:len(want)], rows(half([row for _, _, row in want], len(want))))
    handle.destroy()
    group.destroy()


def all_gather(me):
    group = group_of(me, ep.Algorithm.HIGH_THROUGHPUT)
    same(f'rank {me.rank}: what all have', group.all_gather(bytes([me.rank, 7])), [bytes([r, 7]) for r in range(me.ranks)])
    group.destroy()


ROUNDS = (all_gather, ll_expert_major, ll_rank_major, ht_flat, ht_expert_major, ht_window, bf16_ht)


def everything(me):
    for function in ROUNDS:
        function(me)
