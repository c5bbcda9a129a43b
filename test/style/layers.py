# SPDX-License-Identifier: Apache-2.0
"""Which file may include which: the layers between and inside the folders, and no circles."""
import os
import re

import ccode

# What the files of a folder may include from outside it; the longest prefix counts. C library headers are free.
OUTSIDE = {
    'util/': (),
    'net/': ('util/', 'nccl_ep_net.h'),
    'kernels/': ('util/',),
    'proxy/': ('net/', 'util/'),
    'plugin/': ('kernels/', 'util/', 'nccl_ep', 'nccl.h', 'nccl_device.h'),
    'plugin/boot/': ('util/',),
    'plugin/link/': ('proxy/', 'net/', 'kernels/', 'util/'),
    'include/': ('nccl.h', 'nccl_ep', 'ep_enums.h'),
}
# Inside a folder: each unit (a file, with or without its suffix, or a subfolder) and the units right below it. A unit may
# include itself and everything below. Nothing else is allowed, so two transports, two devices or two algorithms never
# include each other.
INSIDE = {
    'plugin/': {
        'api': 'check', 'ext': 'check', 'check': 'll ht', 'll': 'group', 'ht': 'group',
        'group': 'link standin/query', 'link': 'boot', 'boot': '',
        'standin': 'boot standin/query', 'standin/query': '',
    },
    'net/': {
        'net': 'external fabric faulty loop rails verbs',
        'external': 'base', 'fabric': 'base', 'faulty': 'base', 'loop': 'base', 'rails': 'base', 'verbs': 'base',
        'base': 'option stubs watch', 'option': 'table', 'stubs': 'table', 'watch': 'table', 'table': '',
    },
    # The table names every device; the type of its entries (dev) is below them.
    'kernels/': {
        'table': 'host cuda hip simt', 'host': 'dev', 'cuda': 'dev', 'hip': 'dev', 'simt': 'host',
        'dev': 'list args kernels', 'list': 'll ht probe', 'args': 'll ht probe', 'kernels': 'll ht probe',
        'll': 'op', 'ht': 'op', 'probe': 'op', 'op': 'gx', 'gx': '',
    },
}
# Modules that may include each other.
CIRCLE_MAX = 1
# No build may need these; the few declarations we use are in our tree.
FOREIGN = re.compile(r'<(infiniband|rdma|hip|hsa|cuda\w*\.h|cuda/|rccl)')
# Names that a folder must not use.
UNKNOWN = {
    'util': (r'\b(?:ibv_|fi_|cu[A-Z]|hip[A-Z])\w*|\bep_(?:dev|boot|group|handle|net|ring|topo|window)\w*'),
    'net': (r'\b(?:cu[A-Z]|hip[A-Z])\w*|\b\w*(?:token|expert)\w*'),
    'kernels': r'\b(?:ibv_|fi_)\w*',
    'proxy': r'\b(?:ibv_|fi_|cu[A-Z]|hip[A-Z])\w*',
    'plugin': r'\b(?:ibv_|fi_|cu[A-Z]|hip[A-Z])\w*',
}


def _longest(table, path):
    return max((p for p in table if path.startswith(p)), key=len, default=None)


def _unit(units, rest):
    return max((u for u in units if rest == u or rest.startswith((u + '/', u + '.'))), key=len, default=None)


def _below(units, unit):
    """The unit and every unit below it."""
    seen, todo = set(), [unit]
    while todo:
        unit = todo.pop()
        if unit not in seen:
            seen.add(unit)
            todo += units[unit].split()
    return seen


def _inside(folder, path, name):
    """None, or why the file may not include this one of its own folder."""
    units = INSIDE[folder]
    this, that = (_unit(units, p[len(folder):]) for p in (path, name))
    if not this or not that:
        return f'{name if this else path} is in no unit: add it to INSIDE of test/style/layers.py'
    if that not in _below(units, this):
        return f'includes "{name}": {folder}{this} is not above {folder}{that}'
    return None


def layers(tree):
    for f in tree:
        rules = _longest(OUTSIDE, f.path)
        if not f.is_c or not rules:
            continue
        own = f.folder + '/'
        for line, name in ccode.includes(f.text):
            bare = name[1:-1]
            if name[0] == '"' and bare.startswith(own):
                why = _inside(own, f.path, bare) if own in INSIDE else None
                if why:
                    yield f.path, line, why
            elif name[0] == '"' and not bare.startswith(OUTSIDE[rules]):
                yield f.path, line, f'includes {name}: {rules} must not use it'
            elif FOREIGN.match(name) and f.folder != 'include':
                yield f.path, line, f'includes {name}: no build may need a foreign header'
        if f.folder in UNKNOWN:
            # Code only: words in comments and messages are free.
            for m in re.finditer(UNKNOWN[f.folder], f.code):
                yield f.path, f.line_of(m.start(), f.code), f'{f.folder}/ must not use {m.group(0)}'


def _module(path):
    return os.path.splitext(path)[0]


def _graph(tree):
    """Module -> modules it includes; x.c, x.h and x.cu are one module."""
    paths = {f.path for f in tree if f.is_c and not f.is_test}
    graph = {_module(p): set() for p in paths}
    for f in tree:
        if f.path not in paths:
            continue
        for _, name in ccode.includes(f.text):
            bare = name[1:-1]
            for path in (bare, 'include/' + bare, os.path.join(os.path.dirname(f.path), bare)):
                if name[0] == '"' and path in paths:
                    graph[_module(f.path)].add(_module(path))
                    break
    return graph


def _reach(graph, start):
    """Module -> the one before it on a shortest way from start, for all that can be reached; start itself only by a circle."""
    before, todo = {}, [start]
    for at in todo:
        for to in sorted(graph[at]):
            if to not in before and to != at:
                before[to] = at
                todo.append(to)
    return before


def circles(tree):
    """Strongly connected sets of modules by #include: where all include each other, none can be read or tested alone."""
    graph, done = _graph(tree), set()
    reach = {m: _reach(graph, m) for m in graph}
    for m in sorted(graph):
        members = {n for n in reach[m] if n != m and m in reach[n]}
        if m in done or len(members) < CIRCLE_MAX:
            continue
        done |= members | {m}
        way, at = [m], reach[m][m]
        while at != m:
            way.append(at)
            at = reach[m][at]
        yield m, 0, (f'{len(members) + 1} modules include each other: {" ".join(sorted(members | {m}))}; '
                     f'one way: {" -> ".join(reversed(way + [m]))}')
