# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# check DIR NAME OPTION...: runs meson test and ends with the line "N passed, N failed, N skipped". Tests of deadlines of a
# second or two fail now and then where others use the cores: up to three are run once more, and the table says which.
check() {
	local dir=$1 name=$2 rc=0 logs failed
	shift 2
	logs=$dir/meson-logs/$name
	rm -f "$logs.json" "$logs-again.json"
	meson test -C "$dir" --print-errorlogs --logbase "$name" "$@" </dev/null || rc=$?
	mapfile -t failed < <(python3 test/tools/summary.py --names "$logs.json")
	if [ $rc != 0 ] && [ -n "${failed[0]:-}" ] && [ ${#failed[@]} -le 3 ]; then
		rc=0
		meson test -C "$dir" --no-rebuild --print-errorlogs --logbase "$name-again" --num-processes 1 --timeout-multiplier 5 \
			"${failed[@]}" </dev/null || rc=$?
		set -- --again "$logs-again.json"
	else
		set --
	fi
	python3 test/tools/summary.py ${label:+--label "$label"} "$logs.json" "$@" || rc=1
	return $rc
}
