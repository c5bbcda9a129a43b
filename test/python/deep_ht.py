#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deep_ep's high-throughput calls against plain torch: one node and two pretended ones, processes and threads; on a GPU where
torch has one, which the processes share."""
import unittest

import torch

import deep_ep
import nccl_ep
from deep_model import Input, Model, difference
from deep_ranks import GPU, Placements, moved
from ranks import main, same


def equal(what, got, want):
    got, want = got.cpu(), want.cpu()
    assert got.dtype == want.dtype and got.shape == want.shape, f'{what}: {got.dtype} {tuple(got.shape)}, must be ' \
        f'{want.dtype} {tuple(want.shape)}'
    assert torch.equal(got, want), f'{what}: wrong at {(got.float() != want.float()).nonzero()[:4].tolist()}'


def model_of(me, tokens, local=4, topk=3, hidden=256, **more):
    """tokens: of the ranks, in turn."""
    experts = local * me.ranks
    return Model([Input(r, tokens[r % len(tokens)], experts, topk, hidden, **more) for r in range(me.ranks)], experts)


def layout_of(buffer, mine, experts, **more):
    names = 'num_tokens_per_rank', 'num_tokens_per_rdma_rank', 'num_tokens_per_expert', 'is_token_in_rank'
    *tensors, event = buffer.get_dispatch_layout(mine.idx, experts, **more)
    return dict(zip(names, tensors)), event


def first(buffer, model, rank, **more):
    mine = model.everyone[rank]
    given, _ = layout_of(buffer, mine, model.experts)
    return buffer.dispatch(more.pop('x', mine.x), topk_idx=mine.idx, topk_weights=mine.weights, **given, **more)


def answer(rank, rows):
    """What a rank's experts make of the rows they got."""
    return (rows.float() * (1 + rank / 4)).bfloat16()


def check_combine(me, buffer, model, handle, rows):
    answers = [answer(r, model.rows(r, [d.x for d in model.everyone])) for r in range(me.ranks)]
    out, weights, event = buffer.combine(answer(me.rank, rows), handle)
    assert weights is None and event.event is None
    want = model.sums(me.rank, answers)
    if max(buffer.runtime.nodes) == 0:
        equal(f'rank {me.rank}: sums', out, want.bfloat16())
    else:  # rounded by node, then once more
        assert difference(out.cpu(), want) < 5e-6, f'rank {me.rank}: sums'


def round_trip(me, buffer, model):
    mine, more = model.everyone[me.rank], layout_of(buffer, model.everyone[me.rank], model.experts)[0]
    per_rank, per_expert, owned = model.layout(me.rank)
    equal('tokens per rank', more['num_tokens_per_rank'], per_rank)
    equal('tokens per expert', more['num_tokens_per_expert'], per_expert)
    equal('tokens in ranks', more['is_token_in_rank'], owned)
    nodes = torch.tensor(buffer.runtime.nodes)
    if nodes.max() == 0:
        assert more['num_tokens_per_rdma_rank'] is None
    else:
        equal('tokens per node', more['num_tokens_per_rdma_rank'],
              torch.stack([owned[:, nodes == n].any(1).sum() for n in range(int(nodes.max()) + 1)]).int())
    rows, ids, weights, counts, handle, event = buffer.dispatch(mine.x, topk_idx=mine.idx, topk_weights=mine.weights, **more)
    assert event.event is None
    equal(f'rank {me.rank}: rows', rows, model.rows(me.rank, [d.x for d in model.everyone]))
    want_ids, want_weights = model.topk(me.rank)
    equal(f'rank {me.rank}: ids', ids, want_ids)
    equal(f'rank {me.rank}: weights', weights, want_weights)
    same(f'rank {me.rank}: counts', counts, model.counts(me.rank))
    if nodes.max() == 0:
        same('items of a handle', len(handle), 6)
        equal('rank prefix matrix', handle[0], model.prefix())
    else:
        same('items of a handle', len(handle), 10)
        equal('rank prefix sum', handle[-4], model.prefix()[:, me.rank].contiguous())
    check_combine(me, buffer, model, handle, rows)


