#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What LL between two simulated nodes on one GPU may take, and what it takes. With several EP_PERF, of builds to compare, each
run is made by one after the other, on the same GPU at the same time. Printed are medians of the rounds. The targets, in us:

    one     1 token, 2 ranks on 2 nodes, groups for 1 and for 128 tokens: the time in one node + 15 over loop (rows through
            host memory), + 22 over the NIC made of SMs with a latency of 5;
    many    128 tokens, 4 + 4 ranks of 14 SMs, 16 SMs of NICs at 400 Gb/s, latency 5, ordered and not: 1.2 times the longer of
            one node and bytes / rate, + 40; for kernels as the engines saw them, and for graphs with ten of a dispatch and a
            combine the sum of both. A graph with one of each may take as much more as it does in one node: that is its launch.

A missed target is printed, and an error with --strict only; a wrong value or a run that fails always is."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

SM = 'sm:rate=400,latency=5000'
PARTS = ('send_ring_us', 'engine_us', 'net_us', 'signal_us', 'unpack_us', 'kernel_us')
BOTH = ('dispatch', 'combine')


class Build:
    def __init__(self, program):
        self.program = program
        root = os.path.dirname(os.path.dirname(os.path.abspath(program)))
        self.name = os.path.basename(root)
        self.plugin = os.path.join(root, 'test', 'gpu', 'libnet_sm.so')

    def run(self, options, net=None, per_node=0):
        """The rows of a run by their phases, each with the latency of the net."""
        env = {'CUDA_DEVICE_MAX_CONNECTIONS': '32', **os.environ, 'NCCL_EP_NET_PLUGIN': self.plugin}
        if net:
            env.update(NCCL_EP_NET=net, NCCL_EP_RANKS_PER_NODE=str(per_node))
        with tempfile.NamedTemporaryFile(suffix='.json') as out:
            command = [self.program, '-a', 'll', *options.split(), '-J', out.name]
            what = f'{" ".join(command)}, NCCL_EP_NET={net or ""}'
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                sys.exit(f'{what}: exit status {done.returncode}\n{done.stdout}')
            with open(out.name) as f:
                report = json.load(f)
        wrong = sum(row['wrong'] or 0 for row in report['rows'])
        if wrong:
            sys.exit(f'{what}: {wrong} wrong values')
        return {row['phase']: dict(row, latency_us=report.get('net_latency_us') or 0) for row in report['rows']}


class Runs:
    """What all builds measured, in turns."""

    def __init__(self, builds, rounds, runs):
        self.rows = {}
        for _ in range(rounds):
            for run, how in runs.items():
                for build in builds:
                    self.rows.setdefault((build, run), []).append(build.run(*how))

    def all(self, build, run, phase, what):
        return [what(rows[phase]) for rows in self.rows[build, run]]

    def median(self, build, run, phase, what):
        values = self.all(build, run, phase, what)
        return statistics.median(values) if None not in values else None


def time_of(row):
    return row['device_us'] or row['host_us']


def kernel_of(row):
    return row['kernel_us']


def wire_of(row):
    return row['wire_us'] - row['latency_us']


class Table:
    def __init__(self, builds):
        self.width = max(5, *(len(build.name) for build in builds))
        self.missed = 0

    def head(self, text):
        print(f'#\n# {text}')
        names = ['one node', 'time'] + [part[:-3].replace('_', '+') for part in PARTS] + ['limit']
        print('#', 'build'.ljust(self.width), 'run'.ljust(26), 'phase'.ljust(8), *(name.rjust(9) for name in names), flush=True)

    def line(self, runs, build, run, phase, limit, judged, near='near'):
        """judged: what of a row must not exceed the limit. near: the run in one node."""
        values = runs.all(build, run, phase, judged)
        by = statistics.median(values) - limit
        self.missed += by > 0
        what = [runs.median(build, near, phase, time_of), runs.median(build, run, phase, time_of)]
        what += [runs.median(build, run, phase, lambda row, part=part: row.get(part)) for part in PARTS] + [limit]
        print(' ', build.name.ljust(self.width), run.ljust(26), phase.ljust(8),
              *('-'.rjust(9) if value is None else f'{value:9.1f}' for value in what),
              f'  {"MISSED" if by > 0 else "holds"} by {abs(by):.1f}, {min(values):.1f} to {max(values):.1f}', flush=True)


