#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ep_info --dump on files written by hand, for what a job shows only once in many runs: dump_join.py EP_INFO."""
import os
import subprocess
import sys
import tempfile
import unittest

EP_INFO = os.path.abspath(sys.argv[1])
del sys.argv[1:]


def dump(rank, ranks, *lines, end='end\n'):
    head = ['anyep_dump 1', 'group 0000abcd', f'rank {rank} of {ranks}', f'host h{rank} pid 1', 'algorithm HT']
    return '\n'.join(head + list(lines)) + '\n' + end


class Join(unittest.TestCase):
    def join(self, *dumps):
        """Exit status, the lines that are no comments, and stderr."""
        with tempfile.TemporaryDirectory() as folder:
            for i, text in enumerate(dumps):
                with open(os.path.join(folder, f'{i}.dump'), 'w') as f:
                    f.write(text)
            done = subprocess.run([EP_INFO, '--dump', folder], capture_output=True, text=True, timeout=30)
        return done.returncode, [line for line in done.stdout.splitlines() if line[0] != '#'], done.stderr

    def test_reporter(self):
        """A rank that only passed the failure on is not blamed, however many name it."""
        remote = 'waited remote dispatch 2 phase receive rank 2 and 0'
        rc, said, _ = self.join(dump(0, 4, remote), dump(1, 4, remote),
                                dump(2, 4, 'waited timeout combine 3 phase receive rank 0 and 0'),
                                dump(3, 4, 'waited remote combine 3 phase receive rank 2 and 0', 'engine 0 does_not_answer'))
        self.assertEqual(rc, 0)
        self.assertEqual(len(said), 1)
        self.assertTrue(said[0].startswith('rank 3 is past dispatch 2, but what it sent there has not arrived; '), said)
        self.assertIn('Its engine is stuck in the transport', said[0])

    def test_running(self):
        """Asked for before any deadline: no kernel has reported, one rank is in no operation."""
        waits = ('launched 8 ended 7 last combine age_ms 900', 'heard 0 811', 'heard 1 811', 'heard 2 811')
        rc, said, _ = self.join(dump(0, 3, *waits), dump(1, 3, *waits),
                                dump(2, 3, 'launched 7 ended 7 last dispatch age_ms 900', 'heard 2 811'))
        self.assertEqual((rc, len(said)), (0, 1))
        self.assertTrue(said[0].startswith('rank 2 never entered combine 812; 2 ranks wait for it'), said)

    def test_broken(self):
        """Files that are no dumps, or not complete, are named and left out."""
        whole = dump(0, 2, 'waited timeout combine 4 phase receive rank 1 and 1', 'heard 0 3', 'heard 1 3')
        rc, said, err = self.join(whole, dump(1, 2, 'heard 1 9', end=''), 'rank 1 of 70000000\n', '\n')
        self.assertEqual((rc, len(said)), (0, 1))
        self.assertTrue(said[0].startswith('rank 1 has sent nothing of combine 4; 1 rank waits for it'), said)
        for i in (1, 2, 3):
            self.assertIn(f'{i}.dump: no complete dump', err)

    def test_none(self):
        rc, said, err = self.join()
        self.assertEqual((rc, said), (1, []))
        self.assertIn('NCCL_EP_DUMP_DIR', err)


if __name__ == '__main__':
    unittest.main()
