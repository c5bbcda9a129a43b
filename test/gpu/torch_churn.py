#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""HT with tensors of torch's allocator, which come and go at random: processes that share a GPU (under MPS), through the
public C API and the stand-in communicator.

Every row of dispatch and combine is exact; memory that torch has given back is free again, at every check; mappings are
bounded; and with tensors that stay, no row is staged. Exit status 0, 1, or 77 without torch or a GPU.
"""
import argparse
import ctypes as C
import multiprocessing
import os
import random
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS, EXPERTS, TOKENS, TOPK, HIDDEN = 2, 16, 256, 4, 2048
FLAT, HT, BF16, F32, I64 = 3, 1, 9, 7, 4
MAGIC, TENSOR_MAGIC = 0xC00FFFEE, 0xCAFECAFE
STEADY = 200           # iterations at the end whose tensors stay
SLACK = 64 << 20       # bytes of memory that may differ between checks
SMALL_CAP = TOKENS * RANKS


def struct(name, *fields):
    return type(name, (C.Structure,), {'_fields_': [('size', C.c_uint), ('magic', C.c_uint), *fields]})


P, U = C.c_void_p, C.c_uint
Tensor = struct('Tensor', ('ndim', U), ('datatype', U), ('data', P), ('win', P), ('offset', C.c_uint64), ('sizes', P))
TP = C.POINTER(Tensor)
# Version 2; a later library reads what size covers.
GroupConfig = struct('GroupConfig', ('version', U), ('algorithm', U), ('experts', U), ('tmax', U), ('recv', U), ('bytes', U),
                     ('rdma', C.c_ulong), ('qps', U), ('channels', U), ('sms', U), ('alloc', P * 3), ('mask', U),
                     ('timeout', C.c_uint64), ('zero_copy', U), ('overflow', U), ('topk', U), ('pad', U))
DispatchIn = struct('DispatchIn', ('tokens', TP), ('weights', TP), ('scales', TP))
DispatchOut = struct('DispatchOut', ('tokens', TP), ('weights', TP), ('scales', TP), ('idx', TP))
CombineIn = struct('CombineIn', ('tokens', TP), ('weights', TP), ('scales', TP))
CombineOut = struct('CombineOut', ('tokens', TP), ('weights', TP))


class UniqueId(C.Structure):
    _fields_ = [('bytes', C.c_char * 128)]


class Counts(C.Structure):
    _fields_ = [('size', C.c_size_t)] + [(n, C.c_uint64) for n in (
        'direct', 'staged', 'mapped', 'peak', 'unmapped', 'refused', 'evicted')]


def made(cls, **fields):
    return cls(C.sizeof(cls), TENSOR_MAGIC if cls is Tensor else MAGIC, **fields)


class Rank:
    """A rank's group, and its calls on tensors of torch."""

    def __init__(self, torch, args, rank, unique):
        self.torch, self.rank, self.device = torch, rank, args.device
        self.nccl = C.CDLL(os.path.join(args.lib, 'libnccl.so.2'), mode=C.RTLD_GLOBAL)
        self.ep = C.CDLL(os.path.join(args.lib, 'libnccl_ep.so.0'))
        self.ep.anyEpGetLastError.restype = C.c_char_p
        self.comm, self.group, self.handle = P(), P(), P()
        self.call(self.nccl.ncclCommInitRank, C.byref(self.comm), RANKS, UniqueId.from_buffer_copy(unique), rank)
        config = made(GroupConfig, version=2, algorithm=HT, experts=EXPERTS, tmax=TOKENS, recv=SMALL_CAP, bytes=HIDDEN * 2,
                      topk=TOPK)
        self.call(self.ep.ncclEpCreateGroup, C.byref(self.group), self.comm, C.byref(config))
        self.call(self.ep.ncclEpInitHandle, C.byref(self.handle), self.group, FLAT, None, TOPK, None)

    def call(self, fn, *args):
        rc = fn(*args)
        if rc:
            raise RuntimeError(f'rank {self.rank}: {fn.__name__}: {rc}: {self.ep.anyEpGetLastError().decode()}')

    def tensor(self, t):
        kind = {self.torch.bfloat16: BF16, self.torch.float32: F32, self.torch.int64: I64}[t.dtype]
        sizes = (C.c_size_t * t.dim())(*t.shape)
        out = made(Tensor, ndim=t.dim(), datatype=kind, data=t.data_ptr(), sizes=C.addressof(sizes))
        out.keep = sizes
        return C.pointer(out)

    def stream(self):
        return P(self.torch.cuda.current_stream().cuda_stream if self.device == 'cuda' else None)

    def sync(self):
        if self.device == 'cuda':
            self.torch.cuda.synchronize()

    def counts(self):
        counts = Counts(C.sizeof(Counts))
        self.call(self.ep.anyEpGroupReachCounts, self.group, C.byref(counts))
        return counts

    def round(self, idx, weights, tokens, out, out_weights, out_idx, sums):
        t = self.tensor
        self.call(self.ep.ncclEpUpdateHandle, self.handle, t(idx), None, self.stream())
        self.call(self.ep.ncclEpDispatch, self.handle, C.byref(made(DispatchIn, tokens=t(tokens), weights=t(weights))),
                  C.byref(made(DispatchOut, tokens=t(out), weights=t(out_weights), idx=t(out_idx))), None, None,
                  self.stream())
        self.call(self.ep.ncclEpCombine, self.handle, C.byref(made(CombineIn, tokens=t(out))),
                  C.byref(made(CombineOut, tokens=t(sums))), None, self.stream())

    def close(self):
        self.call(self.ep.ncclEpHandleDestroy, self.handle)
        self.call(self.ep.ncclEpGroupDestroy, self.group)
        self.call(self.nccl.ncclCommDestroy, self.comm)


