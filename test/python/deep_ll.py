#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deep_ep's low-latency calls against plain torch: formats, hooks, events, masks, a captured step; one node and
two pretended ones; on a GPU where torch has one, which the processes share."""
import time
import unittest

import torch

import deep_ep
import nccl_ep
from deep_ht import alignment, equal
from deep_model import Input, exponents, fp8, weighted
from deep_ranks import DEVICE, GPU, Placements, as_threads, moved
from ranks import main, same

MOST, LOCAL, TOPK, HIDDEN = 12, 3, 4, 512


def inputs_of(me, tokens, seed, hidden=HIDDEN, topk=TOPK):
    return [Input(r, tokens[r % len(tokens)], LOCAL * me.ranks, topk, hidden, seed) for r in range(me.ranks)]


def scale(expert):
    return 1 + expert / 8


def bytes_of(*tensors):
    return b''.join(torch.empty(t.shape, dtype=t.dtype).copy_(t).view(torch.uint8).numpy().tobytes() for t in tensors)


def place(me, everyone, got, count, sent, masked=()):
    """Which (source, token) each received row is, by its bytes; checks that they are the right ones, by source."""
    rows, scales = got if isinstance(got, tuple) else (got, None)
    known = {bytes_of(*(part[t] for part in sent[d.rank])): (d.rank, t) for d in everyone for t in range(len(d.x))}
    found = []
    for e in range(LOCAL):
        here = [known[bytes_of(rows[e, i], *(() if scales is None else (scales[e, i],)))] for i in range(int(count[e]))]
        want = [(d.rank, t) for d in everyone if d.rank not in masked
                for t in range(len(d.x)) if me.rank * LOCAL + e in d.idx[t].tolist()]
        same(f'rank {me.rank}: rows of expert {e}', sorted(here), want)
        sources = [s for s, _ in here]
        changes = sum(a != b for a, b in zip(sources, sources[1:]))
        same(f'rank {me.rank}: rows of a source are together', changes, max(len(set(sources)) - 1, 0))
        found.append(here)
    return found


def check_sources(me, handle, found):
    """What the handle says about the rows is what their bytes say."""
    tokens, ranges, *sizes = handle
    same('sizes', sizes, [MOST, handle[3], LOCAL * me.ranks])
    same('types', (handle[0].dtype, tokens.shape, ranges.dtype, ranges.shape),
         (torch.int32, (LOCAL, me.ranks * MOST), torch.int64, (LOCAL, me.ranks)))
    for e, rows in enumerate(found):
        same(f'rank {me.rank}: source tokens', tokens[e, :len(rows)].tolist(), [t for _, t in rows])
        sources = [s for s, _ in rows]
        want = [(sources.index(r) << 32 | sources.count(r)) if r in sources else 0 for r in range(me.ranks)]
        same(f'rank {me.rank}: ranges', ranges[e].tolist(), want)


def expected(me, everyone, masked=()):
    """The sums of this rank's tokens: every expert answers with the row, scaled."""
    mine = everyone[me.rank]
    answers = [[None if e < 0 or e // LOCAL in masked else (mine.x[t].float() * scale(e)).bfloat16()
                for e in mine.idx[t].tolist()] for t in range(len(mine.x))]
    return weighted(mine, answers)


def answers_of(me, everyone, found, out=None):
    """What the experts make of the tokens they were sent, where their rows are; other rows are never read."""
    hidden = everyone[0].x.shape[1]
    if out is None:
        out = torch.empty(LOCAL, me.ranks * MOST, hidden, dtype=torch.bfloat16)
    out.fill_(float('nan'))
    for e, rows in enumerate(found):
        for i, (source, t) in enumerate(rows):
            out[e, i] = (everyone[source].x[t].float() * scale(me.rank * LOCAL + e)).bfloat16()
    return out


def dispatch(me, buffer, everyone, **more):
    mine = everyone[me.rank]
    return buffer.low_latency_dispatch(mine.x, mine.idx, MOST, LOCAL * me.ranks, **more)


def combine(me, buffer, everyone, rows, handle, **more):
    mine = everyone[me.rank]
    return buffer.low_latency_combine(rows, mine.idx, mine.weights, handle, **more)


def formats(me, buffer):
    """bf16, fp8, rounded scales, their exponents; at once, by an event, by a hook."""
    for seed, (tokens, hidden, topk) in enumerate((((MOST, 7), HIDDEN, TOPK), ((0, 5), 1024, 1), ((0,), HIDDEN, 2))):
        everyone = inputs_of(me, tokens, seed, hidden, topk)
        for round_scale, use_ue8m0, use_fp8 in ((False, False, False), (False, False, True), (True, False, True),
                                                (True, True, True)):
            sent = [(d.x,) for d in everyone]
            if use_fp8:
                sent = [fp8(d.x, round_scale) for d in everyone]
            if use_ue8m0:
                sent = [(q, exponents(s)) for q, s in sent]
            for flags in ({}, dict(async_finish=True), dict(return_recv_hook=True)):
                got, count, handle, event, hook = dispatch(me, buffer, everyone, use_fp8=use_fp8, round_scale=round_scale,
                                                           use_ue8m0=use_ue8m0, **flags)
                finish(flags, event, hook)
                check_shapes(me, got, hidden, use_fp8, use_ue8m0)
                found = place(me, everyone, got, count, sent)
                check_sources(me, handle, found)
                out, event, hook = combine(me, buffer, everyone, answers_of(me, everyone, found), handle, **flags)
                finish(flags, event, hook)
                equal(f'rank {me.rank}: sums', out, expected(me, everyone))


