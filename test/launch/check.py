#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check.py EP_INFO EP_PERF LIBNCCL_EP SCHEMA CC...: ep_info --check between four ranks that are well, and between ranks of which
one has a fault: its verdict names that rank, every rank ends with status 1 and in time, and ep_perf fails the same way. Ranks
are started as Ray does, by variables."""
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'perf'))
import schema  # noqa: E402

EP_INFO, EP_PERF, LIBRARY, SCHEMA = (os.path.abspath(a) for a in sys.argv[1:5])
CC = sys.argv[5:]
del sys.argv[1:]
with open(SCHEMA, encoding='utf-8') as f:
    SCHEMA = json.load(f)
RANKS = 4
PERF = (EP_PERF, '-D', 'host', '-n', '1', '-w', '0', '-b', '8', '-e', '8', '-H', '256', '-x', '16')
LAUNCHERS = ('NCCL_', 'OMPI_', 'PMI', 'MPI_', 'SLURM_', 'TORCHELASTIC_', 'RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_')
TIMEOUTS = {'NCCL_EP_BOOTSTRAP_TIMEOUT_MS': '20000', 'NCCL_EP_TIMEOUT_MS': '5000'}


def environment(**more):
    left = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return dict(left, NCCL_EP_SOCKET_IFNAME='', **TIMEOUTS) | more


def alone(*arguments, **env):
    made = subprocess.run([EP_INFO, '--check', *arguments], env=environment(**env), capture_output=True, text=True, timeout=120)
    return made.returncode, made.stdout


def port():
    """Free now, and below the ports that the system gives to connections of other tests."""
    while True:
        with socket.socket() as s:
            number = random.randrange(10000, 20000)
            try:
                s.bind(('', number))
                return number
            except OSError:
                pass


def launch(command, odd=None, absent=None, **env):
    """Status of each rank, what rank 0 printed, and all errors. odd: a rank's number and its own variables."""
    env = environment(WORLD_SIZE=str(RANKS), MASTER_ADDR='127.0.0.1', NCCL_EP_PORT=str(port()), **env)
    running = []
    for rank in range(RANKS):
        own = odd[1] if odd and odd[0] == rank else {}
        if rank != absent:
            running.append(subprocess.Popen(command, env=env | own | {'RANK': str(rank)}, text=True,
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    ended = [p.communicate(timeout=120) for p in running]
    return [p.returncode for p in running], ended[0][0], ''.join(e for _, e in ended)


class Check(unittest.TestCase):
    def followed(self, text):
        made = json.loads(text)
        self.assertEqual(list(schema.faults(made, SCHEMA)), [])
        return made

    def sick(self, rank, says, **fault):
        """Every rank ends with status 1, and rank 0 blames the rank: the verdict, which is returned."""
        statuses, text, errors = launch([EP_INFO, '--check', '-D', 'host', '--json'], **fault)
        self.assertEqual(statuses, [1] * RANKS, errors)
        self.assertTrue(text, errors)
        made = self.followed(text)
        self.assertFalse(made['can_run'])
        self.assertRegex(made['findings'][0]['what'], rf'^rank {rank} \({socket.gethostname()}')
        self.assertIn(says, made['findings'][0]['what'])
        self.assertEqual(made['first'], made['findings'][0]['fix'])
        self.assertIn(f'rank {rank} (', made['first'])
        return made

    def test_threads(self):
        status, text = alone('-t', '4', '-D', 'host')
        self.assertEqual(status, 0, text)
        self.assertIn('# node 0: ' + socket.gethostname() + ': ranks 0-3\n', text)
        self.assertEqual(text.splitlines()[-2:], ['# EP can run between these ranks', '# first: nothing to do'])
        self.assertEqual(sum(line.endswith(' ok') for line in text.splitlines()), 4, text)

    def test_nodes(self):
        """Two simulated nodes: the map, the transport, the rails, and a time for every step."""
        status, text = alone('-g', '4', '-D', 'host', '--json', NCCL_EP_RANKS_PER_NODE='2', NCCL_EP_NET='loop')
        made = self.followed(text)
        self.assertEqual((status, made['can_run'], made['first']), (0, True, 'nothing to do'))
        self.assertEqual([n['ranks'] for n in made['nodes']], [[0, 1], [2, 3]])
        self.assertEqual([r['ranks'] for r in made['rails']], [[0, 2], [1, 3]])
        self.assertEqual([(r['node'], r['local'], r['net'], r['ok']) for r in made['ranks']],
                         [(0, 0, 'loop', True), (0, 1, 'loop', True), (1, 0, 'loop', True), (1, 1, 'loop', True)])
        for rank in made['ranks']:
            for step in ('comm', 'll_group', 'll_round', 'ht_group', 'ht_round'):
                self.assertGreater(rank[step + '_ms'], 0)
        self.assertEqual(os.path.realpath(made['ranks'][0]['libnccl_ep']), os.path.realpath(LIBRARY))

    def test_variables(self):
        statuses, text, errors = launch([EP_INFO, '--check', '-D', 'host', '--json'])
        self.assertEqual(statuses, [0] * RANKS, errors)
        self.assertEqual(self.followed(text)['started'], 'processes by RANK and WORLD_SIZE')

    def test_wrong_net(self):
        """Rank 3 has another transport: it is named, not one of those that have the usual one."""
        fault = {'odd': (3, {'NCCL_EP_NET': 'nosuch'}), 'NCCL_EP_RANKS_PER_NODE': '2'}
        self.assertIn('NCCL_EP_NET', self.sick(3, '"nosuch"', **fault)['first'])
        statuses, _, errors = launch(PERF, **fault)
        self.assertNotIn(0, statuses)
        self.assertIn('NCCL_EP_NET', errors)

    def test_memory(self):
        """A NIC that does not register memory on rank 1, as with a small limit of locked memory."""
        fault = {'NCCL_EP_NET': 'faulty(loop):refuse=1,rank=1', 'NCCL_EP_RANKS_PER_NODE': '2'}
        self.assertIn('memlock', self.sick(1, 'registration', **fault)['first'])
        self.assertNotIn(0, launch(PERF, **fault)[0])

    def test_silence(self):
        """Nothing that rank 1 sends arrives: the end comes by the timeout."""
        start = time.monotonic()
        made = self.sick(1, 'LL group', NCCL_EP_NET='faulty(loop):mute=1,rank=1', NCCL_EP_RANKS_PER_NODE='2',
                         NCCL_EP_TIMEOUT_MS='2000')
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual([r['phase'] for r in made['ranks']], ['LL group'] * RANKS)

    def test_broken_library(self):
        """What LD_LIBRARY_PATH gives rank 2 is no library: ep_info runs, and says so."""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, 'libnccl_ep.so.0'), 'wb') as broken:
                broken.write(b'not a library')
            made = self.sick(2, folder, odd=(2, {'LD_LIBRARY_PATH': folder}))
        self.assertEqual([r['phase'] for r in made['ranks']], ['libraries'] * RANKS)
        self.assertEqual([bool(r['error']) for r in made['ranks']], [False, False, True, False])

    def test_other_version(self):
        """Rank 1 has another version of the library, which works: a warning that names it."""
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, 'other.c')
            with open(source, 'w', encoding='utf-8') as out:
                out.write('#include <dlfcn.h>\nint ncclEpGetVersion(int *version);\nint ncclEpGetVersion(int *version)\n'
                          '{\n\t*version = 9999;\n\treturn 0;\n}\n__attribute__((constructor)) static void load(void)\n{\n'
                          f'\tdlopen("{LIBRARY}", RTLD_NOW | RTLD_GLOBAL);\n}}\n')
            subprocess.run([*CC, '-shared', '-fPIC', '-o', os.path.join(folder, 'libnccl_ep.so.0'), source], check=True)
            statuses, text, errors = launch([EP_INFO, '--check', '-D', 'host', '--json'],
                                            odd=(1, {'LD_LIBRARY_PATH': folder}))
        self.assertEqual(statuses, [0] * RANKS, text + errors)
        found = self.followed(text)['findings']
        self.assertEqual([f['level'] for f in found], ['warning'])
        self.assertRegex(found[0]['what'], r'^rank 1 .*9999')

    def test_absent(self):
        """Rank 3 never comes."""
        statuses, text, _ = launch([EP_INFO, '--check', '-D', 'host', '--json'], absent=3, NCCL_EP_BOOTSTRAP_TIMEOUT_MS='1000')
        self.assertEqual(statuses, [1] * (RANKS - 1))
        made = self.followed(text)
        self.assertIn('the first is rank 3', made['findings'][0]['what'])
        self.assertIn('start that rank', made['first'])


if __name__ == '__main__':
    unittest.main()
