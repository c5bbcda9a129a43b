#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a mixture-of-experts layer whose experts are spread over processes, and the same layer in one process; their
losses must agree. Usage: train.py [RANKS [STEPS]]

Every rank has its own tokens, all of the router and a part of the experts. Tokens and their gradients travel by nccl_ep;
torch.distributed (gloo) sums the gradients of the router and carries the id of the communicator. Needs torch. A GPU is used
where torch has one: rank r takes GPU r modulo their number.
"""
import multiprocessing
import os
import sys
import tempfile

import torch
import torch.distributed as dist

import nccl_ep as ep
from nccl_ep.interop.torch import get_nccl_comm_from_group

TOKENS, TOPK, HIDDEN, FFN, EXPERTS, RATE = 32, 2, 64, 128, 8, 3.0  # TOKENS: of each rank
GPU = torch.cuda.is_available()


def stream():
    return torch.cuda.current_stream() if GPU else None


def seeded(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to('cuda' if GPU else 'cpu')


class Dispatch(torch.autograd.Function):
    """Rows of this rank's experts, expert by expert, and their weights. What was sent to several experts gets the sum of
    their gradients: dispatch's backward pass is a combine."""

    @staticmethod
    def forward(ctx, x, weights, handle, count):
        ctx.handle, ctx.tokens, ctx.topk = handle, *weights.shape
        rows, row_weights = x.new_empty(count, HIDDEN), x.new_empty(count)
        handle.dispatch(ep.DispatchInputs(tokens=ep.Tensor(x), topk_weights=ep.Tensor(weights.contiguous())),
                        ep.DispatchOutputs(tokens=ep.Tensor(rows), topk_weights=ep.Tensor(row_weights)), stream=stream())
        return rows, row_weights

    @staticmethod
    def backward(ctx, rows, row_weights):
        x, weights = rows.new_empty(ctx.tokens, HIDDEN), rows.new_empty(ctx.tokens, ctx.topk)
        ctx.handle.combine(
            ep.CombineInputs(tokens=ep.Tensor(rows.contiguous()), topk_weights=ep.Tensor(row_weights.contiguous())),
            ep.CombineOutputs(tokens=ep.Tensor(x), topk_weights=ep.Tensor(weights)),
            config=ep.CombineConfig(pass_direction=ep.PassDir.BWD), stream=stream())
        return x, weights, None, None


class Combine(torch.autograd.Function):
    """For each token the sum of its experts' rows. Every one of them gets the gradient of the sum: a dispatch."""

    @staticmethod
    def forward(ctx, rows, handle, tokens):
        ctx.handle, ctx.count = handle, len(rows)
        y = rows.new_empty(tokens, HIDDEN)
        handle.combine(ep.CombineInputs(tokens=ep.Tensor(rows.contiguous())), ep.CombineOutputs(tokens=ep.Tensor(y)),
                       stream=stream())
        return y

    @staticmethod
    def backward(ctx, y):
        rows = y.new_empty(ctx.count, HIDDEN)
        ctx.handle.dispatch(ep.DispatchInputs(tokens=ep.Tensor(y.contiguous())), ep.DispatchOutputs(tokens=ep.Tensor(rows)),
                            config=ep.DispatchConfig(pass_direction=ep.PassDir.BWD), stream=stream())
        return rows, None, None


class Layer(torch.nn.Module):
    """Router and experts [first, first + count). How rows reach the experts is the subclasses' matter."""

    def __init__(self, first, count):
        super().__init__()
        self.router = torch.nn.Parameter(seeded(1, HIDDEN, EXPERTS) / HIDDEN ** 0.5)
        self.up = torch.nn.Parameter(torch.stack([seeded(10 + e, HIDDEN, FFN) for e in range(first, first + count)]) / 8)
        self.down = torch.nn.Parameter(torch.stack([seeded(90 + e, FFN, HIDDEN) for e in range(first, first + count)]) / 11)

    def route(self, x):
        return (x @ self.router).softmax(1).topk(TOPK)  # weights, experts

    def experts(self, rows, weights, counts):
        zones = [(zone @ up).relu() @ down for zone, up, down in zip(rows.split(counts), self.up, self.down)]
        return torch.cat(zones) * weights[:, None]


