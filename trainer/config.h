/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_CONFIG_H
#define TRAINER_CONFIG_H
/*
 * The configuration of a run: one YAML file, `--set key=value` on top of it, then what the dataset and the mesh decide.
 *
 *   tr_config_load      file + overrides, every key checked for name, type and range     (before any rank is known)
 *   tr_config_resolve   vocabulary, batch arithmetic, number of steps                    (dataset and mesh known)
 *   tr_config_emit      the whole as YAML again: config.resolved.yaml, which gives the same run
 *
 * Keys and their limits stand in one table, config_keys.c. Training keys carry the names of Hugging Face
 * TrainingArguments, `model` those of config.json, `parallelism_config` those of Accelerate in either spelling.
 */
#include <limits.h>
#include <stdint.h>
#include "io/io_dataset.h"
#include "libsp/sp_env.h"
#include "trainer/model.h"
#include "trainer/tr_err.h"

#define TR_CONFIG_DEFAULT "train.yaml"
#define TR_CONFIG_MAX_KEYS 72

enum tr_device { TR_DEVICE_CPU, TR_DEVICE_CUDA, TR_DEVICE_REF };
enum tr_lr_type { TR_LR_LINEAR, TR_LR_COSINE, TR_LR_CONSTANT, TR_LR_CONSTANT_WARMUP, TR_LR_COSINE_MIN };
enum tr_resume { TR_RESUME_AUTO, TR_RESUME_NEVER, TR_RESUME_MUST };

/* parallelism_config; 0: not given */
struct tr_parallel {
	int64_t sp_size, cp_size, dp_shard_size, dp_replicate_size, tp_size;
	int64_t sp_seq_length;
	int sp_backend, sp_seq_length_is_variable, sp_attn, cp_backend, cp_comm;
};

struct tr_config {
	char file[PATH_MAX];               /* as given */
	char dataset[PATH_MAX], output_dir[PATH_MAX]; /* relative ones joined to the file's folder */
	int device, lr_type, resume;
	struct tr_model_config model;
	struct tr_parallel par;
	int64_t seed, data_seed; /* data_seed -1: seed */
	int shuffle, bf16;
	int64_t max_steps; /* -1: from num_train_epochs */
	double num_train_epochs;
	int64_t per_device_batch, grad_accum, train_batch; /* 0: not given */
	double learning_rate, min_lr_rate, warmup_ratio, weight_decay, beta1, beta2, eps, max_grad_norm;
	int64_t warmup_steps, logging_steps, save_steps, save_total_limit;
	int64_t ddp_timeout, init_timeout, threads, loss_tile_tokens;
	int line[TR_CONFIG_MAX_KEYS]; /* by key: line in the file, -1 for --set, 0 not given */

	/* what tr_config_resolve adds */
	int64_t dp_size;      /* rows read at once: dp_replicate x dp_shard */
	int64_t global_batch; /* samples an optimizer step */
	int64_t total_steps, warmup;
};

struct tr_config_args {
	const char *file; /* NULL: train.yaml of the working directory */
	const char *const *set; /* "key=value" */
	int nset;
};
int tr_config_load(const struct tr_config_args *a, struct tr_config *out, struct tr_error *err);
/* The same from text; `name` for messages, relative paths count from `dir`. */
int tr_config_parse(const char *name, const char *dir, const char *text, size_t len, const struct tr_config_args *a,
		    struct tr_config *out, struct tr_error *err);
int tr_config_resolve(struct tr_config *c, const struct io_dataset_info *d, const struct sp_sizes *mesh,
		      struct tr_error *err);
/* malloc'ed text (caller frees), or NULL without memory. Paths come out absolute. */
char *tr_config_emit(const struct tr_config *c);

/* Mesh sizes the file gives, 0 where it does not. */
void tr_config_sizes(const struct tr_config *c, struct sp_sizes *out);

#endif
