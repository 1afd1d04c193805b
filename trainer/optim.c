/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A stretch of the own range with one weight decay. */
struct piece {
	int64_t begin, end; /* in the flat space */
	int decay;
};

struct tr_optim {
	struct tr_model *model;
	const struct kn_ops *ops;
	struct kn_ctx *ctx;
	struct sp_comm *shard, *replicate;
	struct tr_optim_opts o;
	int64_t *off; /* [shard size + 1] ranges of the flat space */
	int64_t begin, end;
	float *m, *v; /* [end - begin] */
	struct piece *pieces;
	int64_t npieces;
};

static int kernels(const struct tr_optim *o, struct tr_error *err, const char *what, int status)
{
	const char *detail;

	if (status == 0)
		return 0;
	detail = o->ops->strerror(o->ctx);
	return tr_errorf(err, TR_EXIT_FAIL, "%s on the %s backend: %s%s%s", what, o->ops->name, strerror(-status),
			 detail && detail[0] ? ": " : "", detail ? detail : "");
}

/* Cuts the own range where decay changes; neighbours of the same decay are one piece, one kernel call. */
static int cut_pieces(struct tr_optim *o, struct tr_error *err)
{
	const struct tr_param *p;
	int64_t n;

	p = tr_model_params(o->model, &n);
	o->pieces = calloc((size_t)n, sizeof(*o->pieces));
	if (!o->pieces)
		return tr_errorf(err, TR_EXIT_FAIL, "out of memory creating the optimizer");
	for (int64_t i = 0; i < n; i++) {
		int64_t b = p[i].offset > o->begin ? p[i].offset : o->begin;
		int64_t e = p[i].offset + p[i].count < o->end ? p[i].offset + p[i].count : o->end;
		int decay = p[i].decay && o->o.weight_decay != 0;
		struct piece *last = o->npieces ? &o->pieces[o->npieces - 1] : NULL;

		if (b >= e)
			continue;
		if (last && last->decay == decay)
			last->end = e;
		else
			o->pieces[o->npieces++] = (struct piece){ b, e, decay };
	}
	return 0;
}

static int make_ranges(struct tr_optim *o, struct tr_error *err)
{
	int size = sp_comm_size(o->shard), rank = sp_comm_rank(o->shard);

	o->off = calloc((size_t)size + 1, sizeof(*o->off));
	if (!o->off)
		return tr_errorf(err, TR_EXIT_FAIL, "out of memory creating the optimizer");
	for (int i = 0; i < size; i++)
		sp_split(tr_model_total(o->model), size, i, &o->off[i], &o->off[i + 1]);
	o->begin = o->off[rank];
	o->end = o->off[rank + 1];
	return 0;
}

static int make_moments(struct tr_optim *o, struct tr_error *err)
{
	size_t bytes = (size_t)(o->end - o->begin) * sizeof(float), ask = bytes ? bytes : sizeof(float);

	if (o->ops->alloc(o->ctx, ask, (void **)&o->m) || o->ops->alloc(o->ctx, ask, (void **)&o->v))
		return tr_errorf(err, TR_EXIT_FAIL, "cannot allocate %.1f MiB for the optimizer's moments; use a larger dp_shard_size",
				 2.0 * (double)bytes / 1048576.0);
	if (kernels(o, err, "clearing moments", o->ops->zero(o->ctx, o->m, bytes)) ||
	    kernels(o, err, "clearing moments", o->ops->zero(o->ctx, o->v, bytes)))
		return -1;
	return 0;
}