class OneProcess(Layer):
    def forward(self, x):
        weights, experts = self.route(x)
        order = experts.flatten().argsort(stable=True)
        counts = experts.flatten().bincount(minlength=EXPERTS).tolist()
        rows = self.experts(x[order // TOPK], weights.flatten()[order], counts)
        return torch.zeros_like(x).index_add(0, order // TOPK, rows)


class ExpertParallel(Layer):
    def __init__(self, rank, ranks):
        local = EXPERTS // ranks
        super().__init__(rank * local, local)
        self.comm = get_nccl_comm_from_group()
        self.group = ep.Group.create(self.comm, ep.GroupConfig(
            algorithm=ep.Algorithm.HIGH_THROUGHPUT, num_experts=EXPERTS, max_dispatch_tokens_per_rank=TOKENS,
            max_token_bytes=4 * HIDDEN, num_topk=TOPK))
        self.handle = self.group.init_handle(ep.Layout.EXPERT_MAJOR, TOPK)  # one for each pass that waits for its backward
        self.counts = torch.zeros(local, dtype=torch.int64, device=self.up.device)

    def forward(self, x):
        weights, experts = self.route(x)
        self.handle.update(ep.Tensor(experts), layout_info=ep.LayoutInfo(expert_counters=ep.Tensor(self.counts)),
                           stream=stream())
        counts = self.counts.tolist()
        rows, row_weights = Dispatch.apply(x, weights, self.handle, sum(counts))
        return Combine.apply(self.experts(rows, row_weights, counts), self.handle, len(x))

    def close(self):
        self.handle.destroy()
        self.group.destroy()
        self.comm.destroy()


def train(layer, x, target, ranks, steps, everywhere):
    """The loss of every step. everywhere sums over the ranks that train together."""
    losses = []
    for _ in range(steps):
        loss = (x + layer(x) - target).square().sum() / (ranks * TOKENS * HIDDEN)
        layer.zero_grad()
        loss.backward()
        everywhere(layer.router.grad)  # the experts' gradients have come from all ranks with their rows
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter -= RATE * parameter.grad
        total = loss.detach().clone()
        everywhere(total)
        losses.append(total.item())
    return losses


def rank_main(rank, ranks, steps, store):
    torch.set_num_threads(1)
    if GPU:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group('gloo', store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    x, target = seeded(2, ranks * TOKENS, HIDDEN), seeded(3, ranks * TOKENS, HIDDEN)
    mine = slice(rank * TOKENS, (rank + 1) * TOKENS)
    layer = ExpertParallel(rank, ranks)
    losses = train(layer, x[mine], target[mine], ranks, steps, dist.all_reduce)
    layer.close()
    dist.destroy_process_group()
    if rank:
        return
    want = train(OneProcess(0, EXPERTS), x, target, ranks, steps, lambda _: None)
    print(f'# {"step":>4} {str(ranks) + " ranks":>12} {"1 process":>12}')
    for step in range(0, steps, max(1, steps // 10)):
        print(f'  {step:4} {losses[step]:12.6f} {want[step]:12.6f}')
    worst = max(abs(a - b) / b for a, b in zip(losses, want))
    print(f'# loss of step {steps - 1}: {losses[-1]:.6f}; the largest relative difference in {steps} steps is {worst:.1e}')
    if not worst < 1e-5 or losses[-1] > losses[0]:
        raise SystemExit('the losses differ, or the layer has not learnt')


def main():
    ranks, steps = [int(a) for a in sys.argv[1:3]] + [4, 50][len(sys.argv) - 1:]
    context = multiprocessing.get_context('spawn')
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=rank_main, args=(rank, ranks, steps, os.path.join(folder, 'store')))
                     for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    return max(abs(process.exitcode) for process in processes)


if __name__ == '__main__':
    sys.exit(main())
