# SPDX-License-Identifier: Apache-2.0
"""Ranks for tests of deep_ep: processes that meet by torch.distributed over gloo, or threads that meet as with mpi4py.

On processes every call of torch.distributed is counted: a Buffer makes one, all_gather_object, and nothing else. Where torch
has a GPU all processes share it: a test gives tensors of the host, which are copied there, and gets the GPU's back.
"""
import importlib
import multiprocessing
import os
import sys
import tempfile
import threading
import traceback
import unittest
import unittest.mock

import torch
import torch.distributed as dist

SECONDS = 150  # for all ranks to end; the library's own deadline is shorter
TRAFFIC = ('all_gather', 'all_gather_into_tensor', 'all_gather_object', 'all_reduce', 'all_to_all', 'all_to_all_single',
           'barrier', 'broadcast', 'broadcast_object_list', 'gather', 'gather_object', 'irecv', 'isend', 'recv', 'reduce',
           'reduce_scatter', 'reduce_scatter_tensor', 'scatter', 'scatter_object_list', 'send')


GPU = torch.cuda.is_available()
DEVICE = torch.device('cuda', 0) if GPU else torch.device('cpu')


def moved(value):
    """Tensors on the device, also in tuples and dictionaries; those that are there already stay the same objects."""
    if isinstance(value, torch.Tensor):
        return value.to(DEVICE)
    if type(value) is tuple:  # a handle is left as it is
        return tuple(moved(v) for v in value)
    return {k: moved(v) for k, v in value.items()} if isinstance(value, dict) else value


class OnDevice:
    """A Buffer whose methods take tensors of the host too."""

    def __init__(self, buffer):
        self._buffer = buffer

    def __getattr__(self, name):
        found = getattr(self._buffer, name)
        if not callable(found):
            return found
        return lambda *arguments, **more: found(*moved(arguments), **moved(more))


class Rank:
    """A rank of a test: `buffer` takes the arguments of deep_ep.Buffer, without the group."""

    def __init__(self, rank, ranks, arguments):
        self.rank, self.ranks, self._arguments = rank, ranks, arguments
        self.buffers = 0

    def meet(self):
        """A barrier; for threads."""
        self._arguments['comm'].allgather(None)

    def buffer(self, *arguments, **more):
        import deep_ep
        self.buffers += 1
        given = dict(self._arguments)
        made = deep_ep.Buffer(given.pop('group'), *arguments, **given, **more)
        return OnDevice(made) if GPU else made


def count_traffic(calls):
    """Replaces the functions, before anything else can have taken them by name."""
    def counted(name, function):
        def call(*arguments, **more):
            calls[name] = calls.get(name, 0) + 1
            with unittest.mock.patch.dict(vars(dist), {name: function}):
                return function(*arguments, **more)
        return call

    for name in TRAFFIC:
        if hasattr(dist, name):
            setattr(dist, name, counted(name, getattr(dist, name)))


def process_main(rank, function, ranks, folder, counted):
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    if GPU:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group('gloo', store=dist.FileStore(os.path.join(folder, 'store'), ranks), rank=rank, world_size=ranks)
    calls, end = {}, dist.barrier
    me = Rank(rank, ranks, dict(group=dist.group.WORLD))
    count_traffic(calls)
    function(me)
    assert not counted or calls == {'all_gather_object': me.buffers}, f'rank {rank}: torch.distributed was used: {calls}'
    end()


def processes_end(processes):
    """Starts them, waits until all have ended, and says how."""
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
        process.kill()
        process.join()
    return [process.exitcode for process in processes]


def fork_ranks(arguments, ranks, preload):
    """In a process of its own: imports once what every rank needs, then the ranks are copies of it."""
    for name in preload:
        importlib.import_module(name)
    context = multiprocessing.get_context('fork')
    codes = processes_end([context.Process(target=process_main, args=(r, *arguments)) for r in range(ranks)])
    if any(codes):
        sys.exit(f'exit statuses of the ranks: {codes}')


def as_processes(function, ranks=2, counted=True, preload=(), **env):
    """counted: function may not use torch.distributed but by making Buffers, of which it tells how many."""
    context = multiprocessing.get_context('spawn')
    with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(os.environ, env):
        arguments = function, ranks, folder, counted
        if GPU:  # CUDA does not outlive a fork
            codes = processes_end([context.Process(target=process_main, args=(r, *arguments)) for r in range(ranks)])
        else:
            parent = context.Process(target=fork_ranks, args=(arguments, ranks, preload))
            parent.start()
            parent.join()
            codes = [parent.exitcode]
    if any(codes):
        raise AssertionError(f'exit statuses: {codes}')


class Comm:
    """A communicator with the three methods of mpi4py's that a Buffer calls."""

    def __init__(self, rank, ranks, box, barrier):
        self._rank, self._ranks, self._box, self._barrier = rank, ranks, box, barrier

    def Get_rank(self):
        return self._rank

    def Get_size(self):
        return self._ranks

    def allgather(self, mine):
        self._box[self._rank] = mine
        self._barrier.wait()
        everyone = list(self._box)
        self._barrier.wait()
        return everyone


def as_threads(function, ranks=2):
    box, barrier, failed = [None] * ranks, threading.Barrier(ranks), []

    def main(rank):
        try:
            function(Rank(rank, ranks, dict(group=None, comm=Comm(rank, ranks, box, barrier))))
        except BaseException:
            failed.append(f'rank {rank}:\n{traceback.format_exc()}')

    threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    failed += [f'{thread.name} is still running' for thread in threads if thread.is_alive()]
    if failed:
        raise AssertionError('\n'.join(failed))


class Placements:
    """Test cases of a function, which is given a Rank: ranks as processes, on two pretended nodes, and as threads."""
    everything = None
    threads = ()  # ranks that meet as with mpi4py

    def test_processes(self):
        as_processes(self.everything, 4 if GPU else 2)

    @unittest.skipUnless(GPU, 'eight processes take long on few cores')
    def test_eight(self):
        as_processes(self.everything, 8)

    def test_two_nodes(self):
        as_processes(self.everything, 4, NCCL_EP_RANKS_PER_NODE='2')

    @unittest.skipIf(GPU, 'threads share a default stream, in which ranks would wait for each other')
    def test_threads(self):
        for ranks in self.threads:
            as_threads(self.everything, ranks)
