#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether HT passes rows on inside a node while more arrive from the net: trace_overlap.py EP_PERF [OPTION...]. Runs ep_perf
with these options and NCCL_EP_TRACE, on two simulated nodes, and reads the engines' spans. Of an operation of a rank,

    arriving    the puts of rows to that rank, by the engines that sent them: their bytes, evenly between the end of the one
                before, or the beginning where that is later, and the end; a span covers puts without a completion, too;
    passing on  the steps that the rank has consumed: its kernel has written the step's rows to their places in the node, or
                summed them, and given the slot back.

Two numbers, both 0 where all rows arrive before any is passed on:

    overlap     of the time from the first to the last step that was passed on, the part while rows arrived;
    progress    of what had arrived, how much was passed on, on average over the time of arrival. It also shows a rank that
                lets many steps arrive and then passes them on at once; slots that are not given back stop more from coming.

Of dispatch and of combine the medians over all ranks must be OVERLAP and PROGRESS or more. The ranks are on one host: one
clock."""
import json
import os
import statistics
import subprocess
import sys
import tempfile

OVERLAP, PROGRESS = 0.6, 0.7
POINTS = 200  # of time at which the progress is taken
TRIES = 3  # on a busy machine ranks may start when all rows have arrived
STEPS = 8  # an operation with fewer has no time in which it passes rows on
ROWS_BYTES = 1024  # puts of fewer bytes are signals
OPERATIONS = ('update', 'dispatch', 'combine')


def end(span):
    return span['ts'] + span['dur']


def operations_of(spans):
    """The operations of a rank in their order; those of several engines that overlap are one."""
    out = []
    for s in sorted((s for s in spans if s['name'] == 'operation'), key=lambda s: s['ts']):
        if out and s['ts'] < out[-1]['end']:
            out[-1]['end'] = max(out[-1]['end'], end(s))
        else:
            out.append({'name': 'operation', 'start': s['ts'], 'end': end(s), 'consumed': [], 'puts': {}})
    calls = [s['name'] for s in sorted(spans, key=lambda s: s['ts']) if s['name'] in OPERATIONS]
    if len(calls) == len(out):
        for operation, name in zip(out, calls):
            operation['name'] = name
    return out


def ranks_read(events):
    """Per rank its operations, with when it consumed steps, and its puts of rows to each peer."""
    ranks = {}
    for rank in sorted({e['pid'] for e in events}):
        spans = sorted((e for e in events if e['ph'] == 'X' and e['pid'] == rank), key=lambda s: s['ts'])
        ranks[rank] = operations_of(spans)
        for s in spans:
            begun = [o for o in ranks[rank] if o['start'] <= s['ts']]
            if begun and s['name'] == 'consumed':
                begun[-1]['consumed'].append(s['ts'])
            if begun and s['name'] == 'put' and s['args'].get('n', 0) >= ROWS_BYTES:
                begun[-1]['puts'].setdefault(s['args']['peer'], []).append(s)
    return ranks


def arrivals(ranks, rank, operation):
    """From when, till when and how many bytes: the puts to the rank in the same operation of others, the one that overlaps
    most in time."""
    puts = []
    for other, theirs in ranks.items():
        if other != rank and theirs:
            same = max(theirs, key=lambda o: min(o['end'], operation['end']) - max(o['start'], operation['start']))
            before = 0
            for s in sorted(same['puts'].get(rank, []), key=end):
                puts.append((max(s['ts'], before), end(s), s['args']['n']))
                before = end(s)
    return puts


def judged(ranks):
    """The operations of all ranks that pass rows on, with the puts by which those arrived."""
    for rank, operations in ranks.items():
        for operation in operations:
            puts = arrivals(ranks, rank, operation)
            if puts and len(operation['consumed']) >= STEPS:
                yield operation, puts


def overlap(consumed, first, last):
    begin, done = min(consumed), max(consumed)
    return max(0, min(done, last) - max(begin, first)) / (done - begin)


def progress(consumed, puts, first, last):
    total, came, passed = sum(n for _, _, n in puts), 0, 0
    for i in range(1, POINTS + 1):
        now = first + (last - first) * i / POINTS
        there = sum(n * min(1, max(0, now - since) / max(till - since, 1e-3)) for since, till, n in puts) / total
        came += there
        passed += min(there, sum(t <= now for t in consumed) / len(consumed))
    return passed / came


def good(ranks):
    """Prints the medians of overlap and progress by the names of operations; whether they are good."""
    found = {}
    for operation, puts in judged(ranks):
        first, last, consumed = min(p[0] for p in puts), max(p[1] for p in puts), operation['consumed']
        found.setdefault(operation['name'], []).append(
            (overlap(consumed, first, last), progress(consumed, puts, first, last), last - first))
    assert found, f'no operation passes {STEPS} steps on'
    well = True
    for name, rows in sorted(found.items()):
        part, done, took = (statistics.median(column) for column in zip(*rows))
        print(f'{name}: {len(rows)} of ranks; rows arrived for {took:.0f} us, overlap {part:.1%}, progress {done:.1%}')
        well &= part >= OVERLAP and done >= PROGRESS
    return well


def apart(ranks):
    """The same, had every rank waited for all rows before it passed any on."""
    for operation, puts in list(judged(ranks)):
        late = max(0, max(p[1] for p in puts) - min(operation['consumed']))
        operation['consumed'] = [t + late for t in operation['consumed']]
    return ranks


def traced(command, folder):
    path = os.path.join(folder, 'trace.json')
    env = dict(os.environ, NCCL_EP_TRACE=path)
    env.setdefault('NCCL_EP_RANKS_PER_NODE', '2')
    made = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110)
    assert made.returncode == 0, made.stdout + made.stderr
    with open(path) as f:
        events = json.load(f)
    os.remove(path)
    return ranks_read(events)


def main(command):
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(TRIES):
            ranks = traced(command, folder)
            if good(ranks):
                print('the same, had each waited for all rows:')
                assert not good(apart(ranks)), 'a trace without overlap passes'
                return
    raise AssertionError(f'overlap under {OVERLAP:.0%} or progress under {PROGRESS:.0%}, {TRIES} times')


if __name__ == '__main__':
    main([os.path.abspath(sys.argv[1]), *sys.argv[2:]])
