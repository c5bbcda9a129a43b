#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kernel_names.sh PROGRAM [CODE...]: PROGRAM (kernel_names.c) prints the kernels' names and is content with them; every
# file of device code (fatbin, hsaco) has all of them as symbols. An nvcc that compresses all it embeds hides them.
set -u
names=$("$1") || exit 1
shift
failed=0
for code; do
	symbols=$(tr '\0' '\n' <"$code" | grep -a '^ep_')
	if [ -z "$symbols" ]; then
		case $code in *.fatbin) echo "# $code is compressed" && continue ;; esac
	fi
	for name in $names; do
		printf '%s\n' "$symbols" | grep -qax "$name" && continue
		failed=$((failed + 1))
		echo "not ok: $code has no $name"
	done
done
echo "$(echo "$names" | wc -l) names, $# files of device code, $failed missing"
[ $failed -eq 0 ]
