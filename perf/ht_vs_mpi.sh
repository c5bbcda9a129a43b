#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# HT's dispatch on the CPU compared with MPI_Alltoallv of the same rows, on the same cores, in alternation.
# usage: perf/ht_vs_mpi.sh BUILD_DIR RANKS [options that both programs take: -b -e -f -H -k -x -d -q -n -w -c -S]
# MPIRUN_ARGS adds to mpirun's options. Without MPI only the table of ep_perf is printed.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '4,5s/^# //p' "$0" >&2; exit 2; }
build=$1 ranks=$2
shift 2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

mpi=$build/perf/mpi_alltoallv_perf
mpirun=(mpirun)
if mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
	mpirun+=(--oversubscribe)
	[ "$(id -u)" != 0 ] || mpirun+=(--allow-run-as-root)
fi
read -ra more <<<"${MPIRUN_ARGS:-}"
ours() { "$build/perf/ep_perf" -a ht -D host -g "$ranks" -z -n 50 "$@"; }
theirs() { "${mpirun[@]}" "${more[@]}" -n "$ranks" "$mpi" -n 50 "$@"; }

ours "$@" -J "$dir/ours.0"
if [ ! -x "$mpi" ] || ! command -v mpirun >/dev/null; then
	echo '# no comparison: needs mpirun, and mpi_alltoallv_perf, which is built if mpicc is found'
	exit 0
fi
theirs "$@" -J "$dir/theirs.0"
# Two more turns, since other load on the machine varies.
for turn in 1 2; do
	ours "$@" -c 0 -J "$dir/ours.$turn" >/dev/null
	theirs "$@" -c 0 -J "$dir/theirs.$turn" >/dev/null
done

python3 - "$dir" <<'PYTHON'
import json
import sys


def rows(name, phase):
    """Of each size the lowest figures of all turns."""
    least = {}
    for turn in range(3):
        with open(f'{sys.argv[1]}/{name}.{turn}') as file:
            for row in json.load(file)['rows']:
                if row['phase'] == phase:
                    old = least.setdefault(row['tokens'], dict(row))
                    for figure in ('host_us', 'best_us'):
                        old[figure] = min(old[figure], row[figure])
    return least


ours, theirs = rows('ours', 'dispatch'), rows('theirs', 'alltoallv')
print('# dispatch compared with MPI_Alltoallv, best of 3 turns: average and fastest iteration')
print('#%9s %12s' % ('tokens', 'bytes') + ' %10s %10s %7s' % ('dispatch', 'alltoallv', 'ratio') * 2)
print('#%9s %12s' % ('', '(B/rank)') + ' %10s %10s %7s' % ('(us)', '(us)', '') * 2)
for tokens, a in ours.items():
    b = theirs[tokens]
    assert a['bytes'] == b['bytes'], 'not the same rows'
    print('%10d %12d' % (tokens, a['bytes']) +
          ''.join(' %10.2f %10.2f %7.2f' % (a[f], b[f], a[f] / b[f]) for f in ('host_us', 'best_us')))
PYTHON
