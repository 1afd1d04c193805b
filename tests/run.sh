#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests and prints every TAP line; the very last line is `N passed, N failed, N skipped` over the whole run.
# Exit status 1 when anything failed, also when a test program died, hung or ran none of its tests.
#
#     tests/run.sh [SUITE | FILE]...
#
#     lint     tests/lint/*.bats                      folder borders, file sizes
#     unit     build/tests/test_*                     cmocka programs
#     asan     build/asan/tests/test_*                the same under ASan, UBSan and leak detection
#     fuzz     tests/fuzz/fuzz_*.c                    seed corpora, then FUZZ_SECONDS (default 3) of new inputs each
#     bats     tests/bats/*.bats                      plugin, cluster, programs; starts the private cluster, ends it after
#     FILE     one .bats file or one test program
#
# CLUSTER_DIR (default build/cluster): the private cluster's folder; one that already runs is used and left running.
#
# TEST_TIMEOUT (seconds, default 900) is the longest one file or program may take: it ends hangs, it judges no speed.
set -u
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$top" || exit 1
timeout_s=${TEST_TIMEOUT:-900}
fuzz_s=${FUZZ_SECONDS:-3}
work=build/test-run.$$
export CLUSTER_DIR=${CLUSTER_DIR:-$top/build/cluster}
passed=0 failed=0 skipped=0
times=()
started_cluster=

# The programs under test choose threads and ports themselves; nothing from the caller's own job may leak in.
unset ${!SLURM_*} ${!SP_*} ${!PMIX_*} BATS_RUN_TMPDIR
export CMOCKA_MESSAGE_OUTPUT=TAP
# bats keeps its folders here: the cluster's nodes have a /tmp of their own and would not see them there.
mkdir -p "$work/tmp" && export TMPDIR=$top/$work/tmp