int tr_optim_create(struct tr_model *m, struct sp_mesh *mesh, const struct kn_ops *ops, struct kn_ctx *ctx,
		    const struct tr_optim_opts *opts, struct tr_optim **out, struct tr_error *err)
{
	struct tr_optim *o = calloc(1, sizeof(*o));

	*out = NULL;
	if (!o)
		return tr_errorf(err, TR_EXIT_FAIL, "out of memory creating the optimizer");
	*o = (struct tr_optim){ .model = m, .ops = ops, .ctx = ctx, .o = *opts };
	o->shard = sp_mesh_comm(mesh, SP_GROUP_SHARD);
	o->replicate = sp_mesh_comm(mesh, SP_GROUP_REPLICATE);
	if (make_ranges(o, err) || cut_pieces(o, err) || make_moments(o, err)) {
		tr_optim_destroy(o);
		return -1;
	}
	*out = o;
	return 0;
}

void tr_optim_destroy(struct tr_optim *o)
{
	if (!o)
		return;
	o->ops->free(o->ctx, o->m);
	o->ops->free(o->ctx, o->v);
	free(o->pieces);
	free(o->off);
	free(o);
}

/* Sums the gradient over all ranks into the own range; its global norm. Sums of squares are added over the shard group in rank
 * order, and all copies hold the same bits, so the norm is the same double everywhere. */
static int reduce(struct tr_optim *o, double *norm, struct tr_error *err)
{
	float *g = tr_model_grads(o->model);
	struct sp_error se = { 0 };
	double sum = 0;

	if (sp_comm_reduce_scatter(o->shard, g, o->off, &se) ||
	    (sp_comm_size(o->replicate) > 1 &&
	     sp_comm_all_reduce(o->replicate, g + o->begin, o->end - o->begin, &se)))
		return tr_error_sp(err, &se);
	if (kernels(o, err, "gradient norm", o->ops->sumsq(o->ctx, o->end - o->begin, g + o->begin, &sum)))
		return -1;
	if (sp_comm_host_sum(o->shard, &sum, 1, &se))
		return tr_error_sp(err, &se);
	*norm = sqrt(sum);
	return 0;
}

static int update(struct tr_optim *o, int64_t step, double lr, double grad_scale, struct tr_error *err)
{
	float *w = tr_model_weights(o->model), *g = tr_model_grads(o->model);

	for (int64_t i = 0; i < o->npieces; i++) {
		const struct piece *p = &o->pieces[i];
		struct kn_adamw a = { .n = p->end - p->begin, .p = w + p->begin, .m = o->m + (p->begin - o->begin),
				      .v = o->v + (p->begin - o->begin), .g = g + p->begin, .lr = lr,
				      .beta1 = o->o.beta1, .beta2 = o->o.beta2, .eps = o->o.eps,
				      .weight_decay = p->decay ? o->o.weight_decay : 0, .grad_scale = grad_scale,
				      .step = step };

		if (kernels(o, err, "AdamW", o->ops->adamw(o->ctx, &a)))
			return -1;
	}
	return 0;
}

int tr_optim_step(struct tr_optim *o, int64_t step, double lr, double *grad_norm, struct tr_error *err)
{
	struct sp_error se = { 0 };
	double norm = 0, coef = 1;

	if (reduce(o, &norm, err))
		return -1;
	*grad_norm = norm;
	if (!isfinite(norm))
		return tr_errorf(err, TR_EXIT_NUMBERS,
				 "step %lld: the gradient norm is %s; weights are unchanged. Lower learning_rate, raise warmup_steps "
				 "or set max_grad_norm",
				 (long long)step, isnan(norm) ? "not a number" : "infinite");
	/* torch.nn.utils.clip_grad_norm_ */
	if (o->o.max_grad_norm > 0)
		coef = fmin(o->o.max_grad_norm / (norm + 1e-6), 1.0);
	if (update(o, step, lr, coef, err))
		return -1;
	if (sp_comm_all_gather(o->shard, tr_model_weights(o->model), o->off, &se))
		return tr_error_sp(err, &se);
	return 0;
}

void tr_optim_state(struct tr_optim *o, int64_t *begin, int64_t *end, float **m, float **v)
{
	*begin = o->begin;
	*end = o->end;
	*m = o->m;
	*v = o->v;
}
