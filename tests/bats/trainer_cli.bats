#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The trainer as one process: command line, configuration, datasets, what a run folder holds. No Slurm.
load common
load trainer

setup() {
	workdir
	make_data 64
	train_yaml
}

trained() { run timeout 60 trainer "$@"; }

@test "without a configuration it says what it looks for" {
	rm train.yaml
	trained
	assert_failure 2
	assert_one_line '^trainer: no train\.yaml in .*; trainer reads train\.yaml from the working directory: copy jobs/train\.yaml there, or give --config FILE$'
	[ "${#lines[@]}" = 1 ]
	trained --config none.yaml
	assert_failure 2
	assert_output_has none.yaml
}

@test "--help lists every key and the exit codes, --version the libraries" {
	trained --help
	assert_success
	for word in --config --set --loop model.hidden_size parallelism_config.sp_size ddp_timeout 'Exit codes' 85; do
		assert_output_has "$word"
	done
	trained --version
	assert_success
	assert_one_line '^trainer [0-9]+\.[0-9]+\.[0-9]+$'
	for word in oneDNN 'Open MPI' PMIx HDF5 libyaml jansson; do assert_output_has "$word"; done
}

@test "a mistake gets one line with its place, and nothing is written" {
	local -A mistakes=(
		['seeed: 1']="train.yaml:2: unknown key 'seeed'; the nearest known key is 'seed'"
		['learning_rate: fast']="train.yaml:.*: learning_rate: 'fast' is not allowed: a number"
		['max_steps: 0']='max_steps is 0'
		['parallelism_config: {sp_attn_implementation: eager}']='eager builds the whole score matrix'
		['parallelism_config: {cp_size: 2}']='cp_size 2 is not supported'
		['device: cuda']='no CUDA backend'
		['parallelism_config: {sp_size: 2}']='one process without a launcher'
		['train_batch_size: 4']=''
	)
	for line in "${!mistakes[@]}"; do
		[ -n "${mistakes[$line]}" ] || continue
		train_yaml
		if [[ $line = seeed* ]]; then sed -i "1a $line" train.yaml; else
			sed -i "/^${line%%:*}:/d" train.yaml
			echo "$line" >>train.yaml
		fi
		trained
		assert_failure 2
		assert_one_line "^trainer: .*${mistakes[$line]}"
		[ "${#lines[@]}" = 1 ]
		[ ! -e run ]
	done
}

@test "bad arguments are refused by name" {
	trained --frobnicate
	assert_failure 2
	assert_output_has "unknown argument '--frobnicate'"
	trained --set
	assert_failure 2
	assert_output_has '--set needs a value'
	trained --set seed
	assert_failure 2
	assert_output_has 'write --set key=value'
	trained --set sed=1
	assert_failure 2
	assert_output_has "--set: unknown key 'sed'; the nearest known key is 'seed'"
	trained --loop 0
	assert_failure 2
	assert_output_has "--loop '0'"
	trained --loop 2,3
	assert_failure 2
	assert_output_has "--loop '2,3'"
}

@test "a run folder holds metrics, configuration, checkpoints and a model" {
	trained
	assert_success
	assert_output_has 'step 12/12'
	assert_one_line '^done: step 12/12, loss [0-9.]+ -> [0-9.]+, 12 steps'
	[ "$(wc -l <run/metrics.jsonl)" = 12 ]
	[ "$(steps_saved run)" = 'step-00000004 step-00000008 step-00000012' ]
	[ -s run/model/model.safetensors ] && [ -s run/model/config.json ] && [ -s run/model/tokenizer.json ]
	/usr/bin/python3 - <<-'PY'
		import json
		rows = [json.loads(line) for line in open('run/metrics.jsonl')]
		keys = ['step', 'loss', 'grad_norm', 'learning_rate', 'epoch', 'tokens', 'targets', 'tokens_seen', 'time']
		assert all(list(r) == keys for r in rows), rows[0]
		assert [r['step'] for r in rows] == list(range(1, 13))
		assert rows[-1]['loss'] < rows[0]['loss'] - 0.5, (rows[0]['loss'], rows[-1]['loss'])
		assert rows[0]['learning_rate'] == 0 and rows[2]['learning_rate'] == 3e-3
		assert rows[-1]['tokens_seen'] == sum(r['tokens'] for r in rows)
		assert all(r['targets'] < r['tokens'] for r in rows)
	PY
}

@test "config.resolved.yaml gives the same bits, from another folder" {
	trained
	assert_success
	mkdir elsewhere
	cd elsewhere
	trained --config ../run/config.resolved.yaml --set output_dir="$WORK/again"
	assert_success
	same_bits ../run ../again
}

