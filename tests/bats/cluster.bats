#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The private cluster itself: what other suites rely on, and that starting and ending it is harmless.
load common

setup_file() { cluster_up; }
setup() { workdir; }
teardown() {
	plugin_on_everywhere
	[ ! -d "$CLUSTER_DIR-b" ] || CLUSTER_DIR=$CLUSTER_DIR-b "$TOP/tests/cluster/cluster.sh" down
	rm -rf "$CLUSTER_DIR-b" "$CLUSTER_DIR-b.lock"
}
plugin_on_everywhere() {
	local n
	[ -f "$TOP/build/lib/spank_sp.so" ] || return 0
	for n in n1 n2 n3 n4; do plugin_on $n; done
}
second() { CLUSTER_DIR=$CLUSTER_DIR-b "$TOP/tests/cluster/cluster.sh" "$@"; }

@test "up says so when it already runs" {
	run "$TOP/tests/cluster/cluster.sh" up
	assert_success
	assert_output_has 'already running (4 nodes)'
}

@test "every node has its own host name, /tmp and /dev/shm" {
	run srun --mpi=none -N4 -n4 bash -c 'hostname; : >/tmp/mark; ls /tmp/mark* /dev/shm | wc -l; : >/dev/shm/mark'
	assert_success
	[ "$(grep -c '^n[1-4]$' <<<"$output")" = 4 ]
	[ "$(grep '^n[1-4]$' <<<"$output" | sort -u | wc -l)" = 4 ]
	[ ! -e /tmp/mark ] && [ ! -e /dev/shm/mark ]
	run in_node n2 hostname
	[ "$output" = n2 ]
}

@test "nodes see the folder a job starts in" {
	run srun --mpi=none -N2 -n2 bash -c 'pwd; : >$SLURM_PROCID'
	assert_success
	[ "$(grep -cFx "$PWD" <<<"$output")" = 2 ]
	[ -e 0 ] && [ -e 1 ]
}

@test "MPI and PMIx agree on eight ranks, on two and on four nodes, over the loopback interface alone" {
	local before after
	mpicc=$(pkg-config --cflags --libs ompi-c)
	arch=$(gcc -print-multiarch)
	gcc -O1 -Wall -Werror "$TOP/tests/cluster/mpi_pmix_check.c" $mpicc -I/usr/lib/$arch/pmix2/include \
		-L/usr/lib/$arch/pmix2/lib -lpmix -o check
	# Without ring fences Slurm's PMIx lets ranks leave MPI_Init before others have entered it.
	export SLURM_PMIX_FENCE=ring
	for _ in 1 2 3; do
		run timeout 60 srun --mpi=pmix -N2 -n8 ./check
		assert_success
		assert_output_has 'ok 8 ranks on 2 nodes'
		run timeout 60 srun --mpi=pmix -N4 -n8 ./check
		assert_success
		assert_output_has 'ok 8 ranks on 4 nodes'
	done
	# No daemon listens on an address others could reach.
	run ss -Htlnp
	for d in slurmctld slurmd-n1 slurmd-n2 slurmd-n3 slurmd-n4; do
		pid=$(cat "$CLUSTER_DIR/run/$d.pid")
		grep -F "pid=$pid," <<<"$output" | awk '$4 !~ /^127\.0\.0\.1:/ { print; bad = 1 } END { exit bad }'
	done
}

@test "sbatch runs steps, salloc too, scancel ends them" {
	printf '#!/bin/bash\n#SBATCH -N2 -n2 -o out\nsrun --mpi=none hostname\n' >job.sh
	sbatch_wait 60 job.sh
	[ "$state" = COMPLETED ]
	[ "$(sort -u out)" = $'n1\nn2' ]
	run salloc -N2 -n2 srun --mpi=none -l hostname
	assert_success
	assert_output_has '1: n'
	job=$(sbatch --parsable -N2 -o out2 --wrap 'srun --mpi=none sleep 600')
	wait_until 30 job_is "$job" RUNNING
	scancel "$job"
	wait_until 30 job_is "$job" CANCELLED
	wait_until 30 no_jobs
}

