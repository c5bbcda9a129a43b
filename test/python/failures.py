#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Failed calls carry the library's message; masks, async errors and use after destroy."""
import ctypes
import pickle
import threading
import unittest
import weakref

import nccl_ep as ep
import ranks
import rounds
from model import HIDDEN, LOCAL, TMAX, TOPK, Data
from ranks import F32, I32, same, tensor


def raised(kind, function, *arguments, **more):
    try:
        function(*arguments, **more)
    except kind as e:
        return e
    raise AssertionError(f'{function} raised nothing')


def wrong_arguments(me):
    group = rounds.group_of(me, ep.Algorithm.LOW_LATENCY)
    mine = Data(me.rank, me.ranks, TMAX)
    e = raised(ep.NCCLEpError, group.create_handle, ep.Layout.FLAT, rounds.idx_tensor(mine), stream=None)
    same('status', e.status, int(ep.NcclResult.INVALID_ARGUMENT))
    assert 'layout' in e.message and e.message in str(e), e
    assert str(e).startswith('NCCL EP error code 4 (InvalidArgument) of ncclEpCreateHandle: '), e
    handle = group.create_handle(ep.Layout.EXPERT_MAJOR, rounds.idx_tensor(mine), stream=None)
    e = raised(ep.NCCLEpError, handle.dispatch, ep.DispatchInputs(), ep.DispatchOutputs(), stream=None)
    assert 'tokens' in e.message, e
    e = raised(ep.NCCLEpError, group.mask_clean)  # without enable_mask
    same('status', (e.status, e.function), (int(ep.NcclResult.INVALID_USAGE), 'ncclEpMaskClean'))
    assert 'enable_mask' in e.message, e
    again = pickle.loads(pickle.dumps(e))
    same('a pickled error', (type(again), again.status, str(again)), (ep.NCCLEpError, e.status, str(e)))
    e = raised(ep.NCCLEpError, group.destroy)  # a handle is left: the group stays usable
    assert 'handle' in e.message, e
    handle.destroy()
    handle.destroy()
    for operation, call in (('update', lambda: handle.update(rounds.idx_tensor(mine), stream=None)),
                            ('dispatch', lambda: handle.dispatch(ep.DispatchInputs(), ep.DispatchOutputs(), stream=None)),
                            ('combine', lambda: handle.combine(ep.CombineInputs(), ep.CombineOutputs(), stream=None)),
                            ('complete', lambda: handle.complete(stream=None)), ('access ptr', lambda: handle.ptr)):
        same('use after destroy', str(raised(ep.NcclInvalid, call)),
             f'Cannot {operation}: Handle is not initialized or has been destroyed')
    same('repr', repr(handle), '<Handle destroyed>')
    group.destroy()
    group.destroy()
    for call in (lambda: group.ptr, group.get_async_error, group.error_clear, group.mask_clean, group.window_bytes,
                 group.net_counts, group.net_times, group.nodes, group.reach_counts, lambda: group.mask_query(0),
                 lambda: group.mask_update(0), lambda: group.init_handle(ep.Layout.FLAT, 1),
                 lambda: group.handle_mem_size(ep.Layout.FLAT, 1),
                 lambda: group.create_handle(ep.Layout.FLAT, rounds.idx_tensor(mine), stream=None)):
        assert 'Group is not initialized or has been destroyed' in str(raised(ep.NcclInvalid, call))
    same('repr', repr(group), '<Group destroyed>')


def unlike(me):
    """Configurations that differ fail on every rank, with the reason."""
    e = raised(ep.NCCLEpError, rounds.group_of, me, ep.Algorithm.LOW_LATENCY, num_experts=LOCAL * me.ranks * (1 + me.rank))
    same('status', e.status, int(ep.NcclResult.INVALID_ARGUMENT))
    assert 'num_experts' in e.message, e


def mask_of(group, count):
    out = tensor(I32, (count,), fill=-1)
    group.mask_query(ep.Tensor(out))
    return list(out)


