/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_OPTIM_H
#define TRAINER_OPTIM_H
/*
 * AdamW over the flat parameter space, its state sharded over the shard group (dp_shard x cp x sp; parameters are equal
 * across sp, so sharding over sp costs nothing) and copied over the replicate group: ZeRO stage 1.
 *
 *   g (local sums)  --reduce-scatter(shard)-->  own range  --all-reduce(replicate)-->  norm, clip, AdamW on own range
 *                   --all-gather(shard)-->  weights equal everywhere
 * The local gradients already carry the factor 1/N (N: valid targets of the step), so sums are the gradient: no division
 * by world, sp or accumulation anywhere.
 */
#include <stdint.h>
#include "libsp/sp.h"
#include "trainer/model.h"

struct tr_optim;
struct tr_optim_opts {
	double beta1, beta2, eps, weight_decay, max_grad_norm; /* max_grad_norm 0: no clipping */
};
int tr_optim_create(struct tr_model *m, struct sp_mesh *mesh, const struct kn_ops *ops, struct kn_ctx *ctx,
		    const struct tr_optim_opts *o, struct tr_optim **out, struct tr_error *err);
void tr_optim_destroy(struct tr_optim *o);
/* Uses and destroys the contents of the gradients; *grad_norm is the norm before clipping (fp64 sums, equal on all ranks). A
 * norm that is not finite changes nothing and is TR_EXIT_NUMBERS. step: 1-based. Collective over the world. */
int tr_optim_step(struct tr_optim *o, int64_t step, double lr, double *grad_norm, struct tr_error *err);
/* Own range [*begin, *end) of the flat space and its moments (device fp32 [end - begin]). */
void tr_optim_state(struct tr_optim *o, int64_t *begin, int64_t *end, float **m, float **v);

#endif