@test "relative paths count from the configuration's folder" {
	mkdir -p conf away
	mv train.yaml conf/
	mv data conf/
	cd away
	trained --config ../conf/train.yaml --set max_steps=1
	assert_success
	[ -s ../conf/run/metrics.jsonl ]
	[ ! -e run ]
}

@test "virtual ranks in one process train the same on one node and on two" {
	trained --loop 4 --set parallelism_config.sp_size=4
	assert_success
	assert_output_has '4 ranks on 1 node (loop), sp 4'
	trained --loop 4,2 --set parallelism_config.sp_size=2 --set output_dir=other
	assert_success
	assert_output_has '4 ranks on 2 nodes (loop), sp 2 x dp_shard 1 x dp_replicate 2'
	trained --loop 4,2 --set parallelism_config.sp_size=4 --set output_dir=two
	assert_success
	same_bits run two
	"$TOP/tests/exactness/exactness.py" --compare run other
}

@test "sizes that do not multiply, or more ranks than heads, are refused" {
	trained --loop 3 --set parallelism_config.sp_size=2
	assert_failure 2
	[ "${#lines[@]}" = 1 ]
	trained --loop 5 --set parallelism_config.sp_size=5 --set train_batch_size=5
	assert_failure 2
	assert_one_line '^trainer: sp_size 5 is larger than model.num_attention_heads \(4\).*the largest sp_size that works is 4'
	trained --loop 3 --set parallelism_config.sp_size=1
	assert_failure 2
	assert_one_line '^trainer: train_batch_size 4 is not a multiple of .*nearest: 3 or 6'
	[ ! -e run ]
}

@test "a dataset that is missing, damaged or foreign is refused by name, by one line" {
	local shard=data/shard-00000.h5 size
	size=$(stat -c %s $shard)
	cp $shard good.h5
	rm -rf other && mkdir other && cd other && make_data 64 60000 2 && cd ..

	mv data gone
	trained
	assert_failure 3
	assert_output_has 'dataset.json'
	[ "${#lines[@]}" = 1 ]
	mv gone data

	rm $shard
	trained --loop 2 --set parallelism_config.sp_size=2
	assert_failure 3
	assert_one_line '^trainer: .*shard-00000\.h5'
	[ "${#lines[@]}" = 1 ]

	head -c $((size / 2)) good.h5 >$shard
	trained
	assert_failure 3
	assert_one_line '^trainer: .*shard-00000\.h5'

	cp other/data/shard-00000.h5 $shard
	trained
	assert_failure 3
	assert_one_line '^trainer: .*shard-00000\.h5'

	# Every sample is damaged, so whatever the order, the first step meets one.
	cp good.h5 $shard
	/usr/bin/python3 -c 'import h5py, sys; t = h5py.File(sys.argv[1], "r+")["tokens"]; t[:] = t[:] ^ 1' $shard
	trained --loop 4 --set parallelism_config.sp_size=4
	assert_failure 3
	assert_one_line '^trainer: .*shard-00000\.h5'
	[ ! -e run/metrics.jsonl ] || [ "$(wc -l <run/metrics.jsonl)" = 0 ]
}

@test "a loss that is no number stops the run before it is saved" {
	# decay of 1e6 a step: the weights leave fp32 within a few steps
	trained --loop 2 --set parallelism_config.sp_size=2 --set learning_rate=1000 --set weight_decay=1000 \
		--set lr_scheduler_type=constant --set save_steps=1
	assert_failure 7
	assert_one_line '^trainer: .*step [0-9]+.* is (not a number|infinite).*stopped, nothing was saved after step [0-9]+'
	[ ! -e run/model ]
	# what is saved is older than the damage
	local bad newest
	bad=$(sed -nE 's/^trainer: [a-z ]*step ([0-9]+).*/\1/p' <<<"$output")
	newest=$(steps_saved run | tr ' ' '\n' | sed -nE 's/step-0*//p' | tail -n 1)
	[ "$newest" -lt "$bad" ]
	! grep -q -i nan run/metrics.jsonl
}

@test "a second run in the same output_dir is refused while the first one lives, and not after it was killed" {
	trainer --set max_steps=1000000 --set save_steps=0 >first.log 2>&1 &
	local pid=$!
	wait_until 20 reached run 2
	trained
	kill -9 $pid
	wait $pid 2>/dev/null || true
	assert_failure 2
	assert_one_line '^trainer: run is in use by another run \(host .*, process '"$pid"
	trained
	assert_success
}

@test "an output_dir that cannot be made is named" {
	: >file
	trained --set output_dir=file/run
	assert_failure 5
	assert_one_line '^trainer: file: cannot make the folder: Not a directory'
}