finish() {
	[ -z "$started_cluster" ] || tests/cluster/cluster.sh down
	rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

# ---- one file or program -------------------------------------------------------------------------------------
# suite NAME COMMAND...: runs it under the timeout, shows its output as it comes, adds up its TAP lines.
suite() {
	local name=$1 log=$work/log rc pid began=$EPOCHREALTIME ok not skip plan ran
	shift
	echo "# $name"
	: >"$log"
	timeout -k 10 "$timeout_s" "$@" </dev/null >"$log" 2>&1 &
	pid=$!
	tail -n +1 -s 0.1 -f --pid=$pid "$log" 2>/dev/null
	wait $pid
	rc=$?
	[ -z "$(tail -c 1 "$log")" ] || echo
	# "ok", "not ok" and "# SKIP" in either case (cmocka writes a skipped test as "not ok N # SKIP name").
	# The plan "1..N" may come first or last, once a group of tests.
	read -r ok not skip plan < <(awk '
		/^(not )?ok [0-9]+/ { if ($0 ~ /# ?[Ss][Kk][Ii][Pp]/) s++; else if ($1 == "ok") o++; else n++ }
		/^1\.\.[0-9]+/ { p += substr($0, 4) }
		END { print o + 0, n + 0, s + 0, p + 0 }' "$log")
	ran=$((ok + not + skip))
	passed=$((passed + ok)) failed=$((failed + not)) skipped=$((skipped + skip))
	if [ $rc = 124 ] || [ $rc = 137 ]; then
		broken "$name" "no end within $timeout_s s; last line: $(grep -E '^(not )?ok ' "$log" | tail -n 1)"
	elif [ $ran = 0 ]; then
		broken "$name" "ran no test (exit status $rc)"
	elif [ $ran != "$plan" ]; then
		broken "$name" "planned $plan tests, ran $ran (exit status $rc)"
	elif [ $rc != 0 ] && [ $not = 0 ]; then
		broken "$name" "exit status $rc though no test failed"
	fi
	times+=("$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%8.1f", b - a }') s  $name")
}

# A failure that is no test's own.
broken() {
	echo "not ok - $1: $2"
	failed=$((failed + 1))
}

programs() {
	local kind=$1 dir=$2 src name
	for src in tests/unit/test_*.c; do
		[ -e "$src" ] || { broken "$kind" 'no tests/unit/test_*.c'; return; }
		name=$(basename "$src" .c)
		if [ -x "$dir/$name" ]; then
			suite "$kind/$name" "$dir/$name"
		else
			broken "$kind/$name" "not built: \`make unit-tests$([ "$kind" = asan ] && echo ' SANITIZE=1')\`"
		fi
	done
}

cluster() {
	[ -z "$started_cluster" ] || return 0
	tests/cluster/cluster.sh status >/dev/null 2>&1 && return 0
	started_cluster=yes
	tests/cluster/cluster.sh up || { started_cluster=; return 1; }
}

# A test must not leave jobs behind; those of one that hung or failed would hold nodes the next one needs.
clear_jobs() {
	local left
	[ -n "$started_cluster" ] || return 0
	left=$(. "$CLUSTER_DIR/env" && timeout 10 squeue -h -o %A) && [ -n "$left" ] || return 0
	echo "# jobs left behind by $1:" $left
	(. "$CLUSTER_DIR/env" && timeout 10 scancel $left)
	sleep 1
}

bats_files() {
	local kind=$1 f
	shift
	[ -e "$1" ] || { broken "$kind" "no $1"; return; }
	for f in "$@"; do
		suite "${f#tests/}" bats --tap "$f"
		[ "$kind" = lint ] || clear_jobs "$f"
	done
}

# Prints TAP for one fuzzer: its seeds, then a few seconds of inputs grown from them.
fuzz_one() {
	local name=$1 program=build/fuzz/fuzz_$1 seeds=tests/fuzz/corpus/$1 grown=build/fuzz/grown/$1 rc=0
	local options="-timeout=60 -rss_limit_mb=4096 -artifact_prefix=build/fuzz/$name- -verbosity=0 -print_final_stats=0"
	mkdir -p "$grown"
	echo 1..2
	if "$program" $options -runs=0 "$seeds" >"$grown.log" 2>&1; then
		echo "ok 1 - fuzz $name: $(find "$seeds" -type f | wc -l) seeds"
	else
		rc=1
		sed 's/^/# /' "$grown.log"
		echo "not ok 1 - fuzz $name: seeds"
	fi
	if "$program" $options -max_total_time="$2" "$grown" "$seeds" >"$grown.log" 2>&1; then
		echo "ok 2 - fuzz $name: new inputs"
	else
		rc=1
		sed 's/^/# /' "$grown.log"
		echo "not ok 2 - fuzz $name: new inputs; the input is beside build/fuzz/fuzz_$name"
	fi
	return $rc
}
export -f fuzz_one

run() {
	local src name
	case $1 in
	lint) bats_files lint tests/lint/*.bats ;;
	unit) programs unit build/tests ;;
	asan)
		export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
		export LSAN_OPTIONS=suppressions=$top/tests/lsan.supp:print_suppressions=0
		programs asan build/asan/tests
		unset ASAN_OPTIONS UBSAN_OPTIONS LSAN_OPTIONS
		;;
	fuzz)
		for src in tests/fuzz/fuzz_*.c; do
			[ -e "$src" ] || { broken fuzz 'no tests/fuzz/fuzz_*.c'; return; }
			name=$(basename "$src" .c)
			if [ ! -x "build/fuzz/$name" ]; then
				broken "fuzz/$name" 'not built: `make fuzz-programs`'
			elif [ ! -d "tests/fuzz/corpus/${name#fuzz_}" ]; then
				broken "fuzz/$name" "no seeds in tests/fuzz/corpus/${name#fuzz_}"
			else
				suite "fuzz/$name" bash -c 'fuzz_one "$@"' - "${name#fuzz_}" "$fuzz_s"
			fi
		done
		;;
	bats)
		cluster || { broken bats 'the private cluster did not start'; return; }
		bats_files bats tests/bats/*.bats
		;;
	*.bats)
		case $1 in
		*lint/*) bats_files lint "$1" ;;
		*) cluster && bats_files bats "$1" || broken "$1" 'the private cluster did not start' ;;
		esac
		;;
	*)
		[ -x "$1" ] || { broken "$1" 'no such suite or test program; suites: lint unit asan fuzz bats'; return; }
		suite "$1" "$1"
		;;
	esac
}

[ $# -gt 0 ] || set -- lint unit asan fuzz bats
for what in "$@"; do run "$what"; done

if [ ${#times[@]} -gt 3 ]; then
	echo '# slowest:'
	printf '%s\n' "${times[@]}" | sort -rn | head -n 8 | sed 's/^/# /'
fi
trap - EXIT
finish
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ] && [ $passed -gt 0 ]