def data_of(torch, device, rank, i):
    """A rank's routing and tokens of an iteration; every rank can compute every rank's. Small integers: sums are exact."""
    gen = torch.Generator(device='cpu').manual_seed(1000003 * rank + i % 64)
    idx = torch.rand((TOKENS, EXPERTS), generator=gen).topk(TOPK).indices.to(device)
    tokens = (torch.arange(TOKENS * HIDDEN, device=device).view(TOKENS, HIDDEN) + 31 * rank + i) % 17 - 8
    return idx, tokens.to(torch.bfloat16)


class Tensors:
    """What a layer would allocate: each tensor is replaced now and then by a new one of another size."""

    def __init__(self, torch, device, seed):
        self.torch, self.device, self.random, self.all, self.noise = torch, device, random.Random(seed), {}, []

    def take(self, name, rows, width, dtype, keep):
        if name not in self.all or (not keep and self.random.random() < 0.25):
            extra = self.random.choice((0, 1, 77, 1000, 6000))
            self.all[name] = None
            self.all[name] = self.torch.full((rows + extra, width), 99, dtype=dtype, device=self.device)
        return self.all[name]

    def stir(self):
        """Other allocations of the program."""
        if self.random.random() < 0.3:
            self.noise.append(self.torch.empty(self.random.randrange(1, 40 << 20), dtype=self.torch.uint8, device=self.device))
        if len(self.noise) > 6 or (self.noise and self.random.random() < 0.2):
            self.noise.pop(self.random.randrange(len(self.noise)))

    def drop(self):
        self.all, self.noise = {}, []


