#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Charts of ep_perf's JSON: latency and bandwidth over tokens, several files in one picture.

usage: plot.py [-o OUT.svg] [--plain] [--busbw] [--phase NAME]... [LABEL=]FILE...

A line per file and phase; the label is the file's name unless one is given. matplotlib draws where it is installed, and
plain SVG is written where not, or with --plain."""
import argparse
import html
import json
import math
import os
import sys

COLOURS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#000000')  # told apart by all eyes
DASHES = ('', '7 4', '2 3', '8 3 2 3')
PANEL_W, PANEL_H, LEFT, TOP, GAP = 430, 300, 70, 56, 84


def read(spec):
    """(label, JSON)"""
    label, _, path = spec.rpartition('=')
    with open(path) as file:
        report = json.load(file)
    return label or os.path.splitext(os.path.basename(path))[0], report


def time_of(row):
    return row['device_us'] if row.get('device_us') is not None else row['host_us']


def series(reports, phases, bandwidth):
    """[(label, colour, dash, [(tokens, us, p99 or None)], [(tokens, GB/s)])], a colour per file, a dash per phase"""
    names = list(dict.fromkeys(r['phase'] for _, report in reports for r in report['rows']
                               if not phases or r['phase'] in phases))
    out = []
    for i, (label, report) in enumerate(reports):
        for j, phase in enumerate(names):
            rows = sorted((r for r in report['rows'] if r['phase'] == phase and r['tokens'] > 0), key=lambda r: r['tokens'])
            if rows:
                out.append((f'{label}: {phase}' if len(reports) > 1 else phase,
                            COLOURS[(i if len(reports) > 1 else j) % len(COLOURS)], DASHES[j % len(DASHES)],
                            [(r['tokens'], time_of(r), r.get('p99_us')) for r in rows],
                            [(r['tokens'], r[bandwidth]) for r in rows if r.get(bandwidth)]))
    return out


def title_of(reports):
    """What all files have in common."""
    heads = [r for _, r in reports]
    parts = []
    for name, text in (('algorithm', '{}'), ('ranks', '{} ranks'), ('device', '{}'), ('hidden', 'hidden {}'), ('topk', 'top-{}'),
                       ('experts', '{} experts'), ('dtype', '{}')):
        if len({h[name] for h in heads}) == 1:
            parts.append(text.format(heads[0][name]))
    return ', '.join(parts)


# ---- plain SVG ----

def ticks(low, high):
    """Of a logarithmic axis: powers of ten, with 2 and 5 between where there is room."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if high / low < 150 else (1,)
    return [s * 10.0 ** e for e in range(first, last + 1) for s in steps if low / 1.001 <= s * 10.0 ** e <= high * 1.001]


def number(value):
    return f'{value:g}' if value < 1e6 else f'{value:.0e}'


class Panel:
    """One chart with logarithmic axes, at x0."""

    def __init__(self, x0, title, unit, lines):
        self.x0, self.title, self.unit, self.lines = x0, title, unit, lines
        xs = [p[0] for line in lines for p in line[1]]
        ys = [v for line in lines for p in line[1] for v in p[1:] if v]
        self.x = (min(xs) / 1.1, max(xs) * 1.1)
        self.y = (min(ys) / 1.3, max(ys) * 1.3)
        self.x_ticks = sorted(set(xs))
        while len(self.x_ticks) > 9:
            self.x_ticks = self.x_ticks[::2]

    def at(self, x, y):
        part = [(math.log(v) - math.log(low)) / (math.log(high) - math.log(low)) for v, (low, high) in ((x, self.x), (y, self.y))]
        return self.x0 + part[0] * PANEL_W, TOP + (1 - part[1]) * PANEL_H

    def draw(self):
        bottom, right = TOP + PANEL_H, self.x0 + PANEL_W
        yield f'<text x="{self.x0}" y="{TOP - 12}" class="head">{html.escape(self.title)} ({self.unit})</text>'
        for value in ticks(*self.y):
            y = self.at(self.x[0], value)[1]
            yield f'<line x1="{self.x0}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="grid"/>'
            yield f'<text x="{self.x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>'
        for value in self.x_ticks:
            x = self.at(value, self.y[0])[0]
            yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" class="grid"/>'
            yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{number(value)}</text>'
        yield f'<text x="{(self.x0 + right) / 2}" y="{bottom + 34}" text-anchor="middle">tokens per rank</text>'
        yield f'<rect x="{self.x0}" y="{TOP}" width="{PANEL_W}" height="{PANEL_H}" class="frame"/>'
        for i, (colour, points, dash) in enumerate(self.lines):
            aside = 3 * (i - (len(self.lines) - 1) / 2)  # whiskers of several lines side by side
            path = ' '.join('%.1f,%.1f' % self.at(*p[:2]) for p in points)
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
            for p in points:
                x, y = self.at(*p[:2])
                yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
                if len(p) > 2 and p[2]:
                    top = self.at(p[0], p[2])[1]
                    yield (f'<path d="M{x + aside:.1f} {y:.1f}V{top:.1f}m-3 0h6" fill="none" stroke="{colour}" '
                           'stroke-opacity="0.6"/>')


