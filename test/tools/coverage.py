#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""coverage.py [--list FILE] [--gcov GCOV] BUILD: line coverage per folder of a build with -Db_coverage=true, after its tests have run.

Reads every .gcno of the build by `gcov --json-format`, so objects that never ran count with 0. A source that is compiled
several times (into the shared library, into tests, at another warp width) is covered where any of its objects is. FILE gets
the lines that never ran, as PATH:FIRST-LAST and the text of the first. Tests, benchmarks and documents do not count. What a
process did that was killed or ended by _exit is missing: ./run coverage lets tests call exit instead.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
APART = ('test', 'perf', 'doc', 'subprojects')


def source_of(data, name, root):
    """The path of a source inside the tree, or None for what does not count."""
    path = pathlib.Path(os.path.normpath(os.path.join(data['current_working_directory'], name)))
    if not path.is_relative_to(root):
        return None
    path = path.relative_to(root)
    if path.parts[0] in APART or path.parts[0].startswith('build'):
        return None
    return str(path)


def merge(lines, text, root):
    """Adds what gcov printed, one JSON object per line, to {path: {line: count}}."""
    for one in text.splitlines():
        if not one.startswith('{'):
            continue
        data = json.loads(one)
        for f in data['files']:
            path = source_of(data, f['file'], root)
            if path is None:
                continue
            counts = lines[path]
            for at in f['lines']:
                counts[at['line_number']] = counts.get(at['line_number'], 0) + at['count']
    return lines


def folder(path):
    """Two levels: plugin/boot/root.c is in plugin/boot, util/log.c in util."""
    return '/'.join(pathlib.PurePath(path).parts[:-1][:2])


def ranges(numbers):
    """[3, 4, 5, 9] -> [(3, 5), (9, 9)]"""
    out = []
    for n in sorted(numbers):
        if out and n == out[-1][1] + 1:
            out[-1] = (out[-1][0], n)
        else:
            out.append((n, n))
    return out


def missed(lines):
    """Lines that never ran: [(path, first, last)]. Lines without code between two of them do not part them."""
    out = []
    for path in sorted(lines):
        order = sorted(lines[path])
        index = {n: i for i, n in enumerate(order)}
        for first, last in ranges(index[n] for n in order if not lines[path][n]):
            out.append((path, order[first], order[last]))
    return out


def table(lines):
    per = collections.defaultdict(lambda: [0, 0])
    for path, counts in lines.items():
        for key in (folder(path), 'total'):
            per[key][0] += len(counts)
            per[key][1] += sum(1 for n in counts.values() if n)
    rows = [f"# {'folder':20} {'lines':>7} {'covered':>8} {'%':>6}"]
    for key in sorted(k for k in per if k != 'total') + ['total'] * ('total' in per):
        all_, hit = per[key]
        rows.append(f'  {key:20} {all_:7} {hit:8} {100 * hit / all_:6.1f}')
    return '\n'.join(rows)


def gcov_run(gcov, notes):
    run = subprocess.run([gcov, '--json-format', '--stdout', *notes], capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f'coverage.py: {gcov}: {run.stderr.strip()[:500]}')
    return run.stdout


def read_build(build, gcov):
    notes = [str(p) for p in sorted(build.rglob('*.gcno'))]
    if not notes:
        sys.exit(f'coverage.py: no .gcno in {build}: configure it with -Db_coverage=true and build it')
    if not any(build.rglob('*.gcda')):
        sys.exit(f'coverage.py: no .gcda in {build}: run its tests first')
    lines = collections.defaultdict(dict)
    batches = [notes[i:i + 20] for i in range(0, len(notes), 20)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for text in pool.map(lambda batch: gcov_run(gcov, batch), batches):
            merge(lines, text, ROOT)
    return lines


def list_write(lines, path):
    with open(path, 'w') as out:
        for name, first, last in missed(lines):
            try:
                text = (ROOT / name).read_text(errors='replace').splitlines()[first - 1].strip()
            except (OSError, IndexError):
                text = ''
            out.write(f'{name}:{first}-{last}: {text}\n')


def self_test():
    def one(cwd, name, counts):
        return json.dumps({'current_working_directory': cwd, 'files': [
            {'file': name, 'lines': [{'line_number': n, 'count': c} for n, c in counts]}]})
    text = '\n'.join([
        one('/r/build', '../util/log.c', [(1, 0), (2, 5), (4, 0), (5, 0), (9, 0), (12, 1)]),
        one('/r/build', '../util/log.c', [(1, 3), (2, 0)]),  # the same source in another object
        one('/r/build', '../plugin/boot/deep/root.c', [(7, 0), (7, 2)]),  # an inline function, twice
        one('/r/build', '/usr/include/stdio.h', [(1, 1)]),
        one('/r/build', '../test/ll/soak.c', [(1, 1)]),
        one('/r/build', 'config.h', [(1, 1)]), 'not JSON', ''])
    got = merge(collections.defaultdict(dict), text, pathlib.Path('/r'))
    want = {'util/log.c': {1: 3, 2: 5, 4: 0, 5: 0, 9: 0, 12: 1}, 'plugin/boot/deep/root.c': {7: 2}}
    rows = [r.split() for r in table(got).splitlines()[1:]]
    for name, a, b in [
            ('merge', dict(got), want),
            ('folder', [folder('util/log.c'), folder('plugin/boot/deep/root.c')], ['util', 'plugin/boot']),
            ('ranges', ranges([9, 3, 5, 4]), [(3, 5), (9, 9)]),
            ('missed', missed(got), [('util/log.c', 4, 9)]),
            ('table', rows, [['plugin/boot', '1', '1', '100.0'], ['util', '6', '3', '50.0'], ['total', '7', '4', '57.1']])]:
        if a != b:
            sys.exit(f'coverage.py: {name}: {a}, not {b}')
    print('coverage.py: self-test passed')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('build', type=pathlib.Path, nargs='?')
    parser.add_argument('--list', metavar='FILE')
    parser.add_argument('--gcov', default='gcov')
    parser.add_argument('--self-test', action='store_true')
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    if not args.build:
        parser.error('which build?')
    lines = read_build(args.build, args.gcov)
    print(table(lines))
    if args.list:
        list_write(lines, args.list)
        print(f'# {len(missed(lines))} ranges of lines that never ran: {args.list}')
    return 0


sys.exit(main())