def shapes(me, buffer):
    """Buffers that grow, ranks without tokens, rows of any width, any number of experts per token."""
    for seed, (tokens, local, topk, hidden) in enumerate((
            ((8, 5), 4, 3, 256), ((100, 70), 4, 3, 256), ((0, 9), 4, 3, 256), ((0,), 4, 3, 256), ((33, 1), 1, 1, 7168),
            ((20, 21), 8, 8, 100), ((6, 7), 3, 2, 20))):
        round_trip(me, buffer, model_of(me, tokens, local, topk, hidden, seed=seed))


def backward(me, buffer):
    """Megatron's calls: three layers forward, then backward through their handles, all flags set."""
    models = [model_of(me, (17, 12 + s), topk=2, seed=20 + s, whole=True) for s in range(3)]
    kept = []
    for model in models:
        mine = model.everyone[me.rank]
        given, event = layout_of(buffer, mine, model.experts, async_finish=True, allocate_on_comm_stream=True,
                                 previous_event=deep_ep.EventOverlap(deep_ep.EventHandle()))
        rows, _, weights, counts, handle, event = buffer.dispatch(
            mine.x, topk_idx=mine.idx, topk_weights=mine.weights, previous_event=event, async_finish=True,
            allocate_on_comm_stream=True, **given)
        event.current_stream_wait()
        kept.append((handle, rows, weights))
    flags = dict(async_finish=True, allocate_on_comm_stream=True)
    for model, (handle, rows, weights) in reversed(list(zip(models, kept))):
        mine, capture = model.everyone[me.rank], buffer.capture()
        again = buffer.dispatch(mine.x, handle=handle, previous_event=capture, **flags)
        same('with a handle', again[1:5], (None, None, None, None))
        again[5].current_stream_wait()
        equal('rows of a cached dispatch', again[0], rows)
        out, grads, event = buffer.combine(rows, handle, topk_weights=weights, previous_event=capture, **flags)
        with event:
            pass
        equal('gradients of tokens', out, model.sums(me.rank, [model.rows(r, [d.x for d in model.everyone])
                                                              for r in range(me.ranks)]).bfloat16())
        equal('gradients of weights', grads, torch.where(mine.idx >= 0, mine.weights, 0.0))


def weights_add(me, buffer):
    """Weights are summed over the ranks of a token in every column, also in those of other ranks' experts."""
    model = model_of(me, (9, 14), seed=30)
    rows, ids, weights, _, handle, _ = first(buffer, model, me.rank)
    _, sums, _ = buffer.combine(rows, handle, topk_weights=torch.full_like(weights, 0.5))
    equal('sums of weights', sums, (model.owned[me.rank].sum(1, keepdim=True) * 0.5).expand(-1, 3).float().contiguous())


def alignment(me, buffer):
    model = model_of(me, (40, 23), seed=31)
    rows, _, _, counts, _, _ = first(buffer, model, me.rank, expert_alignment=128)
    same('aligned counts', counts, model.counts(me.rank, 128))
    equal('rows are not padded', rows, model.rows(me.rank, [d.x for d in model.everyone]))


def worst_case(me, buffer):
    """Outputs of a fixed height, an empty list, and no expert in the rows that nothing arrived for."""
    for seed in (32, 33):
        model = model_of(me, (12, 0), seed=seed)
        rows, ids, weights, counts, handle, _ = first(buffer, model, me.rank, num_worst_tokens=16 * me.ranks)
        want = model.rows(me.rank, [d.x for d in model.everyone])
        n = len(want)
        same('the list', counts, [])
        same('heights', (len(rows), len(ids), len(weights)), (16 * me.ranks,) * 3)
        equal('rows', rows[:n], want)
        equal('ids', ids[:n], model.topk(me.rank)[0])
        assert (ids[n:] == -1).all() and (weights[n:] == 0).all()
        same('rank prefix, which the host does not know', handle[0 if len(handle) == 6 else -4], None)
        equal('rows of a cached dispatch', buffer.dispatch(model.everyone[me.rank].x, handle=handle)[0][:n], want)
        check_combine(me, buffer, model, handle, rows)
    try:
        first(buffer, model, me.rank, num_worst_tokens=me.ranks, x=model.everyone[me.rank].x[:0].new_zeros(2, 256))
    except ValueError as e:
        assert f'rank {me.rank}: 2 tokens' in str(e), e
    else:
        raise AssertionError('more tokens than num_worst_tokens allows')


