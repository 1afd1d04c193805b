/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_MODEL_H
#define TRAINER_MODEL_H
/*
 * The Llama decoder on one rank: parameters in one flat fp32 space, forward and backward of one row (micro-batch) whose
 * tokens are sharded over the sp group. The numbers do not depend on how many ranks share the row, beyond rounding.
 *
 *   x0 = embed(ids)
 *   per layer:  a = rmsnorm(x);  q, kv = a Wq', a Wkv' (written in send layout, sp_plan.h);  rope;  o = ulysses(q, kv)
 *               x += sum_p o_p Wo_p';  b = rmsnorm(x);  x += (silu(b Wg') * (b Wu')) Wd'
 *   logits = rmsnorm(x) Wlm'  in token tiles fused with the cross-entropy: no [T][V] buffer
 *
 * Follow one token: io_loader (ids, labels, positions) -> model_fwd.c -> block.c -> sp_attn.c -> loss.c -> back.
 */
#include <stdint.h>
#include "io/io_loader.h"
#include "kernels/kernels.h"
#include "libsp/sp.h"
#include "trainer/tr_err.h"

struct tr_model_config {
	char model_type[32]; /* "llama" */
	int64_t hidden_size, intermediate_size, num_hidden_layers;
	int64_t num_attention_heads, num_key_value_heads, head_dim;
	int64_t vocab_size, max_position_embeddings;
	double rms_norm_eps, rope_theta, initializer_range;
	int tie_word_embeddings, attention_bias;
	int64_t eos_token_id, pad_token_id, bos_token_id; /* -1: none; carried into config.json */
};
/* Checks every field and product; one line naming the key, its value and what is allowed. */
int tr_model_config_check(const struct tr_model_config *c, struct tr_error *err);

/* One named tensor of the flat parameter space, Hugging Face name and shape ([out][in] for linear layers). */
struct tr_param {
	char name[96];
	int ndim;
	int64_t dims[2];
	int64_t offset, count; /* elements in the flat space; offsets rise in table order without gaps */
	int decay;             /* weight decay applies (not to norms and biases) */
};

struct tr_model;
struct tr_model_opts {
	struct tr_model_config config;
	const struct kn_ops *ops;
	struct kn_ctx *ctx;
	struct sp_comm *sp;       /* the sp group */
	int64_t loss_tile_tokens; /* 0: from a 64 MiB budget of fp32 logits */
};
int tr_model_create(const struct tr_model_opts *o, struct tr_model **out, struct tr_error *err);
void tr_model_destroy(struct tr_model *m);

const struct tr_param *tr_model_params(const struct tr_model *m, int64_t *n); /* table, owned by m */
int64_t tr_model_total(const struct tr_model *m);                             /* elements of the flat space */
float *tr_model_weights(struct tr_model *m); /* device, [total] */
float *tr_model_grads(struct tr_model *m);   /* device, [total] */

/* The model type's own initialisation (normal(0, initializer_range); norms 1; biases 0) from a counter-based generator:
 * element i of tensor `name` depends on (seed, name, i) alone. */
int tr_model_init(struct tr_model *m, uint64_t seed, struct tr_error *err);

/* Forward, and with train = 1 backward, of this rank's part of one row. Collective over sp.
 * grads += grad_scale * sum_t dCE_t/dw over own tokens; *loss_sum += sum of CE over own valid targets (host, fp64).
 * grads is not zeroed here. nll (host [t1 - t0], may be NULL) gets each token's CE. */
int tr_model_row(struct tr_model *m, const struct io_batch *b, int train, double grad_scale, double *loss_sum,
		 float *nll, struct tr_error *err);
/* Logits of own tokens, host fp32 [t1 - t0][vocab]; for tests and small evaluations. Collective over sp. */
int tr_model_logits(struct tr_model *m, const struct io_batch *b, float *logits, struct tr_error *err);

/* FLOPs of matrix products + attention of one training step on this row, all ranks together (6 N T + causal attention). */
double tr_model_flops(const struct tr_model *m, int64_t tokens, const int64_t *cu, int64_t ndoc);
/* Bytes of device memory held now, by kind, for the memory report at start. */
void tr_model_memory(const struct tr_model *m, int64_t *weights, int64_t *grads, int64_t *activations);

/* Seconds spent in matrix products / attention / exchange / everything since the last call (host clock; for metrics and the
 * start report; never part of results). */
struct tr_model_times {
	double gemm, attn, exchange, loss, other;
};
void tr_model_times(struct tr_model *m, struct tr_model_times *out);

#endif
