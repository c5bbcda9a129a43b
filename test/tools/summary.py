#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""summary.py [--label NAME] LOG.json...: the results in meson's log, and one line "N passed, N failed, N skipped" ("NAME: N passed, ...").
summary.py --failed LOG.json...: the tests that failed, each with the end of what it printed; nothing where none did.
summary.py --names LOG.json...: their names.
--again LOG.json: what a second run of some of the tests says counts instead, and the table and the line before the last say so.

A Criterion program counts with each of its cases, every other program as one. A program that meson calls failed
although no case of it failed (a leak at exit, a crash of the runner, a timeout) adds one failure. No test at all is
a failure: a suite that lost its tests must not pass.
"""
import json
import re
import sys

SYNTHESIS = re.compile(r'Synthesis: Tested: \S*?(\d+)\S* \| Passing: \S*?(\d+)\S* \| Failing: \S*?(\d+)\S* '
                       r'\| Crashing: \S*?(\d+)')
COLOUR = re.compile(r'\x1b\[[0-9;]*m')
TAP = re.compile(r'^(not )?ok\b(.*)$', re.M)
SKIP = re.compile(r'#\s*skip', re.I)


def cases(text):
    """(passed, failed, skipped) as the program counted, or None if it did not."""
    found = SYNTHESIS.findall(text)
    if found:
        return [sum(int(f[1]) for f in found), sum(int(f[2]) + int(f[3]) for f in found), 0]
    if not text.startswith('TAP version'):
        return None
    count = [0, 0, 0]
    for bad, rest in TAP.findall(text):
        count[1 if bad else 2 if SKIP.search(rest) else 0] += 1
    return count


def output(test):
    return COLOUR.sub('', (test.get('stdout') or '') + (test.get('stderr') or ''))


def said(test):
    """The runner's own summary: Criterion's synthesis, or the same figures from TAP."""
    text = output(test)
    found = SYNTHESIS.search(text)
    if found:
        return found.group(0)
    own = cases(text)
    return 'Tested: %d | Passing: %d | Failing: %d | Skipped: %d' % (sum(own), *own) if own else ''


def count(test):
    text = output(test)
    good = test['result'] in ('OK', 'EXPECTEDFAIL')
    if test['result'] == 'SKIP':
        return [0, 0, 1]
    own = cases(text)
    if own is None or sum(own) == 0:
        return [1, 0, 0] if good and own is None else [0, 1, 0]
    if not good and own[1] == 0:
        own[1] = 1
    return own


def read(path):
    try:
        tests = [json.loads(line) for line in open(path)]
    except FileNotFoundError:
        tests = []
    for t in tests:
        t['name'] = re.split(r'[:/] ?', t['name'])[-1]  # without project and suites, whose format differs between versions of meson
    return sorted(tests, key=lambda t: t['name'])


def failed(tests, lines=40):
    """What to print of those that failed: a log of an hour is cut from above, so this goes to its end."""
    out = []
    for t in tests:
        if count(t)[1]:
            out.append(f"---- {t['name']}: {t['result']} after {t['duration']:.1f} s")
            told = [line for line in output(t).splitlines() if not line.startswith('ok ')]
            out += told[-lines:]
    return out


def self_test():
    crit = '[====] Synthesis: Tested: 9 | Passing: 7 | Failing: 1 | Crashing: 1 \n'
    blue = '[====] Synthesis: Tested: \x1b[0;34m3\x1b[0m | Passing: \x1b[0;32m3\x1b[0m | Failing: 0 | Crashing: 0 \n'
    tap = 'TAP version 13\n1..3\nok - a::b (0.00s)\nnot ok - a::c\nok - a::d # SKIP no device\n'
    for result, text, want in [
            ('FAIL', crit, [7, 2, 0]), ('OK', blue, [3, 0, 0]), ('TIMEOUT', blue, [3, 1, 0]), ('FAIL', tap, [1, 1, 1]),
            ('OK', '', [1, 0, 0]), ('SKIP', '', [0, 0, 1]), ('ERROR', '', [0, 1, 0]), ('INTERRUPT', '', [0, 1, 0]),
            ('OK', 'TAP version 13\n1..0\n', [0, 1, 0]),  # a filter that matches nothing is no success
            ('OK', crit.replace('9', '0').replace('7', '0').replace('1', '0'), [0, 1, 0])]:
        got = count({'result': result, 'stdout': text})
        if got != want:
            sys.exit(f'summary.py: {result} {text!r}: {got}, not {want}')
    told = failed([{'name': 'a', 'result': 'OK', 'duration': 1, 'stdout': 'x'},
                   {'name': 'b', 'result': 'FAIL', 'duration': 1, 'stdout': 'TAP version 13\nok - c\nnot ok - d\nwhy\n'}])
    if told != ['---- b: FAIL after 1.0 s', 'TAP version 13', 'not ok - d', 'why']:
        sys.exit(f'summary.py: --failed says {told}')
    print('summary.py: self-test passed')


def main():
    if sys.argv[1:] == ['--self-test']:
        return self_test()
    if sys.argv[1:2] == ['--names']:
        print('\n'.join(t['name'] for path in sys.argv[2:] for t in read(path) if count(t)[1]))
        return 0
    if sys.argv[1:2] == ['--failed']:
        print('\n'.join(f'{path}\n' + '\n'.join(told) for path in sys.argv[2:] if (told := failed(read(path)))))
        return 0
    paths, label = sys.argv[1:], ''
    if paths[:1] == ['--label']:
        label, paths = paths[1] + ': ', paths[2:]
    second = {}
    if '--again' in paths:
        at = paths.index('--again')
        second = {t['name']: t for t in read(paths[at + 1])}
        del paths[at:at + 2]
    total = [0, 0, 0]
    seconds = 0.0
    for path in paths:
        tests = read(path)
        width = max((len(t['name']) for t in tests), default=0)
        for t in tests:
            word = ', at the second run' if t['name'] in second else ''
            t = second.get(t['name'], t)
            n = count(t)
            total = [a + b for a, b in zip(total, n)]
            seconds += t['duration']
            print(f"{t['name']:{width}}  {t['result']:8} {t['duration']:7.2f}s  {said(t)}".rstrip() + word)
    print(f'# {seconds:.0f} s of tests')
    if second:
        print('# failed at the first run: ' + ' '.join(sorted(second)))
    print(label + '%d passed, %d failed, %d skipped' % tuple(total))
    if total[0] + total[1] == 0:
        sys.exit('summary.py: no test ran')
    return total[1] != 0


sys.exit(main())