def finish(flags, event, hook):
    same('an event', event.event is not None, 'async_finish' in flags)
    same('a hook', hook is not None, 'return_recv_hook' in flags)
    if hook:
        hook()
    with event:
        pass


def check_shapes(me, got, hidden, use_fp8, use_ue8m0):
    rows, scales = got if use_fp8 else (got, None)
    height = me.ranks * MOST
    same('rows', (rows.shape, rows.dtype), ((LOCAL, height, hidden), torch.float8_e4m3fn if use_fp8 else torch.bfloat16))
    if use_fp8:
        width = hidden // (512 if use_ue8m0 else 128)
        same('scales', (scales.shape, scales.dtype), ((LOCAL, height, width), torch.int32 if use_ue8m0 else torch.float32))
        same('strides of scales', scales.stride(), (width * height, 1, height))


def overlap(me, buffer):
    """Two batches at a time: both sent before either is received; then a third makes the first one's handle stale."""
    batches = [inputs_of(me, (5, MOST), 10 + s) for s in range(2)]
    stats, results = torch.ones(LOCAL, dtype=torch.int32, device=DEVICE), []
    for everyone in batches:
        results.append(dispatch(me, buffer, everyone, use_fp8=False, return_recv_hook=True,
                                cumulative_local_expert_recv_stats=stats))
    for _, _, _, _, hook in results:
        hook()
    equal('statistics', stats, (1 + results[0][1] + results[1][1]).cpu())
    sums = []
    for everyone, (got, count, handle, _, _) in zip(batches, results):
        found = place(me, everyone, got, count, [(d.x,) for d in everyone])
        out = torch.empty_like(everyone[me.rank].x, device=DEVICE)
        given, _, hook = combine(me, buffer, everyone, answers_of(me, everyone, found), handle, return_recv_hook=True, out=out)
        assert given is out
        sums.append((out, hook))
    for everyone, (out, hook) in zip(batches, sums):
        hook()
        equal('sums', out, expected(me, everyone))
    got, count, handle, _, _ = dispatch(me, buffer, batches[0], use_fp8=False)
    try:
        buffer.low_latency_combine(got, batches[0][me.rank].idx, batches[0][me.rank].weights, results[0][2])
    except RuntimeError as e:
        assert 'too old' in str(e), e
    else:
        raise AssertionError('a handle after two dispatches')


def zero_copy(me, buffer):
    everyone = inputs_of(me, (4, 9), 20)
    for _ in range(3):
        got, count, handle, _, _ = dispatch(me, buffer, everyone, use_fp8=False)
        view = buffer.get_next_low_latency_combine_buffer(handle)
        answers_of(me, everyone, place(me, everyone, got, count, [(d.x,) for d in everyone]), view)
        out, _, _ = combine(me, buffer, everyone, view, handle, zero_copy=True)
        equal('sums', out, expected(me, everyone))


def captured(me, buffer):
    """A step in a CUDA graph, replayed with other tokens and other experts: what vLLM does."""
    if not GPU:
        return
    static = moved(dict(x=torch.empty(MOST, HIDDEN, dtype=torch.bfloat16), idx=torch.empty(MOST, TOPK, dtype=torch.int64),
                        weights=torch.empty(MOST, TOPK)))

    def load(everyone):
        for name, tensor in static.items():
            tensor.copy_(getattr(everyone[me.rank], name))

    def step():
        got, count, handle, _, hook = buffer.low_latency_dispatch(static['x'], static['idx'], MOST, LOCAL * me.ranks,
                                                                  use_fp8=False, return_recv_hook=True)
        hook()
        first = torch.arange(me.rank * LOCAL, (me.rank + 1) * LOCAL, device=DEVICE)
        rows = (got.float() * (1 + first / 8)[:, None, None]).bfloat16()
        out, _, hook = buffer.low_latency_combine(rows, static['idx'], static['weights'], handle, return_recv_hook=True)
        hook()
        return out

    load(inputs_of(me, (MOST,), 40))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode='thread_local'):
        out = step()
    for seed in (41, 42, 43):
        everyone = inputs_of(me, (MOST,), seed)
        load(everyone)
        graph.replay()
        equal(f'rank {me.rank}: sums of a replay', out, expected(me, everyone))


