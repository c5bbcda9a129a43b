# SPDX-License-Identifier: Apache-2.0
"""plot_test.py EP_PERF PLOT: the picture of two runs has a line per run, phase and chart, inside its frame, and a legend
that names each once; what cannot be drawn is said."""
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

PERF, PLOT = sys.argv[1:]
SVG = '{http://www.w3.org/2000/svg}'


def plot(*arguments, status=0):
    done = subprocess.run([sys.executable, PLOT, *arguments], capture_output=True, text=True)
    assert done.returncode == status, done
    return done.stderr


def boxes(root):
    return [tuple(float(r.get(k)) for k in ('x', 'y', 'width', 'height')) for r in root.iter(SVG + 'rect')
            if r.get('class') == 'frame']


def main():
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, mode in enumerate(('ll', 'ht')):
            paths.append(os.path.join(folder, f'run{i}.json'))
            subprocess.run([PERF, '-D', 'host', '-a', mode, '-t', '2', '-b', '2', '-e', '32', '-f', '4', '-H', '256', '-n', '3',
                            '-J', paths[-1]], check=True, stdout=subprocess.DEVNULL)
        out = os.path.join(folder, 'out.svg')
        plot('--plain', '-o', out, f'a & b={paths[0]}', paths[1])
        root = xml.parse(out).getroot()
        frames = boxes(root)
        assert len(frames) == 2, frames
        lines = [[tuple(map(float, p.split(','))) for p in line.get('points').split()] for line in root.iter(SVG + 'polyline')]
        # Times of ll's two phases and ht's three; update moves no bytes, so it has no bandwidth.
        assert len(lines) == 5 + 4 and all(len(line) == 3 for line in lines), lines
        for line in lines:
            assert any(all(x <= px <= x + w and y <= py <= y + h for px, py in line) for x, y, w, h in frames), line
            assert line[0][0] < line[1][0] < line[2][0], 'more tokens are further right'
        texts = [t.text for t in root.iter(SVG + 'text')]
        for label in ('a & b: dispatch', 'a & b: combine', 'run1: update', 'run1: dispatch', 'run1: combine'):
            assert texts.count(label) == 1, (label, texts)
        plot('--plain', '-o', out, '--busbw', '--phase', 'combine', paths[0])
        root = xml.parse(out).getroot()
        assert len(list(root.iter(SVG + 'polyline'))) == 2 and 'busbw (GB/s)' in [t.text for t in root.iter(SVG + 'text')]
        assert 'no rows to draw' in plot('-o', out, '--phase', 'other', paths[0], status=1)
        assert 'No such file' in plot('-o', out, os.path.join(folder, 'none.json'), status=1)
    print('passed')


main()
