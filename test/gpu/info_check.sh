#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ep_info --check between so many ranks of one machine: the exit status, the last line, and that every rank was on the
# device and came to the end.
# usage: info_check.sh PATH/ep_info GPU|CPU -t|-g RANKS...
set -euo pipefail
info=$1 device=$2 how=$3
shift 3
failed=0

for ranks; do
	rc=0
	out=$("$info" --check "$how" "$ranks") || rc=$?
	printf '%s\n' "$out"
	last=$(tail -n 1 <<<"$out")
	fit=$(awk -v device="$device" '$1 ~ /^[0-9]+$/ && $5 == device && $NF == "ok"' <<<"$out" | wc -l)
	[ $rc = 0 ] || { echo "FAILED: $ranks ranks: status $rc"; failed=1; }
	[ "$last" = '# first: nothing to do' ] || { echo "FAILED: $ranks ranks: the last line is: $last"; failed=1; }
	[ "$fit" = "$ranks" ] || { echo "FAILED: $fit of $ranks ranks ended well on a $device"; failed=1; }
done
exit $failed
