#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ep_info's verdict against what then runs: ep_info.py EP_INFO PROGRAM STANDIN. PROGRAM runs LL between simulated nodes over
the transport it is given, so it fails where a job across hosts would. Hosts are modelled by the environment: no transport to
other hosts, one that does not exist, 64 KiB of locked memory, a second libnccl, a wrong NCCL_EP_HOME."""
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

EP_INFO, PROGRAM, STANDIN = (os.path.abspath(a) for a in sys.argv[1:4])
del sys.argv[1:]


def small_memlock():
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))


def run(*command, limit=None, **env):
    left = {k: v for k, v in os.environ.items() if not k.startswith('NCCL_')}
    return subprocess.run(command, env=dict(left, **env), preexec_fn=limit, capture_output=True, text=True, timeout=120)


class Verdict(unittest.TestCase):
    def verdict(self, limit=None, **env):
        """Exit status, findings and the last line, alike in text and JSON."""
        text, made = run(EP_INFO, limit=limit, **env), run(EP_INFO, '--json', limit=limit, **env)
        found = json.loads(made.stdout)
        self.assertEqual(text.returncode, made.returncode)
        self.assertEqual(found['can_run'], made.returncode == 0)
        self.assertEqual(text.stdout.splitlines()[-1], '# first: ' + found['first'])
        for finding in found['findings']:
            self.assertIn(f'# {finding["level"]}: {finding["what"]}', text.stdout)
        return found

    def whats(self, found):
        return ' '.join(f['what'] for f in found['findings'])

    def test_nothing(self):
        """No NIC and no libfabric: jobs of one host run, and it says what others need."""
        found = self.verdict(NCCL_EP_NET='^verbs,fabric')
        self.assertTrue(found['can_run'])
        self.assertIn('libfabric', found['first'])
        self.assertEqual(run(PROGRAM, 'loop').returncode, 0)

    def test_transport(self):
        """The one it names for several hosts connects ranks."""
        found = self.verdict()
        name = found['facts']['transports']['ranks of several hosts']
        if name == 'none':
            self.skipTest('no transport to other hosts here')
        self.assertEqual(run(PROGRAM, name).returncode, 0, name)

    def test_wrong_transport(self):
        for name in ('nosuch', 'verbs'):
            if name == 'verbs' and os.path.isdir('/sys/class/infiniband') and os.listdir('/sys/class/infiniband'):
                continue
            found = self.verdict(NCCL_EP_NET=name)
            self.assertFalse(found['can_run'], name)
            self.assertIn(name, self.whats(found))
            self.assertNotEqual(run(PROGRAM, name).returncode, 0, name)

    def test_memlock(self):
        """64 KiB matter to RDMA devices only: sockets lock nothing."""
        found = self.verdict(limit=small_memlock)
        self.assertEqual(found['facts']['host']['locked memory'], '64 KiB')
        name = found['facts']['transports']['ranks of several hosts']
        works = run(PROGRAM, name if name != 'none' else 'loop', limit=small_memlock).returncode == 0
        self.assertEqual(found['can_run'], works)

    def test_second_nccl(self):
        with tempfile.TemporaryDirectory() as folder:
            package = os.path.join(folder, 'nvidia', 'nccl')
            os.makedirs(os.path.join(package, 'lib'))
            open(os.path.join(package, '__init__.py'), 'w').close()
            copy = shutil.copy(STANDIN, os.path.join(package, 'lib', 'libnccl.so.2'))
            here = os.path.join(folder, 'here')
            os.mkdir(here)
            os.symlink(STANDIN, os.path.join(here, 'libnccl.so.2'))
            found = self.verdict(PYTHONPATH=folder, LD_LIBRARY_PATH=here)
            self.assertIn('two libnccl', self.whats(found))
            self.assertIn(os.path.realpath(copy), self.whats(found))
            self.assertIn(os.path.realpath(STANDIN), self.whats(found))
            os.remove(os.path.join(here, 'libnccl.so.2'))
            os.symlink(copy, os.path.join(here, 'libnccl.so.2'))  # the same file by two ways is one library
            self.assertNotIn('two libnccl', self.whats(self.verdict(PYTHONPATH=folder, LD_LIBRARY_PATH=here)))

    def test_home(self):
        found = self.verdict(NCCL_EP_HOME='/nonexistent')
        self.assertFalse(found['can_run'])
        self.assertIn('NCCL_EP_HOME', found['first'])

    def test_parameters(self):
        rows = {p['name']: p for p in self.verdict(NCCL_IB_TC='7')['parameters']}
        self.assertEqual((rows['NCCL_EP_IB_TC']['value'], rows['NCCL_EP_IB_TC']['source']), ('7', 'NCCL_IB_TC'))
        self.assertEqual(rows['NCCL_EP_IB_SL']['source'], 'default')


if __name__ == '__main__':
    unittest.main()
