#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reference.py [FILE]: prints doc/reference.md, every parameter of util/param_table.h and every call of the headers.

With FILE: exit status 1 and the difference if the file is not what would be printed (the test doc_reference does that).
"""
import difflib
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEAD = '''# Parameters and calls

Generated: `doc/reference.py > doc/reference.md`. Python has [its own](python_reference.md).

## Parameters

Environment variables; `ep_info -e` prints them with their values here. Where one is not set, the other names are read in their order.

| name | default | range | other names | what |
|---|---|---|---|---|
'''
PARAM = re.compile(r'EP_PARAM\(\s*\w+,\s*"(\w+)",\s*EP_T_(\w+),\s*"([^"]*)",\s*(-?\d+),\s*(-?\d+),\s*"([^"]*)",\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\)')
CALL = re.compile(r'^(?:ncclResult_t|const char \*)\s*\w+\([^;]*\);', re.M)


def read(*path):
    with open(os.path.join(ROOT, *path)) as f:
        return f.read()


def cell(text):
    return text.replace('|', '\\|')


def parameters():
    table, rows = read('util', 'param_table.h'), []
    for name, kind, default, least, most, others, text in PARAM.findall(table):
        what = ''.join(re.findall(r'"((?:[^"\\]|\\.)*)"', text))
        limits = f'{least} to {most}' if kind == 'INT' else '0 or 1' if kind == 'BOOL' else ''
        rows.append(f'| `{name}` | {f"`{default}`" if default else ""} | {limits} | {others} | {cell(what)} |')
    assert len(rows) == table.count('\nEP_PARAM('), 'a line of the table that this does not read'
    return rows


def comment_before(text, at):
    """The comment that ends right above a declaration, as one paragraph; '' if there is none."""
    before = text[:at].rstrip('\n')
    if text[len(before):at].count('\n') > 1 or not before.endswith('*/'):
        return ''
    body = before[before.rindex('/*') + 2:-2]
    return ' '.join(line.strip().lstrip('*').strip() for line in body.split('\n')).strip()


def calls(header):
    text = read('include', header)
    if header == 'nccl_ep_ext.h':
        text = text[:text.index('/* ---- former names')]
    out = []
    for m in CALL.finditer(text):
        out += ['```c', re.sub(r'\t+', '    ', m.group(0)), '```']
        comment = comment_before(text, m.start())
        out += [comment, ''] if comment else ['']
    return out


def main(arguments):
    lines = HEAD.rstrip('\n').split('\n') + parameters()
    lines += ['', '## Calls of NCCL EP (`nccl_ep.h`)', ''] + calls('nccl_ep.h')
    lines += ['## Extensions (`nccl_ep_ext.h`)', ''] + calls('nccl_ep_ext.h')
    made = '\n'.join(lines).rstrip('\n') + '\n'
    if not arguments:
        sys.stdout.write(made)
        return 0
    with open(arguments[0]) as f:
        there = f.read()
    sys.stdout.writelines(difflib.unified_diff(there.splitlines(True), made.splitlines(True), arguments[0], 'generated'))
    return there != made


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
