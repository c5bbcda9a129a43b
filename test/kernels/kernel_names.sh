#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kernel_names.sh PROGRAM [CODE...]: PROGRAM (kernel_names.c) prints the kernels' names and is content with them; every
# hsaco, and the fatbins together, have all of them as symbols. An nvcc that compresses all it embeds hides them.
set -u
names=$("$1") || exit 1
shift
failed=0 fatbins=

symbols_of() { cat "$@" | tr '\0' '\n' | grep -a '^ep_'; }

look() { # WHAT SYMBOLS
	for name in $names; do
		printf '%s\n' "$2" | grep -qax "$name" && continue
		failed=$((failed + 1))
		echo "not ok: $1 no $name"
	done
}

for code; do
	case $code in
	*.fatbin) fatbins="$fatbins $code" ;;
	*) look "$code has" "$(symbols_of "$code")" ;;
	esac
done
# shellcheck disable=SC2086 # one word per file
symbols=${fatbins:+$(symbols_of $fatbins)}
if [ -n "$symbols" ]; then
	look "the fatbins have" "$symbols"
elif [ -n "$fatbins" ]; then
	echo '# the fatbins are compressed'
fi
echo "$(echo "$names" | wc -l) names, $# files of device code, $failed missing"
[ $failed -eq 0 ]
