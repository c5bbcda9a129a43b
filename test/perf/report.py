# SPDX-License-Identifier: Apache-2.0
"""report.py EP_PERF SCHEMA: what ep_perf writes follows its schema and adds up: percentiles, rows per rank, bytes between
ranks, skewed routing, ranks without tokens, SMs per operation; and the progress line is for terminals only."""
import copy
import json
import os
import pty
import subprocess
import sys
import tempfile

import schema

PERF, SCHEMA = sys.argv[1], json.load(open(sys.argv[2]))
COMMON = ['-D', 'host', '-n', '4', '-w', '1']


def run(*options, status=0, env=None):
    """(JSON, output)"""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'json')
        done = subprocess.run([PERF, *COMMON, '-J', path, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env={**os.environ, **(env or {})})
        assert done.returncode == status, f'{options}: exit status {done.returncode}\n{done.stdout}'
        return (json.load(open(path)) if os.path.exists(path) else None), done.stdout


def check(report):
    found = list(schema.faults(report, SCHEMA))
    assert not found, '\n'.join(found)
    for row in report['rows']:
        ranks = row['ranks']
        assert [r['rank'] for r in ranks] == list(range(report['ranks'])), row
        for name in ('bytes', 'remote_bytes'):
            assert abs(sum(r[name] for r in ranks) - row[name] * len(ranks)) <= len(ranks), (name, row)
        assert row['best_us'] <= row['p50_us'] <= row['p99_us'], row
        # The slowest rank of an iteration is no faster than any rank's, so neither are its percentiles.
        assert all(r['p50_us'] <= r['p99_us'] <= r['worst_us'] <= row['p99_us'] for r in ranks), row
        if row['bytes']:
            time = row['host_us']
            assert abs(row['algbw'] - row['bytes'] / time / 1e3) < 0.002 and \
                abs(row['busbw'] - row['remote_bytes'] / time / 1e3) < 0.002, row
        assert row['wrong'] == 0 and all(r['wrong'] == 0 for r in ranks), row


def rows_of(report, phase):
    return [r for r in report['rows'] if r['phase'] == phase]


def schema_can_fail(report):
    for spoil in (lambda r: r.pop('launcher'), lambda r: r.update(extra=1), lambda r: r.update(ranks='4'),
                  lambda r: r['rows'][0].update(phase='other'), lambda r: r['rows'][0]['ranks'][0].update(bytes=-1)):
        spoiled = copy.deepcopy(report)
        spoil(spoiled)
        assert list(schema.faults(spoiled, SCHEMA))


def terminal():
    """What a run prints when standard output is a terminal."""
    parent, child = pty.openpty()
    with subprocess.Popen([PERF, '-D', 'host', '-t', '2', '-b', '64', '-e', '64', '-H', '2048', '-n', '400', '-c', '0'],
                          stdout=child) as process:
        os.close(child)
        seen = b''
        while True:
            try:
                data = os.read(parent, 65536)
            except OSError:
                break
            if not data:
                break
            seen += data
    os.close(parent)
    assert process.returncode == 0
    return seen


def main():
    even, out = run('-t', '4', '-b', '8', '-e', '32', '-f', '4', '-H', '256', '-x', '32')
    check(even)
    schema_can_fail(even)
    assert '\r' not in out and '\033' not in out, 'a progress line in a pipe'
    assert '# rank ' not in out
    # Of 8 rows per token, each rank's own share stays where it is.
    row = rows_of(even, 'dispatch')[-1]
    assert row['bytes'] == 32 * 8 * 256 * 2 and 0.6 < row['remote_bytes'] / row['bytes'] < 0.9, row

    skewed, out = run('-t', '4', '-b', '32', '-e', '32', '-H', '256', '-x', '32', '--zipf', '1.5', '--idle', '2', '-R')
    check(skewed)
    assert len([line for line in out.splitlines() if line.startswith('# rank ')]) == 8, out
    row = rows_of(skewed, 'dispatch')[0]
    got = [r['bytes'] for r in row['ranks']]
    assert sum(got) == 2 * 32 * 8 * 256 * 2, 'ranks 2 and 3 have no tokens'
    assert got[0] > 1.15 * got[3], f'the most popular expert is on rank 0: {got}'
    assert [r['remote_bytes'] == r['bytes'] for r in row['ranks']] == [False, False, True, True], row

    report, _ = run('-a', 'ht', '-g', '3', '-b', '16', '-e', '16', '-H', '128', '--zipf', '1', '--idle', '1', '-l', 'expert',
                    '--bwd', '--dispatch-sms', '2', '--combine-sms', '3')
    check(report)
    assert (report['dispatch_sms'], report['combine_sms'], report['idle_ranks']) == (2, 3, 1)
    report, _ = run('-t', '2', '-e', '4', '-H', '512', env={'NCCL_EP_RANKS_PER_NODE': '1', 'NCCL_EP_NET': 'loop'})
    check(report)
    assert report['net'] == 'loop' and rows_of(report, 'combine')[0]['net_puts'] > 0
    # Each reaches its own member of the configuration: more than the CPU device has is refused by name.
    for option, member in (('--dispatch-sms', 'dispatch_num_sms'), ('--combine-sms', 'combine_num_sms')):
        for mode in ('ll', 'ht'):
            _, out = run('-a', mode, '-t', '2', '-e', '4', '-H', '128', option, '70000', status=1)
            assert member in out, out
    run('-t', '2', '--idle', '2', status=2)
    run('-t', '2', '--zipf', '-1', status=2)

    seen = terminal()
    assert b'\r\033[K# ' in seen and b': iteration' in seen, seen
    # The line is gone before a row is printed.
    assert all(b': iteration' not in line.rsplit(b'\r\033[K', 1)[-1] for line in seen.split(b'\n')), seen
    print('passed')


main()
