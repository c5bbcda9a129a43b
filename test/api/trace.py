#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The trace of LL across two simulated nodes: trace.py PROGRAM. It parses, every rank has every operation, the spans of a
kernel (rows, wait) cover 90 % of the time of its operation, and the engines' batches and puts are in it. Without
NCCL_EP_TRACE there is no file."""
import json
import os
import subprocess
import sys
import tempfile

RANKS, ROUNDS, COVER = 4, 3, 0.9
TRIES = 4  # on a busy machine a rank may lose its CPU between a call and its kernel
OPERATIONS = ('dispatch', 'combine')


def run(program, folder, **more):
    env = {k: v for k, v in os.environ.items() if k != 'NCCL_EP_TRACE'}
    subprocess.run([program], env=dict(env, **more), cwd=folder, check=True, timeout=120)


def covered(span, parts):
    """The part of a span's time that is in the union of the others."""
    start, end = span['ts'], span['ts'] + span['dur']
    total, at = 0, start
    for a, b in sorted((p['ts'], p['ts'] + p['dur']) for p in parts):
        a, b = max(a, at), min(b, end)
        if b > a:
            total, at = total + b - a, b
    return total / span['dur']


def rank_check(rank, spans, rows):
    calls = [s for s in spans if s['name'] in OPERATIONS]
    want = ROUNDS * len(OPERATIONS)
    assert len(calls) == want, f'rank {rank}: {len(calls)} operations, not {want}'
    parts = [s for s in spans if s['name'] in ('rows', 'wait')]
    least = min(covered(s, parts) for s in calls)
    assert any(s['name'] == 'wait' for s in parts), f'rank {rank}: no wait'
    engine = [s for s in spans if 'engine' in rows[s['tid']]]
    puts = [s for s in engine if s['name'] == 'put']
    far = {r for r in range(RANKS) if r // 2 != rank // 2}
    assert {s['args']['peer'] for s in puts} == far, f'rank {rank}: puts to {[s["args"] for s in puts]}'
    assert any(s['args'].get('n', 0) > 4096 for s in puts), f'rank {rank}: no put has rows'
    for name in ('batch', 'operation', 'in flight'):
        assert any(s['name'] == name for s in engine), f'rank {rank}: its engine has no span "{name}"'
    return least


def traced(program, folder):
    """The least part of an operation that is covered, of all ranks."""
    path = os.path.join(folder, 'trace.json')
    run(program, folder, NCCL_EP_TRACE=path)
    with open(path) as f:
        events = json.load(f)
    os.remove(path)
    rows = {e['tid']: e['args']['name'] for e in events if e['name'] == 'thread_name'}
    return min(rank_check(rank, [e for e in events if e['ph'] == 'X' and e['pid'] == rank], rows) for rank in range(RANKS))


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        run(program, folder)
        assert not os.listdir(folder), f'files without NCCL_EP_TRACE: {os.listdir(folder)}'
        for _ in range(TRIES):
            least = traced(program, folder)
            print(f'every operation of every rank is covered by {least:.1%}')
            if least >= COVER:
                return
        raise AssertionError(f'spans cover less than {COVER:.0%} of an operation, {TRIES} times')


if __name__ == '__main__':
    main(os.path.abspath(sys.argv[1]))
