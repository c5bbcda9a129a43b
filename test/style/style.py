#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""style.py [--root DIR] [--self-test]: the style budget as a test.

Prints every finding as FILE:LINE: RULE: MESSAGE, then the figures of the tree, then "N passed, N failed" (rules, not
files). --self-test runs every rule on planted snippets, bad and good, and fails when a rule does not tell them apart.
"""
import argparse
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import ccode
from layers import circles, layers
from vocabulary import vocabulary

LIBRARY = ('util', 'kernels', 'net', 'proxy', 'plugin')
FILE_MAX, TEST_FILE_MAX = 600, 800
NAMED_FILE_MAX = {'README.md': 60, 'run': 200}
FN_MAX, FN_RARE_MAX, FN_RARE_SHARE, KERNEL_FN_MAX, TEST_FN_MAX = 60, 100, 0.02, 150, 100
PARAMS_MAX = 7
LONG_LINES_SHARE = 0.05
IFS_PER_1000 = 2.0
COLUMNS = 120

# Where conditionals are the point: device primitives, the emulator behind them, headers for any compiler.
IF_FREE = re.compile(r'kernels/gx/|kernels/simt/|include/')
KERNEL = re.compile(r'\b(?:__global__|GX_KERNEL)\b')
# The contract fixes these signatures: ours and the ones the stand-in takes over from NCCL.
CONTRACT = re.compile(r'nccl[A-Z]')

# Functions over 60 lines that may stay, and why. Together with unlisted ones they are at most 2 % of all.
LONG_FUNCTIONS = {}

BANNED = re.compile(r'(?<![\w.>])(exit|_exit|quick_exit|abort|assert|v?f?printf|puts|fputs|putchar|perror|getenv|'
                    r'secure_getenv|setenv|putenv|system|popen|strcpy|strcat|v?sprintf|gets|strtok|alloca)\s*\(')
# The log prints, the parameter table reads the environment, and the emulator aborts a test that breaks a rule of the GPU.
BANNED_BUT = {
    'util/log.c': ('fprintf', 'vfprintf'),
    'util/param.c': ('getenv',),
    'kernels/simt/': ('abort', 'fprintf'),
}

# Spelled with a class each, so that this file does not find itself.
WORDS = re.compile(r'/(?:wor[k]|roo[t]|home/\w+)/|(?:pyp[i]|pythonhoste[d]|npmj[s]|conda-forg[e]|crate[s])\.(?:org|io|com)|'
                   r'\b(?:deb|security|snapshot)\.debia[n]\.org|\b\w+\.ubunt[u]\.com|artifactor[y]|nexu[s]\.')
TEXT_FREE = re.compile(r'^LICENSE$')


class File:
    def __init__(self, path, text):
        self.path, self.text = path, text
        self.folder = path.split('/')[0]
        self.is_c = path.endswith(('.c', '.h', '.cu', '.cc', '.cuh', '.hip'))
        self.is_test = self.folder == 'test'
        self.in_library = self.is_c and self.folder in LIBRARY
        self.code = ccode.strip(text) if self.is_c else ''
        self.functions = ccode.functions(text) if self.is_c else []
        self.lines = text.count('\n')

    def line_of(self, pos, text=None):
        return (text or self.text).count('\n', 0, pos) + 1


def file_length(tree):
    for f in tree:
        limit = NAMED_FILE_MAX.get(f.path, TEST_FILE_MAX if f.is_test else FILE_MAX)
        if (f.is_c or f.path.endswith(('.py', '.sh')) or f.path in NAMED_FILE_MAX) and f.lines > limit:
            yield f.path, f.lines, f'{f.lines} lines, {limit} allowed'


def fn_limit(f, fn):
    if f.is_test:
        return TEST_FN_MAX
    if f.folder == 'kernels' and KERNEL.search(fn.head):
        return KERNEL_FN_MAX
    return FN_RARE_MAX


def function_length(tree):
    total = long = 0
    for f in tree:
        for fn in f.functions:
            limit = fn_limit(f, fn)
            if fn.length > limit:
                yield f.path, fn.line, f'{fn.name} has {fn.length} lines, {limit} allowed'
            total += not f.is_test
            long += limit == FN_RARE_MAX and FN_MAX < fn.length <= limit and fn.name not in LONG_FUNCTIONS
    if long > FN_RARE_SHARE * total:
        for f in tree:
            for fn in f.functions:
                if fn_limit(f, fn) == FN_RARE_MAX and FN_MAX < fn.length and fn.name not in LONG_FUNCTIONS:
                    yield f.path, fn.line, (f'{fn.name} has {fn.length} lines; over {FN_MAX} is for {FN_RARE_SHARE:.0%} of '
                                            f'{total} functions, here {long}')


def long_share(tree):
    lengths = [fn.length for f in tree if not f.is_test for fn in f.functions]
    share = sum(n for n in lengths if n > FN_RARE_MAX) / max(1, sum(lengths))
    if share >= LONG_LINES_SHARE:
        yield 'tree', 0, f'{share:.1%} of the lines are in functions over {FN_RARE_MAX}'


def parameters(tree):
    for f in tree:
        for fn in f.functions:
            if not f.is_test and fn.params > PARAMS_MAX and not CONTRACT.match(fn.name):
                yield f.path, fn.line, f'{fn.name} takes {fn.params} parameters, {PARAMS_MAX} allowed: use a struct'


def conditionals(tree):
    files = [(ccode.conditionals(f.text), f) for f in tree if f.is_c and not f.is_test and not IF_FREE.match(f.path)]
    lines = sum(f.lines for _, f in files)
    total = sum(n for n, _ in files)
    # One is always allowed: a small tree has no thousandths.
    if total > max(1, IFS_PER_1000 * lines / 1000):
        for n, f in files:
            if n:
                yield f.path, 0, f'{n} of {total} conditionals in {lines} lines ({IFS_PER_1000:g} in 1000 allowed)'


def banned_calls(tree):
    for f in tree:
        if not f.in_library:
            continue
        allowed = [call for prefix, calls in BANNED_BUT.items() if f.path.startswith(prefix) for call in calls]
        for m in BANNED.finditer(f.code):
            if m.group(1) not in allowed:
                yield f.path, f.line_of(m.start(), f.code), f'{m.group(1)}() in the library'


def licence(tree):
    for f in tree:
        script = f.text.startswith('#!')
        if f.is_c or script or f.path.endswith(('.py', '.sh')):
            head = f.text.split('\n')[1 if script else 0] if f.text.count('\n') > 1 else ''
            if 'SPDX-License-Identifier: Apache-2.0' not in head:
                yield f.path, 1, 'no SPDX line on top'


def words(tree):
    for f in tree:
        if not TEXT_FREE.match(f.path):
            for m in WORDS.finditer(f.text):
                yield f.path, f.line_of(m.start()), f'"{m.group(0)}" belongs to one machine or one mirror'


def whitespace(tree):
    for f in tree:
        if TEXT_FREE.match(f.path):
            continue
        for m in re.finditer(r'[ \t\r]+$', f.text, re.M):
            yield f.path, f.line_of(m.start()), 'white space at the end of the line'
        if f.text and (not f.text.endswith('\n') or f.text.endswith('\n\n')):
            yield f.path, f.lines, 'a file ends with one newline'


def columns(tree):
    for f in tree:
        if f.is_c:
            for i, line in enumerate(f.text.split('\n'), 1):
                width = len(line.expandtabs(8))
                if width > COLUMNS:
                    yield f.path, i, f'{width} columns, {COLUMNS} allowed'


RULES = (file_length, function_length, long_share, parameters, conditionals, banned_calls, licence, layers, circles, words,
         vocabulary, whitespace, columns)


def load(root):
    """The files git would commit; without git (a tarball), everything but builds and subprojects."""
    git = subprocess.run(['git', '-C', root, 'ls-files', '-co', '--exclude-standard'], capture_output=True, text=True)
    if git.returncode == 0:
        paths = git.stdout.split('\n')
    else:
        paths = [os.path.relpath(os.path.join(d, f), root) for d, _, files in os.walk(root) for f in files]
    tree = []
    for path in sorted(set(p for p in paths if p and not re.match(r'(subprojects|build[^/]*|\.git|\.venv)/', p))):
        full = os.path.join(root, path)
        if os.path.isfile(full) and not os.path.islink(full) and '__pycache__' not in path:
            data = open(full, 'rb').read()
            if b'\0' not in data:
                tree.append(File(path, data.decode('utf-8', 'replace')))
    return tree


def figures(tree):
    code = [f for f in tree if f.is_c and not f.is_test]
    lengths = sorted(fn.length for f in code for fn in f.functions) or [0]
    sizes = sorted(f.lines for f in code) or [0]
    ifs = sum(ccode.conditionals(f.text) for f in code if not IF_FREE.match(f.path))
    lines = sum(f.lines for f in code if not IF_FREE.match(f.path))
    tail = sum(n for n in lengths if n > FN_RARE_MAX)
    params = max((fn.params for f in code for fn in f.functions if not CONTRACT.match(fn.name)), default=0)
    tests = sum(f.lines for f in tree if f.is_c and f.is_test)
    return (f'# {sum(sizes)} lines in {len(sizes)} files, median {sizes[len(sizes) // 2]}, max {sizes[-1]}; '
            f'{len(lengths)} functions, median {lengths[len(lengths) // 2]}, p99 {lengths[int(.99 * len(lengths))]}, '
            f'max {lengths[-1]}, {100 * tail / max(1, sum(lengths)):.1f} % of lines over {FN_RARE_MAX}; '
            f'parameters max {params}; #if per 1000 lines {1000 * ifs / max(1, lines):.1f}; {tests} lines of C tests')


def check(tree, out=print):
    failed = []
    for rule in RULES:
        found = list(rule(tree))
        for path, line, text in found:
            out(f'{path}:{line}: {rule.__name__}: {text}')
        if found:
            failed.append(rule.__name__)
    return failed


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    args = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    args.add_argument('--root', default=os.path.join(here, '..', '..'))
    args.add_argument('--self-test', action='store_true')
    args = args.parse_args()
    if args.self_test:
        import planted
        return planted.run(File, check, RULES)
    tree = load(args.root)
    failed = check(tree)
    print(figures(tree))
    print(f'style: {len(RULES) - len(failed)} passed, {len(failed)} failed')
    return bool(failed) or not tree


if __name__ == '__main__':
    sys.exit(main())
