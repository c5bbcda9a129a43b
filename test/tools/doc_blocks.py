#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""doc_blocks.py BUILD FILE...: runs the blocks of the documentation that are marked `sh run`, as a reader would.

In a folder that looks like the root of the repository with BUILD as build/, and $TMP an empty folder; blocks of a file share
nothing but that folder. Every other shell block must name what it needs (`sh needs: ...`). Exit status 0 or 1.
"""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BLOCK = re.compile(r'^```(sh|bash)([^\n]*)\n(.*?)^```$', re.M | re.S)
SECONDS = 120


def root_made(folder, build):
    for name in os.listdir(ROOT):
        if not name.startswith(('build', '.')):
            os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))
    os.symlink(build, os.path.join(folder, 'build'))


def block_run(where, text, build):
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as tmp:
        root_made(folder, build)
        env = {k: v for k, v in os.environ.items() if not k.startswith('NCCL_')}
        done = subprocess.run(['bash', '-euo', 'pipefail', '-c', text], cwd=folder, env=dict(env, TMP=tmp),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS)
    print(f'{"FAILED" if done.returncode else "ok    "} {where}', flush=True)
    if done.returncode:
        print(text, done.stdout[-3000:], sep='\n')
    return done.returncode != 0


def main(build, *files):
    ran = failed = 0
    for path in files:
        with open(path) as f:
            text = f.read()
        for m in BLOCK.finditer(text):
            where = f'{os.path.basename(path)}:{text.count(chr(10), 0, m.start()) + 1}'
            mark = m.group(2).strip()
            if mark == 'run':
                failed += block_run(where, m.group(3), os.path.abspath(build))
                ran += 1
            elif not re.fullmatch(r'needs: .+', mark):
                print(f'FAILED {where}: a shell block is marked "run", or "needs: WHAT" and then not run')
                failed += 1
    print(f'doc_blocks: {ran} run, {failed} failed')
    return 1 if failed or not ran else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
