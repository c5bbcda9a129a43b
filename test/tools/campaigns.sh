# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # sourced by run, which has its functions and variables
# The commands of run that look for faults, or for what no test runs: chaos, fuzz, coverage.

clang_fuzzes() {
	clang_pick && echo 'int LLVMFuzzerTestOneInput(const char *p, long n) { return p && n < 0; }' |
		"$CLANG" -fsanitize=fuzzer,address,undefined -x c - -o /dev/null 2>/dev/null
}

# Over the build of the tests, which is optimised, or with --asan over that of ./run asan.
cmd_chaos() {
	local dir=build
	install_deps "${base_needs[@]}" "${test_needs[@]}" -- "${test_wants[@]}"
	need_meson
	if [ "${1:-}" = --asan ]; then
		shift && dir=build-asan
		sanitized_setup asan address,undefined
	else
		configure build
	fi
	ninja -C "$dir" chaos
	test/chaos/run.sh "$dir" "$@"
}

# Exit status 77 and the reason where there is no clang with libFuzzer.
cmd_fuzz() {
	local log
	install_deps "${base_needs[@]}" -- "${test_wants[@]}"
	need_meson
	clang_fuzzes || { say 'fuzz: skipped: there is no clang with libFuzzer (clang-19 and libclang-rt-19-dev have it)'; exit 77; }
	export CC=$CLANG CXX=${CLANG/clang/clang++}
	log=$(configure build-fuzz -Dfuzz=true -Dcuda=disabled -Dhip=disabled -Dmpi=disabled -Db_sanitize=address,undefined \
		-Db_lundef=false -Doptimization=1 '-Dc_args=-fsanitize=fuzzer-no-link -fno-sanitize-recover=all -g1' 2>&1 && ninja -C build-fuzz fuzz 2>&1) ||
		die "$log"
	export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1
	test/fuzz/run.sh "$@"
}

# gcov writes its counts when a process ends by exit: so must the tests' children, which otherwise call _exit. What was killed is
# not counted. gcc only, and its own gcov.
cmd_coverage() {
	local rc=0 dir=build-coverage
	install_deps "${base_needs[@]}" "${test_needs[@]}" 'have gcc|gcc' 'have gcov|gcc' -- "${test_wants[@]}"
	need_meson
	export CCACHE_DISABLE=1 # gcov's counts are of one folder
	CC=${CC:-gcc} build "$dir" -Db_coverage=true -Dc_args=-D_exit=exit -Dcuda=disabled -Dhip=disabled -Dmpi=disabled
	find "$dir" -name '*.gcda' -delete
	check "$dir" coverage --suite cpu --timeout-multiplier 4 || rc=1
	python3 test/tools/coverage.py --list "$dir/uncovered.txt" "$dir" || rc=1
	return $rc
}