def one(opts, builds, table):
    nets = {'loop': ('loop', 15)}
    if opts.device == 'cuda' and not opts.processes:
        nets['sm'] = (SM + ',sms=4', 22)
    table.head(f'1 token, 2 ranks on 2 nodes, {"processes" if opts.processes else "threads"}: times in us')
    for sms in opts.sms:
        for most in opts.groups:
            options = (f'-D {opts.device} -{"g" if opts.processes else "t"} 2 -m {sms} -x 64 -b 1 -e {most} -f {most + 1} '
                       f'-n {opts.iterations * 3} -w 50 -c 0')
            names = {f'{net}, {sms} SMs, for {most}': how for net, how in nets.items()}
            runs = Runs(builds, opts.rounds, {'near': (options,)} | {run: (options, net, 1) for run, (net, _) in names.items()})
            for run, (_, more) in names.items():
                for phase in BOTH:
                    for build in builds:
                        table.line(runs, build, run, phase, runs.median(build, 'near', phase, time_of) + more, time_of)


def many(opts, builds, table):
    table.head('128 tokens, 4 + 4 ranks, 400 Gb/s, latency 5 us: times in us')
    common = '-D cuda -t 8 -m 14 -x 256 -b 128 -e 128 -c 0'
    graph = common + f' -G 1 -n {opts.iterations} -w 20'
    graphs = common + f' -G 1 --graph-rounds 10 -n {opts.iterations // 7 + 1} -w 4'
    nets = {'ordered': SM + ',sms=16', 'unordered': SM + ',sms=16,unordered=1'}
    plain = {'near': (common + f' -n {opts.iterations} -w 20',)}
    graphed = {'near, ten': (graphs,), 'near, one': (graph,)}
    for name, net in nets.items():
        plain[name] = (plain['near'][0], net, 4)
        graphed[f'{name}, ten in a graph'] = (graphs, net, 4)
        graphed[f'{name}, one in a graph'] = (graph, net, 4)
    runs, replayed = Runs(builds, opts.rounds, plain), Runs(builds, opts.rounds, graphed)
    for name in nets:
        for phase in BOTH:
            for build in builds:
                table.line(runs, build, name, phase, limit_many(runs, build, name, phase), kernel_of)
    for name in nets:
        for each in ('ten', 'one'):
            for build in builds:
                near = {n: replayed.median(build, f'near, {n}', 'graph', time_of) for n in ('ten', 'one')}
                limit = sum(limit_many(runs, build, name, phase) for phase in BOTH) + max(0, near[each] - near['ten'])
                table.line(replayed, build, f'{name}, {each} in a graph', 'graph', limit, time_of, f'near, {each}')


def limit_many(runs, build, run, phase):
    return 1.2 * max(runs.median(build, 'near', phase, time_of), runs.median(build, run, phase, wire_of)) + 40


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('what', choices=('one', 'many'))
    parser.add_argument('program', metavar='EP_PERF', nargs='+')
    parser.add_argument('--processes', action='store_true', help='ranks of one as processes, over loop only')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--iterations', type=int, default=100)
    parser.add_argument('--sms', type=int, nargs='+', default=[8, 32, 64], help='of a rank, for one')
    parser.add_argument('--groups', type=int, nargs='+', default=[1, 128], help='for so many tokens, for one')
    parser.add_argument('--device', default='cuda', help='of one')
    parser.add_argument('--strict', action='store_true')
    opts = parser.parse_args()
    builds = [Build(program) for program in opts.program]
    table = Table(builds)
    {'one': one, 'many': many}[opts.what](opts, builds, table)
    print(f'# {table.missed} missed')
    sys.exit(1 if opts.strict and table.missed else 0)


if __name__ == '__main__':
    main()
