/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One decoder layer, forward and backward in mirror order.
 *
 * The projections write the layout that the exchange sends (sp_plan.h), so nothing is packed:
 *
 *   q   for each rank p     Q_p [T][nq_p d]   = a Wq[rows of p's heads]'          a product a rank
 *   kv  for each run u      k_u, v_u          = a Wk[rows of u]', a Wv[rows of u]' two products a run, row stride 2 n_u d
 *   o   x2 = x1 + sum_p     O_p Wo[:, columns of p's heads]'                        sums over p
 *
 * With one rank that is one product each for q, k, v and o. Weights keep the Hugging Face order; slices of rows and columns
 * are pointers into them.
 */
#include "trainer/model_priv.h"

/* One rank's stretch of q heads: columns in the projection, block in the local buffer. */
struct q_part {
	int64_t row;   /* first row of Wq, first column of Wo */
	int64_t width; /* nq_p * d */
	int64_t at;    /* element offset of the [T][width] block */
};
static struct q_part q_part(const struct tr_model *m, int p)
{
	const struct sp_plan *pl = m->plan;

	return (struct q_part){ (int64_t)pl->q_begin[p] * pl->d, (int64_t)sp_plan_nq(pl, p) * pl->d,
				sp_plan_q_off(pl, m->t, p) };
}

/* One run of kv heads: block [T][2 * width], k columns then v columns. */
static struct q_part kv_part(const struct tr_model *m, int u)
{
	const struct sp_plan *pl = m->plan;
	const struct sp_run *r = &pl->runs[u];

	return (struct q_part){ (int64_t)r->kv_begin * pl->d, (int64_t)(r->kv_end - r->kv_begin) * pl->d,
				sp_plan_kv_off(pl, m->t, u) };
}

static int norm_fwd(struct tr_model *m, const float *x, int64_t w, float *rstd, struct tr_error *err)
{
	int64_t C = m->config.hidden_size;

	return tr_k(m, err, "rmsnorm",
		    m->ops->rmsnorm_fwd(m->ctx, KN_F32, m->t, C, (float)m->config.rms_norm_eps, x, C, m->weights + w,
					m->a.n, C, rstd));
}

/* a.dx += gradient through the norm whose output's gradient is a.dn */
static int norm_bwd(struct tr_model *m, const float *x, int64_t w, const float *rstd, struct tr_error *err)
{
	int64_t C = m->config.hidden_size;

	return tr_k(m, err, "rmsnorm backward",
		    m->ops->rmsnorm_bwd(m->ctx, KN_F32, m->t, C, x, C, m->weights + w, rstd, m->a.dn, C, m->a.dx, C, 1,
					m->grads + w));
}

static int turn(struct tr_model *m, int64_t width, float *x, int64_t ldx, int inverse, struct tr_error *err)
{
	int64_t d = m->config.head_dim;

	return tr_k(m, err, "rope",
		    m->ops->rope(m->ctx, KN_F32, m->t, width / d, d, d, x, ldx, m->a.pos, m->rope_cos, m->rope_sin,
				 m->rope_rows, inverse));
}

static int bias_fwd(struct tr_model *m, int64_t at, int64_t n, float *y, int64_t ldy, struct tr_error *err)
{
	if (at < 0)
		return 0;
	return tr_k(m, err, "bias", m->ops->bias_fwd(m->ctx, KN_F32, m->t, n, m->weights + at, y, ldy));
}

static int bias_bwd(struct tr_model *m, int64_t at, int64_t n, const float *dy, int64_t lddy, struct tr_error *err)
{
	if (at < 0)
		return 0;
	return tr_k(m, err, "bias backward", m->ops->bias_bwd(m->ctx, KN_F32, m->t, n, dy, lddy, m->grads + at));
}

static int64_t plus(int64_t at, int64_t more) { return at < 0 ? at : at + more; }

static int copy_rows(struct tr_model *m, float *dst, const float *src, struct tr_error *err)
{
	size_t bytes = (size_t)m->t * (size_t)m->config.hidden_size * sizeof(float);

	return tr_k(m, err, "copy", m->ops->copy(m->ctx, dst, src, bytes, KN_D2D));
}

/* ---- forward ---------------------------------------------------------------------------------------------- */

/* y [T][width] of row stride ldy = n W[rows]' + b */
static int project(struct tr_model *m, int64_t w, int64_t b, struct q_part p, float *y, int64_t ldy,
		   struct tr_error *err)
{
	int64_t C = m->config.hidden_size;

	if (tr_linear_fwd(m, m->t, p.width, C, m->a.n, C, m->weights + w + p.row * C, C, 0, y, ldy, err))
		return -1;
	return bias_fwd(m, plus(b, p.row), p.width, y, ldy, err);
}

static int project_qkv(struct tr_model *m, const struct tr_layer_off *w, struct tr_layer_act *a, struct tr_error *err)
{
	for (int i = 0; i < m->plan->p; i++) {
		struct q_part p = q_part(m, i);

		if (project(m, w->wq, w->bq, p, a->q + p.at, p.width, err) ||
		    turn(m, p.width, a->q + p.at, p.width, 0, err))
			return -1;
	}
	for (int u = 0; u < m->plan->nruns; u++) {
		struct q_part p = kv_part(m, u);
		float *k = a->kv + p.at, *v = k + p.width;

		if (project(m, w->wk, w->bk, p, k, 2 * p.width, err) || turn(m, p.width, k, 2 * p.width, 0, err) ||
		    project(m, w->wv, w->bv, p, v, 2 * p.width, err))
			return -1;
	}
	return 0;
}

static int attention_fwd(struct tr_model *m, struct tr_layer_act *a, struct tr_error *err)
{
	struct sp_error se = { 0 };
	double t = tr_now();

	if (sp_attn_fwd(m->attn, a->q, a->kv, a->o, &a->save, &se))
		return tr_error_sp(err, &se);
	m->times.attn += tr_now() - t;
	return 0;
}

int tr_block_fwd(struct tr_model *m, int64_t l, float *x_next, struct tr_error *err)
{
	const struct tr_layer_off *w = &m->off.layer[l];
	struct tr_layer_act *a = &m->a.layer[l];
	int64_t T = m->t, C = m->config.hidden_size, F = m->config.intermediate_size;
	int64_t Q = m->config.num_attention_heads * m->config.head_dim;

	if (norm_fwd(m, a->x1, w->ln1, a->rstd1, err) || project_qkv(m, w, a, err) || attention_fwd(m, a, err) ||
	    copy_rows(m, a->x2, a->x1, err))
		return -1;
	for (int i = 0; i < m->plan->p; i++) {
		struct q_part p = q_part(m, i);

		if (tr_linear_fwd(m, T, C, p.width, a->o + p.at, p.width, m->weights + w->wo + p.row, Q, 1, a->x2, C,
				  err))
			return -1;
	}
	if (bias_fwd(m, w->bo, C, a->x2, C, err) || norm_fwd(m, a->x2, w->ln2, a->rstd2, err) ||
	    tr_linear_fwd(m, T, 2 * F, C, m->a.n, C, m->weights + w->wgu, C, 0, a->gu, 2 * F, err) ||
	    tr_k(m, err, "swiglu",
		 m->ops->swiglu_fwd(m->ctx, KN_F32, T, F, a->gu, 2 * F, a->gu + F, 2 * F, m->a.h, F)) ||
	    copy_rows(m, x_next, a->x2, err))
		return -1;
	return tr_linear_fwd(m, T, C, F, m->a.h, F, m->weights + w->wd, F, 1, x_next, C, err);
}

/* ---- backward --------------------------------------------------------------------------------------------- */

static int mlp_bwd(struct tr_model *m, const struct tr_layer_off *w, struct tr_layer_act *a, struct tr_error *err)
{
	int64_t T = m->t, C = m->config.hidden_size, F = m->config.intermediate_size;
	float *g = a->gu, *u = a->gu + F, *h = m->a.h;

	if (norm_fwd(m, a->x2, w->ln2, a->rstd2, err) ||
	    tr_k(m, err, "swiglu", m->ops->swiglu_fwd(m->ctx, KN_F32, T, F, g, 2 * F, u, 2 * F, h, F)) ||
	    tr_linear_dw(m, T, C, F, m->a.dx, C, h, F, m->grads + w->wd, F, err) ||
	    tr_linear_dx(m, T, C, F, m->a.dx, C, m->weights + w->wd, F, 0, h, F, err) ||
	    tr_k(m, err, "swiglu backward",
		 m->ops->swiglu_bwd(m->ctx, KN_F32, T, F, g, 2 * F, u, 2 * F, h, F, g, 2 * F, u, 2 * F)) ||
	    tr_linear_dw(m, T, 2 * F, C, a->gu, 2 * F, m->a.n, C, m->grads + w->wgu, C, err) ||
	    tr_linear_dx(m, T, 2 * F, C, a->gu, 2 * F, m->weights + w->wgu, C, 0, m->a.dn, C, err))
		return -1;
	return norm_bwd(m, a->x2, w->ln2, a->rstd2, err);
}

/* Gradients of O and Wo, per rank's columns, from a.dx. */
static int output_bwd(struct tr_model *m, const struct tr_layer_off *w, const struct tr_layer_act *a,
		      struct tr_error *err)
{
	int64_t T = m->t, C = m->config.hidden_size, Q = m->config.num_attention_heads * m->config.head_dim;

	for (int i = 0; i < m->plan->p; i++) {
		struct q_part p = q_part(m, i);

		if (tr_linear_dx(m, T, C, p.width, m->a.dx, C, m->weights + w->wo + p.row, Q, 0, m->a.do_ + p.at,
				 p.width, err) ||
		    tr_linear_dw(m, T, C, p.width, m->a.dx, C, a->o + p.at, p.width, m->grads + w->wo + p.row, Q, err))
			return -1;
	}
	return bias_bwd(m, w->bo, C, m->a.dx, C, err);
}

static int attention_bwd(struct tr_model *m, const struct tr_layer_act *a, struct tr_error *err)
{
	struct sp_error se = { 0 };
	double t = tr_now();

	if (sp_attn_bwd(m->attn, a->q, a->kv, a->o, m->a.do_, &a->save, m->a.dq, m->a.dkv, &se))
		return tr_error_sp(err, &se);
	m->times.attn += tr_now() - t;
	return 0;
}

/* dy [T][width] back through W[rows] and b: their gradients are added, a.dn = or += dy W[rows]. */
static int unproject(struct tr_model *m, int64_t w, int64_t b, struct q_part p, const float *dy, int64_t lddy,
		     float beta, struct tr_error *err)
{
	int64_t C = m->config.hidden_size;

	if (bias_bwd(m, plus(b, p.row), p.width, dy, lddy, err) ||
	    tr_linear_dw(m, m->t, p.width, C, dy, lddy, m->a.n, C, m->grads + w + p.row * C, C, err))
		return -1;
	return tr_linear_dx(m, m->t, p.width, C, dy, lddy, m->weights + w + p.row * C, C, beta, m->a.dn, C, err);
}

static int unproject_qkv(struct tr_model *m, const struct tr_layer_off *w, struct tr_error *err)
{
	for (int i = 0; i < m->plan->p; i++) {
		struct q_part p = q_part(m, i);
		float *dq = m->a.dq + p.at;

		if (turn(m, p.width, dq, p.width, 1, err) || unproject(m, w->wq, w->bq, p, dq, p.width, i > 0, err))
			return -1;
	}
	for (int u = 0; u < m->plan->nruns; u++) {
		struct q_part p = kv_part(m, u);
		float *dk = m->a.dkv + p.at, *dv = dk + p.width;

		if (turn(m, p.width, dk, 2 * p.width, 1, err) ||
		    unproject(m, w->wk, w->bk, p, dk, 2 * p.width, 1, err) ||
		    unproject(m, w->wv, w->bv, p, dv, 2 * p.width, 1, err))
			return -1;
	}
	return 0;
}

int tr_block_bwd(struct tr_model *m, int64_t l, struct tr_error *err)
{
	const struct tr_layer_off *w = &m->off.layer[l];
	struct tr_layer_act *a = &m->a.layer[l];

	if (mlp_bwd(m, w, a, err) || output_bwd(m, w, a, err) || attention_bwd(m, a, err) ||
	    norm_fwd(m, a->x1, w->ln1, a->rstd1, err) || unproject_qkv(m, w, err))
		return -1;
	return norm_bwd(m, a->x1, w->ln1, a->rstd1, err);
}
