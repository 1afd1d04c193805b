#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The main job under real Slurm: srun --sp-size=4 -N2 trainer.
load common
load trainer

setup_file() { cluster_up; }
setup() {
	workdir
	make_data 64
	train_yaml
}
teardown() {
	plugin_on n2
	scancel -u "$(id -un)" 2>/dev/null || true
}

job() { run timeout 120 srun "$@"; }

@test "srun --sp-size=4 -N2 trainer: four ranks, a falling loss, a checkpoint, a model" {
	job --sp-size=4 -N2 trainer
	assert_success
	assert_one_line '^trainer [0-9.]+: 4 ranks on 2 nodes \(pmix\), sp 4 x dp_shard 1 x dp_replicate 1'
	assert_one_line '^step 12/12 '
	assert_one_line '^done: step 12/12, loss '
	[ "$(steps_saved run)" = 'step-00000004 step-00000008 step-00000012' ]
	[ "$(cd run/checkpoints/step-00000012 && echo part-*.safetensors)" = \
		'part-00000.safetensors part-00001.safetensors part-00002.safetensors part-00003.safetensors' ]
	[ -s run/model/model.safetensors ]
	grep -q 'sp_size: 4' run/config.resolved.yaml
}

@test "the same run twice has the same bits; so has the loop of virtual ranks" {
	job --sp-size=2 -N2 -n4 trainer
	assert_success
	job --sp-size=2 -N2 -n4 trainer --set output_dir=twice
	assert_success
	same_bits run twice
	run trainer --loop 4,2 --set parallelism_config.sp_size=2 --set output_dir=loop
	assert_success
	same_bits run loop
}

@test "meshes of real ranks agree with one process" {
	# 12 samples a step divide by every data-parallel size here
	local yaml=('train_batch_size: 12' 'save_steps: 0')
	train_yaml "${yaml[@]}"
	run trainer --set output_dir=one
	assert_success
	job --sp-size=3 -N3 -n3 trainer --set output_dir=sp3
	assert_success
	"$TOP/tests/exactness/exactness.py" --compare sp3 one
	job --sp-size=2 --dp-replicate=2 -N2 -n4 trainer --set output_dir=sp2dp2
	assert_success
	"$TOP/tests/exactness/exactness.py" --compare sp2dp2 one
	job --sp-size=2 --dp-shard=2 -N4 -n4 trainer --set output_dir=sp2shard2
	assert_success
	"$TOP/tests/exactness/exactness.py" --compare sp2shard2 one
	job -N2 -n3 trainer --set output_dir=dp3
	assert_success
	"$TOP/tests/exactness/exactness.py" --compare dp3 one
}

@test "sequences shorter than the sp group train as with one process" {
	make_data 3 3000
	train_yaml 'max_steps: 6' 'save_steps: 0'
	run trainer --set output_dir=one
	assert_success
	job --sp-size=4 -N2 trainer --set output_dir=sp4
	assert_success
	"$TOP/tests/exactness/exactness.py" --compare sp4 one
}

@test "srun's option beats the environment, the environment beats the file, and the loser is noted once" {
	train_yaml 'max_steps: 2'
	echo 'parallelism_config: {sp_size: 4}' >>train.yaml
	SP_SIZE=2 job -N1 -n4 trainer
	assert_success
	assert_output_has 'sp 2 x dp_shard 1 x dp_replicate 2'
	assert_one_line 'sp_size: 4 of the configuration gives way to SP_SIZE=2'
	rm -r run
	SP_SIZE=2 job --sp-size=1 -N1 -n4 trainer
	assert_success
	assert_output_has 'sp 1 x dp_shard 1 x dp_replicate 4'
	rm -r run
	job -N1 -n4 trainer
	assert_success
	assert_output_has 'sp 4 x dp_shard 1 x dp_replicate 1'
}

