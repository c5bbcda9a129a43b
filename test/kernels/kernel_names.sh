#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kernel_names.sh PROGRAM CUOBJDUMP [CODE...]: PROGRAM (kernel_names.c) prints the kernels' names and is content with them;
# every file of device code (fatbin, hsaco) has all of them.
set -u
program=$1 cuobjdump=$2
shift 2
names=$($program) || exit 1
failed=0
for code; do
	case $code in
	*.fatbin) symbols=$($cuobjdump -symbols "$code") || { echo "not ok: $cuobjdump cannot read $code"; exit 1; } ;;
	*) symbols=$(tr '\0' '\n' <"$code" | grep -a '^ep_') ;;
	esac
	for name in $names; do
		printf '%s\n' "$symbols" | grep -qaw "$name" && continue
		failed=$((failed + 1))
		echo "not ok: $code has no $name"
	done
done
echo "$(echo "$names" | wc -l) names, $# files of device code, $failed missing"
[ $failed -eq 0 ]