def masks(me):
    """Rank 1 skips an operation: rank 0 masks it and continues, and both go on after mask_clean."""
    group = rounds.group_of(me, ep.Algorithm.LOW_LATENCY, enable_mask=True, timeout_ns=2_000_000_000)
    same('masks', mask_of(group, me.ranks), [1, 1])
    same('async error', group.get_async_error(), ep.AsyncError.NONE)
    rounds.ll_round(me, group, (TMAX, 4))
    if me.rank == 0:
        mine = Data(0, me.ranks, TMAX)
        handle = group.create_handle(ep.Layout.EXPERT_MAJOR, rounds.idx_tensor(mine), stream=None)
        out, count = tensor(F32, (LOCAL, me.ranks * TMAX, HIDDEN)), tensor(I32, (LOCAL,), fill=-1)
        handle.dispatch(ep.DispatchInputs(tokens=rounds.x_tensor(mine)), ep.DispatchOutputs(tokens=ep.Tensor(out)),
                        layout_info=ep.LayoutInfo(expert_counters=ep.Tensor(count)), stream=None)
        same('async error', group.get_async_error(), ep.AsyncError.TIMEOUT)
        same('masks', mask_of(group, me.ranks), [1, 0])
        same('rows of this rank alone', list(count),
             [sum(e in mine.experts(t) for t in range(mine.count)) for e in range(LOCAL)])
        handle.destroy()
        group.error_clear()
        same('async error', group.get_async_error(), ep.AsyncError.NONE)
        group.mask_update(ctypes.addressof(tensor(I32, (me.ranks,), [1, 1])), stream=None)
        same('masks', mask_of(group, me.ranks), [1, 1])
        group.mask_update(ep.Tensor(tensor(I32, (me.ranks,), [1, 0])))
        same('masks', mask_of(group, me.ranks), [1, 0])
    gate.wait()
    group.mask_clean(stream=None)
    same('masks', mask_of(group, me.ranks), [1, 1])
    rounds.ll_round(me, group, (TMAX, 4), seed=1)
    group.destroy()


gate = threading.Barrier(2, timeout=30)


def bad_expert(me):
    """An id that does not exist is dropped and flagged."""
    group = rounds.group_of(me, ep.Algorithm.LOW_LATENCY)
    mine = Data(me.rank, me.ranks, 1)
    mine.idx = [[1000] + [-1] * (TOPK - 1)]
    handle = group.create_handle(ep.Layout.EXPERT_MAJOR, rounds.idx_tensor(mine), stream=None)
    out, count = tensor(F32, (LOCAL, me.ranks * TMAX, HIDDEN)), tensor(I32, (LOCAL,), fill=-1)
    handle.dispatch(ep.DispatchInputs(tokens=rounds.x_tensor(mine)), ep.DispatchOutputs(tokens=ep.Tensor(out)),
                    layout_info=ep.LayoutInfo(expert_counters=ep.Tensor(count)), stream=None)
    same('async error', group.get_async_error(), ep.AsyncError.BAD_EXPERT)
    same('rows', list(count), [0] * LOCAL)
    group.error_clear()
    handle.destroy()
    group.destroy()


