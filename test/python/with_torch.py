#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nccl_ep with torch and torch.distributed over gloo: tensors, communicators, and a layer's rounds in bf16; on a GPU where
torch has one, which both ranks share, else on the CPU device.

Only the unique id may cross torch.distributed: after the communicator is made its calls are replaced by ones that fail.
"""
import multiprocessing
import os
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import torch
import torch.distributed as dist

import nccl_ep as ep
from nccl_ep.interop.torch import get_nccl_comm_from_group
from ranks import main

RANKS, LOCAL, TOPK, HIDDEN, TMAX = 2, 4, 2, 256, 16
E = RANKS * LOCAL
GPU = torch.cuda.is_available()
DEVICE = torch.device('cuda', 0) if GPU else torch.device('cpu')


def data_of(rank, seed=0):
    """Tokens, experts and weights of a rank; small integers, exact in bf16 and in every sum."""
    g = torch.Generator().manual_seed(100 * seed + rank)
    t = TMAX - 5 * rank
    x = torch.randint(-8, 9, (t, HIDDEN), generator=g).bfloat16()
    x[:, 0], x[:, 1] = rank, torch.arange(t)
    idx = torch.stack([torch.randperm(E, generator=g)[:TOPK] for _ in range(t)])
    return x.to(DEVICE), idx.to(DEVICE), torch.ones(t, TOPK, device=DEVICE) / 2


def stream():
    """A stream object, as torch has it."""
    return torch.cuda.current_stream() if GPU else None


def sync():
    if GPU:
        torch.cuda.synchronize()


def no_more_traffic():
    for name in ('all_gather', 'all_to_all', 'all_to_all_single', 'broadcast', 'all_reduce', 'send', 'recv', 'all_gather_object',
                 'broadcast_object_list', 'all_gather_into_tensor', 'reduce_scatter_tensor'):
        def refuse(*_, _name=name, **__):
            raise AssertionError(f'torch.distributed.{_name} was called')
        setattr(dist, name, refuse)


def ht_layer(rank, comm):
    group = ep.Group.create(comm, ep.GroupConfig(
        algorithm=ep.Algorithm.HIGH_THROUGHPUT, num_experts=E, max_dispatch_tokens_per_rank=TMAX,
        max_recv_tokens_per_rank=RANKS * TMAX, max_token_bytes=2 * HIDDEN, num_topk=TOPK))
    everyone = [data_of(r) for r in range(RANKS)]
    x, idx, w = everyone[rank]
    total = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    handle = group.create_handle(ep.Layout.FLAT, ep.Tensor(idx), stream=stream(),
                                 layout_info=ep.LayoutInfo(recv_total_counter=ep.Tensor(total)))
    rows = torch.full((RANKS * TMAX, HIDDEN), float('nan'), dtype=torch.bfloat16, device=DEVICE)
    out_w = torch.empty(RANKS * TMAX, TOPK, device=DEVICE)
    out_idx = torch.empty(RANKS * TMAX, TOPK, dtype=torch.int64, device=DEVICE)
    handle.dispatch(ep.DispatchInputs(tokens=ep.Tensor(x), topk_weights=ep.Tensor(w)),
                    ep.DispatchOutputs(tokens=ep.Tensor(rows), topk_weights=ep.Tensor(out_w), topk_idx=ep.Tensor(out_idx)),
                    stream=stream())
    sync()
    want = torch.cat([s[0][(s[1] // LOCAL == rank).any(1)] for s in everyone])
    assert total.item() == len(want) and torch.equal(rows[:len(want)], want), f'rank {rank}: rows are wrong'
    assert (out_idx[len(want):] == -1).all()
    sums = torch.empty_like(x)
    handle.combine(ep.CombineInputs(tokens=ep.Tensor(rows)), ep.CombineOutputs(tokens=ep.Tensor(sums)), stream=stream())
    sync()
    owners = torch.stack([(idx // LOCAL == r).any(1) for r in range(RANKS)]).sum(0)
    assert torch.equal(sums, x * owners[:, None].bfloat16()), f'rank {rank}: sums are wrong'
    handle.destroy()
    group.destroy()


def ll_fp8(rank, comm):
    """DeepSeek's fp8: e4m3 and one scale per 128 channels come out."""
    hidden = 512
    group = ep.Group.create(comm, ep.GroupConfig(num_experts=E, max_dispatch_tokens_per_rank=TMAX,
                                                 max_token_bytes=2 * hidden))
    _, idx, _ = data_of(rank, 1)
    x = torch.full((len(idx), hidden), 2.0 + rank, device=DEVICE).bfloat16()
    handle = group.create_handle(ep.Layout.EXPERT_MAJOR, ep.Tensor(idx), stream=stream())
    rows = torch.empty(LOCAL, RANKS * TMAX, hidden, dtype=torch.float8_e4m3fn, device=DEVICE)
    scales = torch.empty(LOCAL, RANKS * TMAX, hidden // 128, device=DEVICE)
    count = torch.empty(LOCAL, dtype=torch.int32, device=DEVICE)
    handle.dispatch(ep.DispatchInputs(tokens=ep.Tensor(x)),
                    ep.DispatchOutputs(tokens=ep.Tensor(rows), scales=ep.Tensor(scales)),
                    layout_info=ep.LayoutInfo(expert_counters=ep.Tensor(count)),
                    config=ep.DispatchConfig(quantization_recipe=ep.DispatchQuantizationRecipe.DS_FP8E3M4), stream=stream())
    sync()
    for e in range(LOCAL):
        here = [int((data_of(r, 1)[1] == rank * LOCAL + e).any(1).sum()) for r in range(RANKS)]
        assert count[e] == sum(here), f'rank {rank}: {count[e]} rows of expert {e}, must be {sum(here)}'
        values = (rows[e, :sum(here)].float() * scales[e, :sum(here)].repeat_interleave(128, 1))
        want = torch.tensor([2.0 + r for r in range(RANKS) for _ in range(here[r])], device=DEVICE)
        assert torch.allclose(values.mean(1).sort().values, want, rtol=1e-6), f'rank {rank}: expert {e}'
    handle.destroy()
    group.destroy()


def rank_main(rank, folder):
    torch.set_num_threads(1)
    if GPU:
        torch.cuda.set_device(DEVICE)
        torch.zeros(1, device=DEVICE)
    dist.init_process_group('gloo', store=dist.FileStore(os.path.join(folder, 'store'), RANKS), rank=rank, world_size=RANKS)
    comm = get_nccl_comm_from_group()
    assert (comm.rank, comm.nranks, comm.device) == (rank, RANKS, 0 if GPU else -1)
    alone = [dist.new_group([r]) for r in range(RANKS)][rank]  # rank 0 of it is another rank of the world
    single = get_nccl_comm_from_group(alone)
    assert (single.rank, single.nranks) == (0, 1)
    single.destroy()
    try:
        ep.Communicator.from_torch()
    except RuntimeError as e:
        assert 'gloo' in str(e) and 'get_nccl_comm_from_group' in str(e), e
    else:
        raise AssertionError('a gloo group has no NCCL communicator')
    no_more_traffic()
    ht_layer(rank, comm)
    ll_fp8(rank, comm)
    comm.destroy()
    assert torch.cuda.is_initialized() == GPU


class WithTorch(unittest.TestCase):
    def test_distributed(self):
        context = multiprocessing.get_context('spawn')
        with tempfile.TemporaryDirectory() as folder:
            processes = [context.Process(target=rank_main, args=(rank, folder)) for rank in range(RANKS)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(100)
                process.kill()
            self.assertEqual([process.exitcode for process in processes], [0] * RANKS)

    @unittest.skipUnless(dist.is_nccl_available(), 'this torch was built without NCCL')
    def test_nccl_of_torch(self):
        """Whoever is imported first, torch has its own NCCL."""
        mine, theirs = 'import nccl_ep; nccl_ep.get_unique_id()\n', 'import torch; torch.cuda.nccl.version()\n'
        tell = '''
print(torch.cuda.nccl.version(), sorted({line.split()[-1] for line in open('/proc/self/maps') if 'ccl.so' in line}))
'''
        said = [subprocess.run([sys.executable, '-c', code + tell], check=True, capture_output=True, text=True).stdout
                for code in (theirs, mine + theirs, theirs + mine)]
        self.assertEqual(said, [said[0]] * 3)

    def test_from_torch(self):
        """The address that a process group gives is taken as it is (a model: a group that says it is NCCL's)."""
        comm = ep.Communicator.init(1, 0, ep.get_unique_id())
        native = types.SimpleNamespace(_comm_ptr=lambda: comm.ptr)
        group = types.SimpleNamespace(_get_backend=lambda device: native if device == torch.device('cuda', 3) else None)
        with mock.patch.multiple(dist, is_initialized=lambda: True, get_backend=lambda _: 'nccl'), \
                mock.patch.object(torch.cuda, 'current_device', lambda: 3):
            taken = ep.Communicator.from_torch(group)
            self.assertEqual((taken.ptr, taken.rank, taken.nranks), (comm.ptr, 0, 1))
            native._comm_ptr = lambda: 0
            self.assertRaisesRegex(RuntimeError, 'not made its communicator', ep.Communicator.from_torch, group)
        comm.destroy()

    def test_not_initialized(self):
        self.assertRaisesRegex(RuntimeError, 'not initialized', get_nccl_comm_from_group)

    def test_tensors(self):
        for dtype, want in ((torch.float16, 6), (torch.float32, 7), (torch.float64, 8), (torch.bfloat16, 9), (torch.int8, 0),
                            (torch.int32, 2), (torch.int64, 4), (torch.uint8, 1), (torch.bool, 1),
                            (torch.float8_e4m3fn, 10), (torch.float8_e5m2, 11), (torch.uint32, 3), (torch.uint64, 5)):
            t = torch.empty(3, 4, dtype=dtype)
            made = ep.Tensor(t)
            self.assertEqual((made.sizes, made.datatype, made.data, made.buffer is t), ((3, 4), want, t.data_ptr(), True))
            self.assertEqual(made.datatype.itemsize, t.element_size())
        for dtype in (torch.int16, torch.complex64):
            self.assertRaises(ep.NcclInvalid, ep.Tensor, torch.empty(2, dtype=dtype))
        self.assertRaises(ep.NcclInvalid, ep.Tensor, torch.empty(3, 4).t())
        self.assertRaises(ValueError, ep.Tensor, torch.tensor(1.0))
        self.assertEqual(ep.Tensor(torch.empty(0, 4)).sizes, (0, 4))
        self.assertEqual(ep.Tensor(torch.empty(2, 4, requires_grad=True)[1:]).sizes, (1, 4))

    def test_dlpack(self):
        """The same tensor by DLPack, as another package would offer it."""
        class Other:
            def __init__(self, t):
                self.t = t

            def __dlpack__(self, **more):
                return self.t.__dlpack__(**more)

            def __dlpack_device__(self):
                return self.t.__dlpack_device__()

        for dtype in (torch.bfloat16, torch.int64, torch.float8_e4m3fn):
            t = torch.empty(8, 4, dtype=dtype)[2:]
            made, plain = ep.Tensor(Other(t)), ep.Tensor(t)
            self.assertEqual((made.sizes, made.datatype, made.data), (plain.sizes, plain.datatype, plain.data))
        self.assertRaises(ep.NcclInvalid, ep.Tensor, Other(torch.empty(3, 4).t()))


if __name__ == '__main__':
    sys.dont_write_bytecode = True
    main('__main__')