def plain(lines, title, bandwidth):
    panels = [Panel(LEFT, 'time, whiskers to p99', 'us', [(c, p, d) for _, c, d, p, _ in lines])]
    moving = [(c, p, d) for _, c, d, _, p in lines if p]
    if moving:
        panels.append(Panel(LEFT + PANEL_W + GAP, bandwidth, 'GB/s', moving))
    columns = 3
    width = LEFT + len(panels) * PANEL_W + (len(panels) - 1) * GAP + 24
    legend_y = TOP + PANEL_H + 60
    height = legend_y + 20 * ((len(lines) + columns - 1) // columns) + 8
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           'font-family="Helvetica, Arial, sans-serif" font-size="12">')
    yield ('<style>.head{font-weight:bold}.grid{stroke:#ddd}.frame{fill:none;stroke:#444}</style>'
           f'<rect width="{width}" height="{height}" fill="white"/>')
    yield f'<text x="{width / 2}" y="22" text-anchor="middle" font-size="15">{html.escape(title)}</text>'
    for panel in panels:
        yield from panel.draw()
    for i, (label, colour, dash, _, _) in enumerate(lines):
        x, y = LEFT + i % columns * (width - LEFT) / columns, legend_y + i // columns * 20
        yield f'<line x1="{x}" y1="{y}" x2="{x + 34}" y2="{y}" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        yield f'<text x="{x + 42}" y="{y + 4}">{html.escape(label)}</text>'
    yield '</svg>\n'


# ---- matplotlib ----

def matplotlib_draw(pyplot, lines, title, bandwidth, path):
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.6))
    for label, colour, dash, times, rates in lines:
        style = (0, [float(d) for d in dash.split()]) if dash else '-'
        axes[0].plot([p[0] for p in times], [p[1] for p in times], color=colour, linestyle=style, marker='.', label=label)
        for tokens, us, p99 in times:
            if p99:
                axes[0].plot([tokens, tokens], [us, p99], color=colour, linewidth=1)
        if rates:
            axes[1].plot([p[0] for p in rates], [p[1] for p in rates], color=colour, linestyle=style, marker='.')
    tokens = sorted({p[0] for line in lines for p in line[3]})
    for axis, text in zip(axes, ('time, whiskers to p99 (us)', f'{bandwidth} (GB/s)')):
        axis.set(xscale='log', yscale='log', xlabel='tokens per rank', title=text)
        axis.grid(True, which='both', alpha=0.3)
        axis.set_xticks(tokens, [number(t) for t in tokens])
        axis.xaxis.minorticks_off()
    axes[1].set_xlim(axes[0].get_xlim())
    figure.suptitle(title)
    figure.legend(loc='lower center', ncol=3, frameon=False)
    figure.tight_layout(rect=(0, 0.05 + 0.04 * (len(lines) // 3), 1, 1))
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('files', nargs='+', metavar='[LABEL=]FILE')
    parser.add_argument('-o', default='ep_perf.svg', metavar='OUT.svg')
    parser.add_argument('--plain', action='store_true', help='without matplotlib')
    parser.add_argument('--busbw', action='store_true', help='bytes between ranks instead of algbw')
    parser.add_argument('--phase', action='append', help='only these')
    given = parser.parse_args()
    try:
        reports = [read(spec) for spec in given.files]
    except (OSError, ValueError) as why:
        sys.exit(f'plot.py: {why}')
    bandwidth = 'busbw' if given.busbw else 'algbw'
    lines = series(reports, given.phase, bandwidth)
    if not lines:
        sys.exit('plot.py: no rows to draw: check --phase, and that a size has tokens')
    try:
        if given.plain:
            raise ImportError
        import matplotlib
        matplotlib.use('svg')
        from matplotlib import pyplot
        matplotlib_draw(pyplot, lines, title_of(reports), bandwidth, given.o)
    except ImportError:
        with open(given.o, 'w') as out:
            out.write('\n'.join(plain(lines, title_of(reports), bandwidth)))
    print(given.o)


if __name__ == '__main__':
    main()
