#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# perf_table.sh EP_PERF: ep_perf runs its modes without a wrong value and rejects invalid options.
set -u
perf=$1
failed=0
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# runs STATUS OPTIONS...
runs() {
	want=$1
	shift
	"$perf" -D host -n 2 -w 1 "$@" >"$dir/out" 2>&1
	got=$?
	[ $got = "$want" ] && return
	echo "ep_perf $*: exit status $got, must be $want"
	cat "$dir/out"
	failed=1
}

# shows PATTERN: in the output of the last run
shows() {
	grep -q -- "$1" "$dir/out" && return
	echo "not printed: $1"
	cat "$dir/out"
	failed=1
}

lacks() {
	grep -q -- "$1" "$dir/out" || return
	echo "printed: $1"
	cat "$dir/out"
	failed=1
}

runs 0 -t 2 -e 4 -H 512 -M
shows '^ *4  combine .* 0$'
shows 'Out of bounds values : 0 OK'
for ranks in -t -g; do
	runs 0 $ranks 3 -e 4 -H 512 -P
	shows 'puts *reached'
	shows '^ *4  combine .* [0-9.]* *[0-9.]* *0$'
	shows 'combine .*times the puts'
done
runs 0 -g 2 -e 4 -H 512 -l rm -P -J "$dir/json"
grep -q puts_us "$dir/json" || { echo 'no puts in the JSON'; failed=1; }
runs 0 -g 2 -e 2 -H 512 -s 1 -l rm -z -c 0
shows 'combine recv .*N/A$'
# Across nodes
grep -q net "$dir/json" || { echo 'no net in the JSON of a run across nodes'; failed=1; }
runs 0 -t 2 -e 4 -H 512
lacks '# net'
NCCL_EP_RANKS_PER_NODE=1 NCCL_EP_NET='sm:rate=200,latency=9000|loop'
export NCCL_EP_RANKS_PER_NODE NCCL_EP_NET
runs 0 -t 2 -b 4 -e 4 -H 512 -n 20
shows '^# net loop, device loop[0-9]*, ordered, rows in host memory$'
NCCL_EP_NET=loop:unordered=1
runs 0 -g 2 -b 4 -e 4 -H 512 -n 20 --rate 400 --latency 5 -J "$dir/json"
shows '^# net loop, device loop[0-9]*, unordered, rows in host memory, 400 Gb/s, latency 5 us$'
shows '^# *4  combine  *[1-9][0-9]*  *5[.][0-9]* .* [0-9.]*$'
unset NCCL_EP_RANKS_PER_NODE NCCL_EP_NET
python3 - "$dir/json" <<'PYTHON' || { echo 'the JSON of a run across nodes'; failed=1; }
import json, sys
table = json.load(open(sys.argv[1]))
assert table['net'] == 'loop' and not table['net_ordered'] and table['net_gbps'] == 400, table
parts = ('send_ring_us', 'engine_us', 'net_us', 'signal_us', 'unpack_us')
for r in table['rows']:
    # A token of 1 KiB and its header to the other rank; its copies back. Counts, arrivals, acknowledgements.
    assert 4 * 1024 < r['net_bytes'] < 40 * 1024 and r['net_signals'] >= 1, r
    assert r['net_commands'] >= r['net_puts'] + r['net_signals'], r
    assert abs(r['wire_us'] - r['net_bytes'] / 50e3 - 5) < 0.002, r
    if None not in [r[p] for p in parts]:
        assert abs(sum(r[p] for p in parts) - r['kernel_us']) < 0.01, r
PYTHON
runs 0 -a ht -t 2 -b 8 -e 64 -f 8 -H 256 -J "$dir/json"
shows '^ *8  update .* 0$'
shows '^ *64  dispatch .* 0$'
python3 - "$dir/json" <<'PYTHON' || { echo 'the JSON differs from the table'; failed=1; }
import json, sys
table = json.load(open(sys.argv[1]))
assert table['algorithm'] == 'ht' and [r['phase'] for r in table['rows']] == ['update', 'dispatch', 'combine'] * 2
assert all(r['wrong'] == 0 for r in table['rows']) and table['rows'][1]['bytes'] == 2 * 8 * 256 * 2
PYTHON
runs 0 -a ht -g 2 -e 32 -H 512 -z --bwd -l expert --align 4 -q fwd
shows '^ *32  combine bwd .* 0$'
runs 0 -a ht -t 3 -e 32 -H 128 --eager --zero-copy off -d fp32
runs 0 -a ht -t 2 -e 32 -H 128 --drop --max-recv 40
NCCL_EP_RANKS_PER_NODE=2
export NCCL_EP_RANKS_PER_NODE
runs 0 -a ht -t 4 -e 32 -H 128 -P
shows 'tokens and .* sums to other nodes'
shows 'times the puts at 32 tokens'
unset NCCL_EP_RANKS_PER_NODE

# A call that fails: more rows than max_recv_tokens_per_rank.
NCCL_EP_DEBUG=NONE
export NCCL_EP_DEBUG
runs 1 -a ht -t 2 -e 32 -H 128 --max-recv 40
shows 'max_recv_tokens_per_rank'
runs 1 -a ht -t 2 -e 32 -H 128 -P
shows 'set NCCL_EP_RANKS_PER_NODE'
# Invalid options.
for bad in '-y' '-e' '-e 0' '-b 8 -e 4' '-n x' '-t 3 -x 8' '-l flat' '--bwd' '--zero-copy maybe' '-a ht -s' '-a ht -M' \
	'-M -P' '-a ht -q ds' '-a ht -l rank' '-a ht --align 3 -l em' '-a ht --align 4' '-a ht --drop' \
	'-a ht --eager --max-recv 9999' '-a ht -e 64 --max-recv 32' '-a ht --graph-update' '-a ht -G --graph-rounds 4' '-s -G' '-e 4 more'; do
	# shellcheck disable=SC2086 # words
	runs 2 $bad
done
runs 2 --graph-rounds 4
shows 'graph-rounds needs -G'
[ $failed = 0 ] && echo 'passed'
exit $failed