def without_topk(me, buffer):
    """Routing from is_token_in_rank alone."""
    model = model_of(me, (10, 31), seed=34)
    given, _ = layout_of(buffer, model.everyone[me.rank], model.experts)
    rows, ids, weights, counts, handle, _ = buffer.dispatch(model.everyone[me.rank].x, **given)
    same('top-k', (ids, weights), (None, None))
    equal('rows', rows, model.rows(me.rank, [d.x for d in model.everyone]))
    same('counts', counts, model.counts(me.rank))
    check_combine(me, buffer, model, handle, rows)


def quantised(me, buffer):
    """Bytes with scales: of fp32, one per token, 56 bytes of packed exponents, by columns and by rows; then a combine in
    bf16."""
    model = model_of(me, (11, 6), hidden=1792, seed=35)
    for kind, width in ((torch.float32, 14), (torch.float32, 1), (torch.int32, 14), (torch.int32, 3), (torch.float32, 8),
                        (torch.float32, 4), (torch.int32, 8)):
        values = [d.x.to(torch.float8_e4m3fn) for d in model.everyone]
        scales = [(torch.arange(len(v) * width).reshape(width, len(v)).t() + 1000 * r).to(kind) for r, v in enumerate(values)]
        if width == 8:  # nothing to pack
            scales = [s.contiguous() for s in scales]
        (rows, got), ids, _, _, handle, _ = first(buffer, model, me.rank, x=(values[me.rank], scales[me.rank]))
        equal('rows', rows.view(torch.uint8), model.rows(me.rank, [v.view(torch.uint8) for v in values]))
        equal('scales', got, model.rows(me.rank, scales))
        assert got.is_contiguous()
        equal('ids', ids, model.topk(me.rank)[0])
        (rows, got), *_ = buffer.dispatch((values[me.rank], scales[me.rank]), handle=handle)
        equal('scales of a cached dispatch', got, model.rows(me.rank, scales))
        check_combine(me, buffer, model, handle, model.rows(me.rank, [d.x for d in model.everyone]))


def streams(me, buffer):
    """Calls that overlap nothing, between others that do, and with an event alone: on a GPU on three streams in turn. Nothing
    is read on the host before the end."""
    model = model_of(me, (60, 41), hidden=2048, seed=40)
    mine = model.everyone[me.rank]
    x, side = moved(mine.x), torch.cuda.Stream() if GPU else None
    given, _ = layout_of(buffer, mine, model.experts)
    first_rows, _, _, _, handle, _ = buffer.dispatch(x, topk_idx=mine.idx, topk_weights=mine.weights, **given)
    kept, overlapped = [first_rows], dict(async_finish=True, allocate_on_comm_stream=True)
    for turn in range(12):
        event = buffer.capture()
        flags = ({}, dict(previous_event=event), dict(async_finish=True), dict(previous_event=event, **overlapped))[turn % 4]
        if GPU and turn % 3 == 2:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side if turn % 3 == 2 else None):
            rows, *_, event = buffer.dispatch(x, handle=handle, **flags)
            if event.event is not None:
                event.current_stream_wait()
            out, _, _ = buffer.combine(rows, handle)
            kept += [rows.clone(), out.clone()]
            del rows, out  # the next call may have their memory
        if GPU and turn % 3 == 2:
            torch.cuda.current_stream().wait_stream(side)
    want = model.rows(me.rank, [d.x for d in model.everyone])
    for turn, rows in enumerate([kept[0], *kept[1::2]]):
        equal(f'rows of turn {turn}', rows, want)
    for turn, out in enumerate(kept[4::2]):
        equal(f'sums of turn {turn + 1}', out, kept[2])


