#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh MODEL CC: no interleaving of the model fails an assertion, and every planted bug does. 77 without spin.
set -u
model=$1
shift
command -v spin >/dev/null 2>&1 || { echo 'skipped: spin is not installed'; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
failed=0

# run "CC" "-DNAME...": how many errors pan finds; it stops at the first
run() {
	# shellcheck disable=SC2086 # words
	spin $2 -a "$model" >spin.log 2>&1 || { cat spin.log; return 1; }
	# shellcheck disable=SC2086 # words
	$1 -O0 -w -DSAFETY -DNOFAIR -DMEMLIM=1024 -o pan pan.c >cc.log 2>&1 || { cat cc.log; return 1; }
	./pan -m200000 >pan.log 2>&1
	# A truncated search proves nothing.
	grep -q 'max search depth too small\|out of memory' pan.log && { cat pan.log; return 1; }
	errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' pan.log)
	states=$(sed -n 's/ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)
	[ -n "$errors" ]
}

for good in '' '-DSTEPS' '-DGIVE_UP' '-DGIVE_UP -DSTEPS'; do
	run "$*" "$good" || exit 1
	echo "correct ${good:-(small)}: $states states, $errors errors"
	[ "$errors" = 0 ] || { cat pan.log; failed=1; }
done
for bad in ONE_PHASE NO_FENCE EARLY LATE HOLE POPPED SHOWN COUNTED NARROW; do
	run "$*" "-D$bad" || exit 1
	why=$(sed -n 's/^pan:[0-9]*: //p' pan.log | head -n 1)
	echo "planted $bad: $errors errors: $why"
	[ "$errors" != 0 ] || failed=1
done
exit $failed