def iterate(me, tensors, i, keep):
    torch, device = me.torch, me.device
    everyone = [data_of(torch, device, r, i) for r in range(RANKS)]
    idx, values = everyone[me.rank]
    tokens = tensors.take('tokens', TOKENS, HIDDEN, torch.bfloat16, keep)[:TOKENS]
    sums = tensors.take('sums', TOKENS, HIDDEN, torch.bfloat16, keep)[:TOKENS]
    out = tensors.take('out', SMALL_CAP, HIDDEN, torch.bfloat16, keep)
    out_weights = tensors.take('weights', SMALL_CAP, TOPK, torch.float32, keep)[:SMALL_CAP]
    out_idx = tensors.take('idx', SMALL_CAP, TOPK, torch.int64, keep)[:SMALL_CAP]
    tokens.copy_(values)
    me.round(idx, torch.ones((TOKENS, TOPK), device=device), tokens, out, out_weights, out_idx, sums)
    local = EXPERTS // RANKS
    want = torch.cat([v[(e // local == me.rank).any(1)] for e, v in everyone])
    ranks = torch.stack([(idx // local == r).any(1) for r in range(RANKS)]).sum(0)
    me.sync()
    if not torch.equal(out[:len(want)], want):
        raise RuntimeError(f'rank {me.rank}: iteration {i}: dispatch is wrong: {wrong(me, everyone, out, want)}')
    if not torch.equal(sums, (values * ranks.view(-1, 1)).to(torch.bfloat16)):
        raise RuntimeError(f'rank {me.rank}: iteration {i}: combine is wrong')


def wrong(me, everyone, out, want):
    """How many rows of which source, and what the first one holds: 99 was never written."""
    local, at, text = EXPERTS // RANKS, 0, [f'out at {out.data_ptr():#x}, {out.numel() * 2} bytes']
    for source, (experts, _) in enumerate(everyone):
        n = int((experts // local == me.rank).any(1).sum())
        bad = (out[at:at + n] != want[at:at + n]).any(1).nonzero().flatten()
        if len(bad):
            row = int(bad[0]) + at
            text.append(f'{len(bad)} of {n} rows of rank {source}, from row {row}: {out[row, :4].tolist()}, must be '
                        f'{want[row, :4].tolist()}')
        at += n
    return '; '.join(text)


def free_bytes(me, tensors, barrier, want):
    """Frees everything on all ranks; the free memory of the GPU once it is at least want, or after 10 s."""
    tensors.drop()
    me.sync()
    barrier.wait()
    if me.device != 'cuda':
        return 0
    me.torch.cuda.empty_cache()
    barrier.wait()
    end = time.monotonic() + 10
    while True:
        free = me.torch.cuda.mem_get_info()[0]
        if free >= want or time.monotonic() > end:
            barrier.wait()
            return free
        time.sleep(0.05)


def play(me, args, barrier):
    tensors = Tensors(me.torch, args.device, 7 + me.rank)
    start, first, at = time.monotonic(), None, args.iterations // 10 or 1
    for i in range(args.iterations):
        tensors.stir()
        iterate(me, tensors, i, False)
        if (i + 1) % at == 0:
            free = free_bytes(me, tensors, barrier, (first or 0) - SLACK)
            if me.rank == 0:
                c = me.counts()
                print(f'{i + 1:6d} {time.monotonic() - start:6.1f} s  free {free >> 20} MiB  direct {c.direct}  staged '
                      f'{c.staged}  mapped {c.mapped}  peak {c.peak}  unmapped {c.unmapped}  evicted {c.evicted}', flush=True)
            first = first or free
            if free < first - SLACK:
                raise RuntimeError(f'rank {me.rank}: {first - free >> 20} MiB of freed memory are held after {i + 1} iterations')
    for i in range(STEADY):
        iterate(me, tensors, i, True)
        time.sleep(0.01 if i < STEADY // 2 else 0) # time to map what is new
        if i == STEADY // 2:
            before = me.counts()
    check(me, args, before, me.counts())
    if time.monotonic() - start > args.seconds:
        raise RuntimeError(f'rank {me.rank}: took {time.monotonic() - start:.0f} s, {args.seconds} allowed')


def check(me, args, before, c):
    others = RANKS - 1
    if c.mapped > 256 * others:
        raise RuntimeError(f'rank {me.rank}: {c.mapped} mappings')
    if args.device != 'cuda':
        return
    if c.staged != before.staged or c.direct <= before.direct:
        raise RuntimeError(f'rank {me.rank}: tensors that stayed: direct {before.direct} to {c.direct}, staged '
                           f'{before.staged} to {c.staged}')
    if c.refused or c.direct < 3 * c.staged:
        raise RuntimeError(f'rank {me.rank}: direct {c.direct}, staged {c.staged}, refused {c.refused}')


def child(args, rank, unique, barrier):
    if args.expandable:
        os.environ['PYTORCH_ALLOC_CONF'] = os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'
    import torch
    try:
        me = Rank(torch, args, rank, unique)
        play(me, args, barrier)
        barrier.wait()
        me.close()
    except BaseException as e:
        print(f'rank {rank}: {type(e).__name__}: {e}', file=sys.stderr, flush=True)
        barrier.abort()
        os._exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--lib', default=os.path.join(HERE, '../../', os.environ.get('BUILD', 'build-gpu'), 'plugin'))
    parser.add_argument('--iterations', type=int, default=10000)
    parser.add_argument('--seconds', type=float, default=240)
    parser.add_argument('--expandable', action='store_true', help="torch's expandable segments")
    parser.add_argument('--device', default='cuda', choices=('cuda', 'cpu'), help='cpu: only tries this script')
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        print('skipped: no torch here')
        return 77
    if args.device == 'cuda' and not torch.cuda.is_available():
        print('skipped: torch sees no GPU')
        return 77
    context = multiprocessing.get_context('spawn')
    nccl = C.CDLL(os.path.join(args.lib, 'libnccl.so.2'))
    unique, barrier = UniqueId(), context.Barrier(RANKS, timeout=60)
    if nccl.ncclGetUniqueId(C.byref(unique)):
        return 1
    ranks = [context.Process(target=child, args=(args, r, bytes(unique), barrier)) for r in range(RANKS)]
    for r in ranks:
        r.start()
    for r in ranks:
        r.join()
    failed = any(r.exitcode for r in ranks)
    print(f'torch_churn: {"FAILED" if failed else "passed"}, {args.iterations} iterations, '
          f'{"expandable segments" if args.expandable else "segments"}')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
