# SPDX-License-Identifier: Apache-2.0
# For the trainer's suites, after `load common`: a dataset, a configuration, the bits of a run.

# make_data [SEQ] [BYTES] [SEED]: dataset folder `data` of the current folder. Made once a suite, copied to each test.
make_data() {
	local seq=${1:-64} bytes=${2:-60000} seed=${3:-1} made
	made=$TOP/build/tests/work/data-$(basename "${BATS_TEST_FILENAME%.bats}")-$seq-$bytes-$seed
	if [ ! -d "$made" ]; then
		some_text "$made.txt" "$bytes" "$seed"
		spctl pack --out "$made" --seq-length "$seq" --doc-separator '' "$made.txt" >/dev/null
		rm "$made.txt"
	fi
	rm -rf data
	cp -r "$made" data
}

# train_yaml [LINE]...: a tiny model, 12 steps of 4 samples, a checkpoint every 4 steps; LINEs come on top (last one wins).
train_yaml() {
	local line key
	local -A keys=([max_steps]=12 [train_batch_size]=4 [learning_rate]=3.0e-3 [lr_scheduler_type]=cosine [warmup_steps]=2
		[save_steps]=4 [init_timeout]=60 [ddp_timeout]=60 [threads]=1)
	local rest=()
	for line in "$@"; do
		key=${line%%:*}
		if [[ $line =~ ^[a-z_]+:\ [^{] ]]; then keys[$key]=${line#*: }; else rest+=("$line"); fi
	done
	{
		echo 'model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2}'
		for key in "${!keys[@]}"; do echo "$key: ${keys[$key]}"; done | sort
		printf '%s\n' "${rest[@]}"
	} >train.yaml
}

# The part of metrics.jsonl that two equal runs share.
metrics_of() { sed 's/,"time":{.*//' "$1/metrics.jsonl"; }
last_step() { tail -n 1 "$1/metrics.jsonl" 2>/dev/null | sed -nE 's/^\{"step":([0-9]+),.*/\1/p'; }
reached() { [ "$(last_step "$1")" -ge "$2" ]; }
steps_saved() { (cd "$1/checkpoints" && echo step-*); }

# same_bits RUN RUN [STEP]: metrics without times, the checkpoint of STEP (default 12) file by file, and the weights.
same_bits() {
	local step
	step=$(printf 'step-%08d' "${3:-12}")
	diff <(metrics_of "$1") <(metrics_of "$2") &&
		diff -r "$1/checkpoints/$step" "$2/checkpoints/$step" &&
		cmp "$1/model/model.safetensors" "$2/model/model.safetensors"
}

# No trainer process is left on any node.
trainers_gone() {
	local n p
	for n in n1 n2 n3 n4; do
		for p in $(node_pids $n); do
			[ "$(cat "/proc/$p/comm" 2>/dev/null)" != trainer ] || return 1
		done
	done
}
# The pids of trainers on node(s), one a line.
trainer_pids() {
	local n p
	for n in "$@"; do
		for p in $(node_pids "$n"); do
			[ "$(cat "/proc/$p/comm" 2>/dev/null)" != trainer ] || echo "$p"
		done
	done
}

# Builds the fault shim into $FAULTS (tests/faults/faults.c).
build_faults() {
	FAULTS=$TOP/build/tests/faults-$$.so
	gcc -shared -fPIC -O1 -Wall -Wextra -Werror -o "$FAULTS" "$TOP/tests/faults/faults.c" -ldl
}