@test "a batch job takes the sizes from #SBATCH lines" {
	cat >job.sh <<-'SH'
		#!/bin/bash
		#SBATCH --sp-size=4 --nodes=2 --ntasks=4 --output=out.log
		srun trainer
	SH
	sbatch_wait 60 job.sh
	[ "$state" = COMPLETED ]
	grep -q '4 ranks on 2 nodes (pmix), sp 4' out.log
	[ -s run/model/model.safetensors ]
}

@test "an unknown key: one line for all ranks, exit status 2" {
	echo 'hiden_size: 5' >>train.yaml
	job --sp-size=4 -N2 trainer
	assert_failure 2
	assert_one_line "^trainer: train\.yaml:[0-9]+: unknown key 'hiden_size'; the nearest known key is 'model.hidden_size'"
	[ "$(grep -c '^trainer' <<<"$output")" = 1 ]
	[ ! -e run ]
}

@test "more ranks in an sp group than heads: one line, exit status 2" {
	job --sp-size=8 -N2 -n8 trainer
	assert_failure 2
	assert_one_line '^trainer: sp_size 8 is larger than model.num_attention_heads \(4\).* the largest sp_size that works is 4'
	[ "$(grep -c '^trainer' <<<"$output")" = 1 ]
}

@test "a task count that does not fit is refused before any task starts" {
	job --sp-size=4 -N2 -n6 trainer
	assert_failure
	refute_output_has 'trainer:'
	assert_output_has '6'
	# the file's sizes are known to the trainer alone
	echo 'parallelism_config: {sp_size: 4}' >>train.yaml
	job -N2 -n6 trainer
	assert_failure
	[ "$(grep -c '^trainer' <<<"$output")" = 1 ]
	[ ! -e run ]
}

@test "ranks that do not know of each other are refused, not trained apart" {
	job --mpi=none --sp-size=2 -n2 trainer
	assert_failure
	[ ! -e run ]
	job --mpi=none -n2 trainer
	assert_failure 4
	assert_one_line '^trainer: this step has 2 tasks but no PMIx'
	[ "$(grep -c '^trainer' <<<"$output")" = 1 ]
	[ ! -e run ]
}

@test "a node without the plugin is named" {
	plugin_off n2
	job --sp-size=4 -N2 -w n1,n2 trainer
	assert_failure
	assert_one_line '^trainer: .*n2'
	[ "$(grep -c '^trainer' <<<"$output")" = 1 ]
	[ ! -e run ]
}

@test "ranks that were given different configurations are told apart" {
	sed 's/^seed:.*//; $a seed: 7' train.yaml >other.yaml
	job --sp-size=2 -n2 bash -c 'f=train.yaml; [ $SLURM_PROCID = 0 ] || f=other.yaml; exec trainer --config $f'
	assert_failure 4
	assert_one_line '^trainer: rank 1 \(n1\): the ranks were not given the same run: .seed: 7. here, .seed: 42. on the first rank'
	[ ! -e run/metrics.jsonl ]
}

@test "damaged shards: one line for all ranks, exit status 3" {
	local shard=data/shard-00000.h5
	cp $shard good.h5
	rm $shard
	job --sp-size=4 -N2 trainer
	assert_failure 3
	assert_one_line '^trainer: .*shard-00000\.h5'
	[ "$(grep -c '^trainer:' <<<"$output")" = 1 ]

	head -c 9000 good.h5 >$shard
	job --sp-size=4 -N2 trainer
	assert_failure 3
	assert_one_line '^trainer: .*shard-00000\.h5'

	cp good.h5 $shard
	/usr/bin/python3 -c 'import h5py, sys; t = h5py.File(sys.argv[1], "r+")["tokens"]; t[:] = t[:] ^ 1' $shard
	job --sp-size=2 -N2 -n4 trainer
	assert_failure 3
	assert_one_line '^trainer: .*shard-00000\.h5'
	[ "$(grep -c '^trainer:' <<<"$output")" = 1 ]
}