@test "a requeued job starts again within the minute" {
	printf '#!/bin/bash\n#SBATCH -N1 -o out --open-mode=append --requeue\necho "run ${SLURM_RESTART_COUNT:-0}"\n[ "$SLURM_RESTART_COUNT" = 1 ] || { scontrol requeue $SLURM_JOB_ID; sleep 60; }\n' >job.sh
	job=$(sbatch --parsable job.sh)
	wait_until 60 grep -qx 'run 1' out
	grep -qx 'run 0' out
}

@test "one node can be without the plugin" {
	[ -f "$TOP/build/lib/spank_sp.so" ] || skip 'the plugin is not built'
	run in_node n3 cat "$CLUSTER_DIR/etc/plugstack.d/sp.conf"
	assert_output_has spank_sp.so
	plugin_off n3
	run in_node n3 ls "$CLUSTER_DIR/etc/plugstack.d"
	[ "$output" = '' ]
	run in_node n2 cat "$CLUSTER_DIR/etc/plugstack.d/sp.conf"
	assert_output_has spank_sp.so
}

@test "a second cluster runs beside the first; down ends all of its processes and none of the first's" {
	before=$(cat "$CLUSTER_DIR"/run/*.pid)
	run second up 2
	assert_success
	assert_output_has '2 nodes are idle'
	run second status
	assert_success
	run second up 3
	assert_failure 1
	assert_output_has 'already running with 2 nodes, asked for 3'
	(. "$CLUSTER_DIR-b/env" && srun --mpi=none -N2 -n2 sleep 600) >srun.log 2>&1 3>&- &
	wait_until 30 sleeping
	ours=$(cat "$TOP"/build/cluster-b/run/slurm*.pid "$TOP"/build/cluster-b/run/munged.pid)
	tasks=$(sleepers)
	run second down
	assert_success
	[ "$(wc -w <<<"$tasks")" = 2 ]
	for p in $ours $tasks; do gone "$p"; done
	[ "$(cat "$CLUSTER_DIR"/run/*.pid)" = "$before" ]
	for p in $before; do [ -d "/proc/$p" ]; done
	run second down
	assert_success
	assert_output_has 'was not running'
}
gone() { [ ! -d "/proc/$1" ] || grep -q '^State:.*Z' "/proc/$1/status"; }
sleepers() { CLUSTER_DIR=$CLUSTER_DIR-b node_pids n1; CLUSTER_DIR=$CLUSTER_DIR-b node_pids n2; }
sleeping() { [ "$(sleepers | wc -l)" = 2 ]; }

@test "up heals what a crash left: a dead daemon, a pid file that now names a stranger" {
	second up 2
	kill -9 "$(cat "$CLUSTER_DIR-b/run/slurmd-n2.pid")"
	run second status
	assert_failure 1
	assert_output_has 'slurmd-n2    not running'
	run second up 2
	assert_success
	sleep 600 3>&- &
	stranger=$!
	echo $stranger >"$CLUSTER_DIR-b/run/slurmctld.pid.new"
	real=$(cat "$CLUSTER_DIR-b/run/slurmctld.pid")
	kill -9 "$real"
	mv "$CLUSTER_DIR-b/run/slurmctld.pid.new" "$CLUSTER_DIR-b/run/slurmctld.pid"
	run second up 2
	assert_success
	run second down
	assert_success
	kill "$stranger"
}

@test "what cannot work is refused in one line" {
	run second up 0
	assert_failure 1
	assert_one_line "number of nodes '0': give 1 to 64"
	run env CLUSTER_DIR="$TOP/build/cluster b" "$TOP/tests/cluster/cluster.sh" up
	assert_failure 1
	assert_output_has 'holds a character'
	rm -rf "$TOP/build/cluster b" "$TOP/build/cluster b.lock"
	long=$TOP/build/$(printf 'x%.0s' $(seq 90))
	run env CLUSTER_DIR="$long" "$TOP/tests/cluster/cluster.sh" up
	assert_failure 1
	assert_output_has 'CLUSTER_DIR'
	rm -rf "$long" "$long.lock"
	run "$TOP/tests/cluster/cluster.sh" sideways
	assert_failure 2
	assert_output_has 'cluster.sh up'
}
