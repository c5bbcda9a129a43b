# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks, as threads or as processes, and tensors without numpy or torch."""
import ctypes
import multiprocessing
import os
import sys
import threading
import traceback
import unittest
import unittest.mock

import nccl_ep as ep

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = 60  # for all ranks to end; the library's own deadline is shorter
F32, I32, I64, U8 = ctypes.c_float, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint8


class Rank:
    def __init__(self, rank, ranks, comm):
        self.rank, self.ranks, self.comm = rank, ranks, comm


def rank_run(function, rank, ranks, uid):
    comm = ep.Communicator.init(ranks, rank, ep.UniqueId.from_bytes(uid))
    function(Rank(rank, ranks, comm))
    comm.destroy()


def as_threads(function, ranks=2):
    uid, failed = ep.get_unique_id().as_bytes, []

    def main(rank):
        try:
            rank_run(function, rank, ranks, uid)
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


def as_processes(function, ranks=2, **env):
    context = multiprocessing.get_context('spawn')
    uid = ep.get_unique_id().as_bytes
    processes = [context.Process(target=rank_run, args=(function, rank, ranks, uid)) for rank in range(ranks)]
    with unittest.mock.patch.dict(os.environ, env):  # the library reads it once, when it is opened
        for process in processes:
            process.start()
    for process in processes:
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
    codes = [process.exitcode for process in processes]
    if any(codes):
        raise AssertionError(f'exit statuses of the ranks: {codes}')


# ---- tensors: nested lists in and out ----

def tensor(kind, shape, values=None, fill=0):
    """A ctypes array of this shape, filled with a list of lists, or with one value everywhere."""
    array_type = kind
    for n in reversed(shape):
        array_type = array_type * n
    array = array_type()
    flat = flat_of(array, kind)
    if values is None:
        for i in range(len(flat)):
            flat[i] = fill
    else:
        flat[:] = list(flatten(values))
    return array


def flat_of(array, kind):
    return (kind * (ctypes.sizeof(array) // ctypes.sizeof(kind))).from_buffer(array)


def flatten(values):
    for v in values:
        if isinstance(v, (list, tuple)):
            yield from flatten(v)
        else:
            yield v


def rows(array):
    """Nested lists of an array of two dimensions."""
    return [list(row) for row in array]


def same(what, got, want):
    assert got == want, f'{what}: got {got}, must be {want}'


def main(module):
    """unittest without a cache of bytecode beside the sources."""
    sys.dont_write_bytecode = True
    unittest.main(module=module, verbosity=2)