class Failures(unittest.TestCase):
    def test_wrong_arguments(self):
        ranks.as_threads(wrong_arguments)

    def test_unlike(self):
        ranks.as_threads(unlike)

    def test_masks(self):
        ranks.as_threads(masks)

    def test_bad_expert(self):
        ranks.as_threads(bad_expert)

    def test_communicator(self):
        e = raised(ep.NCCLError, ep.Communicator.init, 2, 5, ep.get_unique_id())
        self.assertEqual((e.status, e.function), (int(ep.NcclResult.INVALID_ARGUMENT), 'ncclCommInitRank'))
        self.assertIn('5', e.message)
        self.assertNotIsInstance(e, ep.NCCLEpError)
        self.assertFalse(ep.Communicator().is_valid)
        comm = ep.Communicator.init(1, 0, ep.get_unique_id())
        self.assertEqual(comm.get_last_error(), e.message)
        self.assertEqual((comm.rank, comm.nranks, comm.get_async_error()), (0, 1, 0))
        wrapped = ep.Communicator(ptr=comm.ptr)
        self.assertEqual((wrapped.rank, wrapped.nranks, wrapped.device), (0, 1, comm.device))
        half = comm.split(0)
        self.assertEqual((half.nranks, half.is_valid), (1, True))
        self.assertFalse(comm.split().is_valid)
        half.destroy()
        comm.finalize()
        comm.destroy()
        comm.destroy()
        self.assertIn('Communicator is not initialized', str(raised(ep.NcclInvalid, lambda: comm.rank)))
        # what the wrapper refers to is gone: neither a crash nor an answer
        self.assertIn('no live communicator', str(raised(ep.NcclInvalid, lambda: ep.Communicator(ptr=0x1000).rank)))
        e = raised(ep.NCCLEpError, ep.Group.create, wrapped, ep.GroupConfig())
        self.assertIn('comm', e.message)
        half = ep.Communicator.init(1, 0, ep.get_unique_id())
        half.abort()
        self.assertEqual(repr(half), '<Communicator destroyed>')

    def test_stream(self):
        """A host stream holds what its operations use: until synchronize, and for good if it is dropped before."""
        comm = ep.Communicator.init(1, 0, ep.get_unique_id())
        group = ep.Group.create(comm, ep.GroupConfig(algorithm=ep.Algorithm.HIGH_THROUGHPUT, num_experts=2,
                                                     max_dispatch_tokens_per_rank=4, max_recv_tokens_per_rank=4,
                                                     max_token_bytes=64))
        stream = ep.HostStream()
        gone = [self.dropped(group, stream) for _ in range(2)]
        self.assertIsNotNone(gone[0]())
        stream.synchronize()
        self.assertEqual([g() for g in gone], [None, None])
        gone = self.dropped(group, stream)
        del stream
        self.assertIsNotNone(gone())
        stream = ep.HostStream()
        stream.destroy()
        stream.destroy()
        self.assertEqual(repr(stream), '<HostStream destroyed>')
        self.assertIn('HostStream', str(raised(ep.NcclInvalid, stream.synchronize)))
        group.destroy()
        comm.destroy()

    def dropped(self, group, stream):
        """A weak reference to routing that an operation on the stream uses, and nobody else."""
        idx = tensor(ctypes.c_int64, (4, 1))
        handle = group.create_handle(ep.Layout.FLAT, ep.Tensor(idx), stream=stream)
        handle.destroy()
        return weakref.ref(idx)

    def test_memory(self):
        memory = ep.mem_alloc(64)
        self.assertEqual((memory.size, memory.handle % 16), (64, 0))
        memory.close()
        memory.close()
        self.assertIn('closed', str(raised(ep.NcclInvalid, lambda: memory.handle)))
        self.assertIn('device 0', str(raised(ep.NcclInvalid, ep.mem_alloc, 64, 0)))  # without torch

    def test_allocator(self):
        """The memory of handles by functions of Python."""
        live, alloc, free = allocator()
        config = ep.AllocConfig(alloc_fn=ctypes.cast(alloc, ctypes.c_void_p).value,
                                free_fn=ctypes.cast(free, ctypes.c_void_p).value, context=77)
        comm = ep.Communicator.init(1, 0, ep.get_unique_id())
        group = ep.Group.create(comm, ep.GroupConfig(
            algorithm=ep.Algorithm.HIGH_THROUGHPUT, num_experts=2, max_dispatch_tokens_per_rank=4,
            max_recv_tokens_per_rank=4, max_token_bytes=64, alloc=config))
        handle = group.init_handle(ep.Layout.FLAT, 1)
        self.assertGreater(len(live), 0)
        handle.destroy()
        group.destroy()
        self.assertEqual(live, {})
        comm.destroy()


def allocator():
    live = {}

    @ep.AllocFn
    def alloc(out, size, context):
        block = ctypes.create_string_buffer(size + 256)
        address = -(-ctypes.addressof(block) // 256) * 256
        live[address] = block
        out[0] = address
        return 0 if context == 77 else 1

    @ep.FreeFn
    def free(address, context):
        del live[address]
        return 0 if context == 77 else 1

    return live, alloc, free


if __name__ == '__main__':
    ranks.main('__main__')
