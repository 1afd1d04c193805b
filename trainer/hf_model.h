/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_HF_MODEL_H
#define TRAINER_HF_MODEL_H
/*
 * The model directory that Transformers' from_pretrained reads:
 *
 *   dir/config.json                LlamaForCausalLM; key "slurm_ulysses" marks the folder as made here
 *   dir/generation_config.json
 *   dir/model.safetensors          fp32, Hugging Face names and shapes
 *   dir/tokenizer.json, dir/tokenizer_config.json    copied from the dataset's folder when it has them
 *
 * Written as dir.tmp, then exchanged with dir in one step: at any moment dir is the old model, the new one, or absent when
 * there was none. A folder not made here is refused, never replaced. One writer at a time.
 */
#include "trainer/model.h"

/* Elements [offset, offset + count) of the flat parameter space into out (host). 0, or -1 with err set. */
typedef int (*tr_hf_get_fn)(void *arg, int64_t offset, int64_t count, float *out, struct tr_error *err);

/* dataset_dir may be NULL. Errors are TR_EXIT_CHECKPOINT, or whatever `get` sets. Called by one rank. */
int tr_hf_export(const char *dir, const struct tr_model_config *c, const char *dataset_dir, int64_t nparams,
		 const struct tr_param *table, tr_hf_get_fn get, void *arg, struct tr_error *err);

/* A tr_hf_get_fn: arg is a struct tr_model, whose weights are complete on every rank. */
int tr_hf_get_model(void *arg, int64_t offset, int64_t count, float *out, struct tr_error *err);

#endif