def counts_of_others(me, buffer):
    """Counts that are not the last layout's: older ones, copies, and changed in place by their owner."""
    old, new = (model_of(me, tokens, seed=seed) for tokens, seed in (((7, 30), 41), ((19, 2), 42)))
    given = [layout_of(buffer, m.everyone[me.rank], m.experts)[0] for m in (old, new)]
    names = 'num_tokens_per_rank', 'num_tokens_per_expert'
    copies = {**given[1], **{n: given[1][n].clone() for n in names}}
    later = {**layout_of(buffer, old.everyone[me.rank], old.experts)[0]}
    for n in names:
        later[n].copy_(given[1][n])
    later['is_token_in_rank'] = given[1]['is_token_in_rank']
    for what, model, more in (('older', old, given[0]), ('copies', new, copies), ('changed', new, later)):
        mine = model.everyone[me.rank]
        rows, _, _, counts, _, _ = buffer.dispatch(mine.x, topk_idx=mine.idx, topk_weights=mine.weights, **more)
        equal(f'rows, {what} counts', rows, model.rows(me.rank, [d.x for d in model.everyone]))
        same(f'{what} counts', counts, model.counts(me.rank))


def refusals(me, buffer):
    """What ranks give wrong alike is refused on all, and the next call works."""
    model = model_of(me, (5, 5), seed=43)
    mine = model.everyone[me.rank]
    given, _ = layout_of(buffer, mine, model.experts)
    for what, idx, weights in (('topk_weights', mine.idx, mine.weights[:4]), ('topk_weights', mine.idx, mine.weights[:, :2]),
                               ('tokens', mine.idx[:4], mine.weights[:4])):
        try:
            buffer.dispatch(mine.x, topk_idx=idx, topk_weights=weights, **given)
        except nccl_ep.NCCLEpError as e:
            assert f'inputs->{what}' in str(e), e
        else:
            raise AssertionError(f'{what} of another shape')
    alignment(me, buffer)


def biases(me, buffer):
    model = model_of(me, (11, 6), hidden=100, seed=36, whole=True)
    rows, _, weights, _, handle, _ = first(buffer, model, me.rank)
    every = [model.rows(r, [d.x for d in model.everyone]) for r in range(me.ranks)]
    mine = model.everyone[me.rank].x
    halves = (model.owned[me.rank].sum(1, keepdim=True) * 0.5).expand(-1, 3).float().contiguous()
    for bias in ((), mine * 2.25, (mine * 2.25, mine / 128), (None, mine.t().contiguous().t()), None):
        out, sums, _ = buffer.combine(rows, handle, topk_weights=torch.full_like(weights, 0.5), bias=bias)
        equal('sums of weights have none', sums, halves)
        bias = tuple(b for b in (bias if isinstance(bias, tuple) else (bias,)) if b is not None)
        equal('sums with bias', out, model.sums(me.rank, every, bias).bfloat16())


def stale(me, buffer, other):
    """A handle of a Buffer that has been destroyed, twice, is refused by another one; dropping it later harms nothing."""
    model = model_of(me, (5, 8), seed=37)
    rows, _, _, _, handle, _ = first(buffer, model, me.rank)
    buffer.destroy()
    buffer.destroy()
    for call in (lambda: other.dispatch(model.everyone[me.rank].x, handle=handle), lambda: other.combine(rows, handle)):
        try:
            call()
        except nccl_ep.NcclInvalid as e:
            assert 'destroyed' in str(e), e
        else:
            raise AssertionError('a handle of a Buffer that has been destroyed')


def everything(me):
    buffer = me.buffer(1 << 16, 1 << 14, explicitly_destroy=True)
    other = me.buffer()  # a second one, used in turn
    for part in (shapes, backward, weights_add, alignment, worst_case, without_topk, quantised, biases, streams, counts_of_others,
                 refusals):
        part(me, buffer)
        alignment(me, other)
    stale(me, buffer, other)
    assert buffer.runtime is None
    alignment(me, other)


class HighThroughput(Placements, unittest.TestCase):
    everything = staticmethod(everything)
    threads = 3, 1


if __name__ == '__main__':
    main('__main__')
