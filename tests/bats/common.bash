# SPDX-License-Identifier: Apache-2.0
# For every suite:   load common
#
#     setup_file() { cluster_up; }      suites that need Slurm; tests/run.sh ends the cluster, by hand it stays up
#     setup() { workdir; }              a fresh folder below build/ which the cluster's nodes see ($BATS_TEST_TMPDIR
#                                       may lie in /tmp, and each node has a /tmp of its own)
#
#     run srun --sp-size=2 -n2 trainer ...
#     assert_success | assert_failure [STATUS] | assert_output_has TEXT | refute_output_has TEXT | assert_one_line REGEX
#     wait_until SECONDS COMMAND...     plugin_off NODE, plugin_on NODE     node_pids NODE     in_node NODE COMMAND...

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
CLUSTER_DIR=${CLUSTER_DIR:-$TOP/build/cluster}
export TOP CLUSTER_DIR
PATH=$TOP/build/bin:$PATH
# bats needs a private TMPDIR on the submit side only; inside the nodes it would name a folder they do not have.
unset TMPDIR
if [ -f "$CLUSTER_DIR/env" ]; then . "$CLUSTER_DIR/env"; fi

# Starts the private cluster unless it runs, and points this suite at it. Puts the plugin back on every node.
cluster_up() {
	"$TOP/tests/cluster/cluster.sh" up >&2 || return 1
	. "$CLUSTER_DIR/env"
}

# Makes and enters an empty folder of this test's own.
workdir() {
	WORK=$TOP/build/tests/work/$(basename "${BATS_TEST_FILENAME%.bats}")-${BATS_TEST_NUMBER:-file}
	rm -rf "$WORK"
	mkdir -p "$WORK" && cd "$WORK"
}

# ---- assertions on `run`'s $status and $output ---------------------------------------------------------------
show() { printf -- '-- %s\n-- status %s, output:\n%s\n' "$1" "${status-}" "${output-}"; }

assert_success() { [ "$status" = 0 ] || { show 'expected success'; return 1; }; }

# Any failure a program chose itself, or the given status. A death by signal or a timeout is no clean failure.
assert_failure() {
	if [ -n "${1-}" ]; then
		[ "$status" = "$1" ] || { show "expected exit status $1"; return 1; }
	else
		[ "$status" != 0 ] || { show 'expected a failure'; return 1; }
		[ "$status" != 124 ] || { show 'expected a failure, not a timeout'; return 1; }
	fi
}

assert_output_has() {
	case $output in *"$1"*) ;; *) show "expected in the output: $1"; return 1 ;; esac
}

refute_output_has() {
	case $output in *"$1"*) show "did not expect in the output: $1"; return 1 ;; *) ;; esac
}

# Exactly one line of the output matches the extended regex: one clear message, not one a rank.
assert_one_line() {
	[ "$(grep -cE -- "$1" <<<"$output")" = 1 ] || { show "expected exactly one line like: $1"; return 1; }
}

# ---- the cluster ---------------------------------------------------------------------------------------------
# wait_until SECONDS COMMAND...: polls until COMMAND succeeds; fails after SECONDS. A bound against hangs.
wait_until() {
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt "$end" ] || { echo "-- still not true: $*"; return 1; }
		sleep 0.2
	done
}

# A node as if the plugin had never been installed on it; submit side and other nodes keep it.
plugin_off() { rm -f "$CLUSTER_DIR/nodes/$1/plugstack.d/sp.conf"; }
plugin_on() { echo "required $TOP/build/lib/spank_sp.so" >"$CLUSTER_DIR/nodes/$1/plugstack.d/sp.conf"; }

# Pids of the user processes on a node (slurmd and slurmstepd left out), one a line.
node_pids() {
	local ns p name
	ns=$(cat "$CLUSTER_DIR/run/slurmd-$1.mntns")
	for p in /proc/[0-9]*; do
		[ "$(readlink "$p/ns/mnt" 2>/dev/null)" = "$ns" ] || continue
		name=$(cat "$p/comm" 2>/dev/null)
		case $name in slurmd | slurmstepd | '') ;; *) echo "${p#/proc/}" ;; esac
	done
}

# Runs COMMAND as if logged in on the node (its hostname, /tmp, /dev/shm), outside any job.
in_node() {
	local pid
	pid=$(cat "$CLUSTER_DIR/run/slurmd-$1.pid") || return 1
	shift
	nsenter --target "$pid" --mount --uts --wd="$PWD" "$@"
}

job_state() { scontrol show job "$1" -o 2>/dev/null | sed -nE 's/.* JobState=([A-Z_]+).*/\1/p'; }
job_is() { [ "$(job_state "$1")" = "$2" ]; }
no_jobs() { [ -z "$(squeue -h -o %A)" ]; }
node_idle() { [ "$(sinfo -h -N -n "$1" -o %T)" = idle ]; }

# Submits with sbatch, waits for the end (at most SECONDS), leaves the job's id in $job and its state in $state.
sbatch_wait() {
	local limit=$1
	shift
	job=$(sbatch --parsable "$@") || return 1
	wait_until "$limit" job_ended "$job" || return 1
	state=$(job_state "$job")
}
job_ended() { case $(job_state "$1") in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL | OUT_OF_MEMORY) ;; *) false ;; esac; }

# ---- data ------------------------------------------------------------------------------------------------------
# some_text FILE BYTES [SEED]: the same English-like words for the same arguments, one paragraph a few hundred bytes.
some_text() {
	awk -v bytes="$2" -v seed="${3:-1}" 'BEGIN {
		n = split("the a of to and in that it is was for on with as at by from they we say her she or an will one all would there their what so up out if about who get which go me when make can like time no just him know take people into year your good some could them see other than then now look only come its over think also back after use two how our work first well way even new want because any these give day most us", w, " ")
		srand(seed)
		while (size < bytes) {
			line = ""
			words = 40 + int(rand() * 60)
			for (i = 0; i < words; i++) line = line (i ? " " : "") w[1 + int(rand() * rand() * n)]
			line = line ".\n\n"
			size += length(line)
			printf "%s", line
		}
	}' >"$1"
}