def waits(me, buffer):
    """Rank 0 is late by 30 ms in every operation: the others' statistics say so, and only while they are passed."""
    late, everyone = 0.03, inputs_of(me, (3, 5), 22)
    stats = torch.full((2, me.ranks), 5, dtype=torch.int64, device=DEVICE)

    def step(dispatches, combines, **flags):
        time.sleep(0 if me.rank else late)
        got, count, handle, event, hook = dispatch(me, buffer, everyone, use_fp8=False, **flags,
                                                   dispatch_wait_recv_cost_stats=dispatches)
        finish(flags, event, hook)
        found = place(me, everyone, got, count, [(d.x,) for d in everyone])
        answers = answers_of(me, everyone, found)
        time.sleep(0 if me.rank else late)
        out, event, hook = combine(me, buffer, everyone, answers, handle, combine_wait_recv_cost_stats=combines, **flags)
        finish(flags, event, hook)
        equal('sums', out, expected(me, everyone))

    for flags in (dict(return_recv_hook=True), {}, dict(async_finish=True)):
        step(stats[0], stats[1], **flags)
    taken = stats.cpu().clone()
    same('own', taken[:, me.rank].tolist(), [5, 5])
    # Of six times as much: on a busy machine the others are late too.
    assert me.rank == 0 or (taken[:, 0] > 0.5e9 * late).all(), f'rank {me.rank}: waited {taken.tolist()} ns'
    step(None, None)
    step(None, None)  # with the other slot
    equal('statistics afterwards', stats, taken)


def refusals(me, buffer):
    everyone = inputs_of(me, (1,), 21)
    got, _, handle, _, _ = dispatch(me, buffer, everyone, use_fp8=False)
    for error, word, call in (
            (NotImplementedError, 'use_logfmt', lambda: combine(me, buffer, everyone, got, handle, use_logfmt=True)),
            (nccl_ep.NCCLEpError, 'stats->combine', lambda: combine(
                me, buffer, everyone, got, handle, combine_wait_recv_cost_stats=torch.zeros(me.ranks, dtype=torch.int32))),
            (TypeError, 'block_m', lambda: combine(me, buffer, everyone, got, handle, block_m=1)),
            (TypeError, 'x_global_scale', lambda: dispatch(me, buffer, everyone, x_global_scale=1)),
            (AssertionError, 'hook', lambda: dispatch(me, buffer, everyone, async_finish=True, return_recv_hook=True)),
            (AssertionError, 'use_ue8m0', lambda: dispatch(me, buffer, everyone, use_ue8m0=True)),
            (AssertionError, 'enable_shrink', buffer.low_latency_clean_mask_buffer)):
        try:
            call()
        except error as e:
            assert word in str(e), f'{word}: {e}'
        else:
            raise AssertionError(f'{word}: must raise {error.__name__}')


def everything(me):
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank=MOST, hidden=HIDDEN, num_ranks=me.ranks,
                                                         num_experts=LOCAL * me.ranks)
    buffer = me.buffer(0, hint, low_latency_mode=True, explicitly_destroy=True)
    for part in (formats, overlap, zero_copy, captured, waits, refusals):
        part(me, buffer)
        alignment(me, buffer)  # the other mode in between, as SGLang does
        buffer.clean_low_latency_buffer(MOST, HIDDEN, LOCAL * me.ranks)
        buffer.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True).zero_()
    buffer.destroy()


def masks(me):
    """The last rank is masked by the others, which go on without it; after a clean it takes part again."""
    buffer = me.buffer(0, 1 << 16, True, enable_shrink=True)
    status, lost = torch.full((me.ranks,), 7, dtype=torch.int32), me.ranks - 1

    def one(seed, masked):
        everyone = inputs_of(me, (6, 9), seed)
        got, count, handle, _, hook = dispatch(me, buffer, everyone, use_fp8=False, return_recv_hook=True)
        hook()
        found = place(me, everyone, got, count, [(d.x,) for d in everyone], masked)
        check_sources(me, handle, found)
        out, _, _ = combine(me, buffer, everyone, answers_of(me, everyone, found), handle)
        equal(f'rank {me.rank}: sums', out, expected(me, everyone, masked))

    def masked_is(want):
        buffer.low_latency_query_mask_buffer(status)
        same('masks', status.tolist(), want)

    one(30, ())
    masked_is([0] * me.ranks)
    if me.rank != lost:
        buffer.low_latency_update_mask_buffer(lost, True)
        masked_is([0] * lost + [1])
        one(31, (lost,))
        buffer.low_latency_update_mask_buffer(lost, False)
        masked_is([0] * me.ranks)
        buffer.low_latency_update_mask_buffer(lost, True)
        buffer.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True).zero_()
        buffer.low_latency_clean_mask_buffer()
        masked_is([0] * me.ranks)
    me.meet()
    one(32, ())


class LowLatency(Placements, unittest.TestCase):
    everything = staticmethod(everything)
    threads = 3,

    @unittest.skipIf(GPU, 'ranks are threads')
    def test_masks(self):
        as_threads(masks, 3)


if __name__ == '__main__':
    main('__main__')
