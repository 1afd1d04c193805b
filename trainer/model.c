/* SPDX-License-Identifier: Apache-2.0 */
/* Life of the model, its buffers, and the small accessors. The pass itself: model_row.c, block.c, loss.c. */
#include "trainer/model_priv.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOGITS_BUDGET ((int64_t)64 << 20) /* bytes of one tile of fp32 logits */
#define ALIGN 64

double tr_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

int tr_k(const struct tr_model *m, struct tr_error *err, const char *what, int status)
{
	const char *detail;

	if (status == 0)
		return 0;
	detail = m->ops->strerror(m->ctx);
	return tr_errorf(err, TR_EXIT_FAIL, "%s on the %s backend: %s%s%s", what, m->ops->name, strerror(-status),
			 detail && detail[0] ? ": " : "", detail ? detail : "");
}

int tr_alloc(struct tr_model *m, size_t bytes, void **out, const char *what, struct tr_error *err)
{
	*out = NULL;
	if (m->ops->alloc(m->ctx, bytes ? bytes : ALIGN, out) == 0)
		return 0;
	*out = NULL;
	return tr_errorf(err, TR_EXIT_FAIL,
			 "cannot allocate %.1f MiB for %s; use a larger sp_size, a shorter sequence or a smaller model",
			 (double)bytes / 1048576.0, what);
}

/* ---- matrix products ---------------------------------------------------------------------------------------- */

static int gemm(struct tr_model *m, const struct kn_gemm *g, struct tr_error *err)
{
	double t = tr_now();

	if (tr_k(m, err, "matrix product", m->ops->gemm(m->ctx, g)))
		return -1;
	m->times.gemm += tr_now() - t;
	return 0;
}

int tr_linear_fwd(struct tr_model *m, int64_t T, int64_t N, int64_t K, const float *x, int64_t ldx, const float *w,
		  int64_t ldw, float beta, float *y, int64_t ldy, struct tr_error *err)
{
	struct kn_gemm g = { .tb = 1, .m = T, .n = N, .k = K, .alpha = 1, .beta = beta, .a = x, .lda = ldx, .b = w,
			     .ldb = ldw, .c = y, .ldc = ldy };

	return T ? gemm(m, &g, err) : 0;
}

int tr_linear_dx(struct tr_model *m, int64_t T, int64_t N, int64_t K, const float *dy, int64_t lddy, const float *w,
		 int64_t ldw, float beta, float *dx, int64_t lddx, struct tr_error *err)
{
	struct kn_gemm g = { .m = T, .n = K, .k = N, .alpha = 1, .beta = beta, .a = dy, .lda = lddy, .b = w,
			     .ldb = ldw, .c = dx, .ldc = lddx };

	return T ? gemm(m, &g, err) : 0;
}

int tr_linear_dw(struct tr_model *m, int64_t T, int64_t N, int64_t K, const float *dy, int64_t lddy, const float *x,
		 int64_t ldx, float *dw, int64_t lddw, struct tr_error *err)
{
	struct kn_gemm g = { .ta = 1, .m = N, .n = K, .k = T, .alpha = 1, .beta = 1, .a = dy, .lda = lddy, .b = x,
			     .ldb = ldx, .c = dw, .ldc = lddw };

	return T ? gemm(m, &g, err) : 0;
}

/* ---- buffers of a row --------------------------------------------------------------------------------------- */

/* Deals out pieces of the slab; with base NULL only adds up. `over` is set when the sum leaves size_t. */
struct dealer {
	char *base;
	size_t at;
	int over;
};
static void *deal(struct dealer *s, int64_t rows, int64_t cols, size_t elem)
{
	size_t n, at = s->at;

	if (__builtin_mul_overflow((size_t)rows, (size_t)cols, &n) || __builtin_mul_overflow(n, elem, &n) ||
	    __builtin_add_overflow(n, (size_t)ALIGN - 1, &n) || __builtin_add_overflow(at, n, &s->at)) {
		s->over = 1;
		return NULL;
	}
	s->at &= ~((size_t)ALIGN - 1);
	return s->base ? s->base + at : NULL;
}

static void deal_layer(const struct tr_model *m, struct dealer *s, struct tr_layer_act *l, int64_t t, int64_t sv[3])
{
	const struct tr_model_config *c = &m->config;
	int64_t q = c->num_attention_heads * c->head_dim, kv = c->num_key_value_heads * c->head_dim;

	l->x1 = deal(s, t, c->hidden_size, 4);
	l->rstd1 = deal(s, t, 1, 4);
	l->q = deal(s, t, q, 4);
	l->kv = deal(s, t, 2 * kv, 4);
	l->o = deal(s, t, q, 4);
	/* With one rank attention reads the local buffers again. */
	l->save.q = m->plan->p > 1 ? deal(s, sv[0], 1, 4) : NULL;
	l->save.kv = m->plan->p > 1 ? deal(s, sv[1], 1, 4) : NULL;
	l->save.lse = deal(s, sv[2], 1, 4);
	l->x2 = deal(s, t, c->hidden_size, 4);
	l->rstd2 = deal(s, t, 1, 4);
	l->gu = deal(s, t, 2 * c->intermediate_size, 4);
}

static void deal_row(const struct tr_model *m, struct tr_acts *a, struct dealer *s, int64_t t, int64_t row)
{
	const struct tr_model_config *c = &m->config;
	int64_t q = c->num_attention_heads * c->head_dim, kv = c->num_key_value_heads * c->head_dim, sv[3];

	sp_attn_save_sizes(m->attn, row, &sv[0], &sv[1], &sv[2]);
	a->ids = deal(s, t, 1, sizeof(*a->ids));
	a->labels = deal(s, t, 1, sizeof(*a->labels));
	a->pos = deal(s, t, 1, sizeof(*a->pos));
	for (int64_t l = 0; l < c->num_hidden_layers; l++)
		deal_layer(m, s, &a->layer[l], t, sv);
	a->xf = deal(s, t, c->hidden_size, 4);
	a->rstdf = deal(s, t, 1, 4);
	a->n = deal(s, t, c->hidden_size, 4);
	a->h = deal(s, t, c->intermediate_size, 4);
	a->dx = deal(s, t, c->hidden_size, 4);
	a->dn = deal(s, t, c->hidden_size, 4);
	a->do_ = deal(s, t, q, 4);
	a->dq = deal(s, t, q, 4);
	a->dkv = deal(s, t, 2 * kv, 4);
	a->logits = deal(s, t < m->tile ? t : m->tile, c->vocab_size, 4);
	a->nll = deal(s, t, 1, 4);
}

int tr_acts_reserve(struct tr_model *m, int64_t t, int64_t s, struct tr_error *err)
{
	struct tr_acts *a = &m->a;
	struct dealer d = { 0 };

	if (a->slab && t <= a->cap_t && s <= a->cap_s)
		return 0;
	t = t > a->cap_t ? t : a->cap_t;
	s = s > a->cap_s ? s : a->cap_s;
	deal_row(m, a, &d, t, s);
	if (d.over)
		return tr_errorf(err, TR_EXIT_FAIL, "activations of a row of %lld tokens exceed the address space",
				 (long long)s);
	m->ops->free(m->ctx, a->slab);
	a->slab = NULL;
	a->bytes = 0;
	a->cap_t = a->cap_s = 0;
	if (tr_alloc(m, d.at, (void **)&a->slab, "activations", err))
		return -1;
	a->bytes = d.at;
	a->cap_t = t;
	a->cap_s = s;
	d = (struct dealer){ .base = a->slab };
	deal_row(m, a, &d, t, s);
	return 0;
}

/* ---- life ----------------------------------------------------------------------------------------------------- */

static int create_attention(struct tr_model *m, struct tr_error *err)
{
	struct sp_attn_opts o = { .hq = (int)m->config.num_attention_heads, .hkv = (int)m->config.num_key_value_heads,
				  .d = (int)m->config.head_dim, .scale = (float)(1.0 / sqrt((double)m->config.head_dim)),
				  .dtype = KN_F32 };
	struct sp_error se = { 0 };

	if (sp_attn_create(m->sp, m->ops, m->ctx, &o, &m->attn, &se))
		return tr_error_sp(err, &se);
	m->plan = sp_attn_plan(m->attn);
	return 0;
}

int tr_model_create(const struct tr_model_opts *o, struct tr_model **out, struct tr_error *err)
{
	struct tr_model *m;
	size_t bytes;

	*out = NULL;
	if (tr_model_config_check(&o->config, err))
		return -1;
	m = calloc(1, sizeof(*m));
	if (!m)
		return tr_errorf(err, TR_EXIT_FAIL, "out of memory creating the model");
	m->config = o->config;
	m->ops = o->ops;
	m->ctx = o->ctx;
	m->sp = o->sp;
	m->tile = o->loss_tile_tokens > 0 ? o->loss_tile_tokens : LOGITS_BUDGET / (4 * m->config.vocab_size);
	m->tile = m->tile > 1 ? m->tile : 1;
	if (create_attention(m, err) || tr_params_build(&m->config, &m->params, &m->nparams, &m->total, err) ||
	    tr_offsets_build(&m->config, m->params, m->nparams, &m->off, err))
		goto fail;
	m->a.layer = calloc((size_t)m->config.num_hidden_layers, sizeof(*m->a.layer));
	if (!m->a.layer) {
		tr_errorf(err, TR_EXIT_FAIL, "out of memory creating the model");
		goto fail;
	}
	bytes = (size_t)m->total * sizeof(float);
	if (tr_alloc(m, bytes, (void **)&m->weights, "weights", err) ||
	    tr_alloc(m, bytes, (void **)&m->grads, "gradients", err) ||
	    tr_k(m, err, "clearing weights", m->ops->zero(m->ctx, m->weights, bytes)) ||
	    tr_k(m, err, "clearing gradients", m->ops->zero(m->ctx, m->grads, bytes)))
		goto fail;
	*out = m;
	return 0;
fail:
	tr_model_destroy(m);
	return -1;
}

void tr_model_destroy(struct tr_model *m)
{
	if (!m)
		return;
	m->ops->free(m->ctx, m->a.slab);
	m->ops->free(m->ctx, m->rope_cos);
	m->ops->free(m->ctx, m->grads);
	m->ops->free(m->ctx, m->weights);
	sp_attn_destroy(m->attn);
	free(m->a.layer);
	free(m->off.layer);
	free(m->params);
	free(m);
}

/* ---- accessors ------------------------------------------------------------------------------------------------ */

const struct tr_param *tr_model_params(const struct tr_model *m, int64_t *n)
{
	*n = m->nparams;
	return m->params;
}

int64_t tr_model_total(const struct tr_model *m) { return m->total; }
float *tr_model_weights(struct tr_model *m) { return m->weights; }
float *tr_model_grads(struct tr_model *m) { return m->grads; }

double tr_model_flops(const struct tr_model *m, int64_t tokens, const int64_t *cu, int64_t ndoc)
{
	const struct tr_model_config *c = &m->config;
	/* Weights that take part in products: everything but norms and biases, without the embedding's lookup. */
	double C = (double)c->hidden_size, q = (double)(c->num_attention_heads * c->head_dim);
	double kv = (double)(c->num_key_value_heads * c->head_dim);
	double layer = C * (2 * q + 2 * kv) + 3 * C * (double)c->intermediate_size;
	double n = layer * (double)c->num_hidden_layers + C * (double)c->vocab_size, pairs = 0;

	for (int64_t i = 0; i < ndoc; i++) {
		double len = (double)(cu[i + 1] - cu[i]);

		pairs += len * (len + 1) / 2;
	}
	/* q k' and p v are 2 products forward and 4 backward (the scores computed again are not counted), 2 flops each. */
	return 6 * n * (double)tokens + 12 * pairs * q * (double)c->num_hidden_layers;
}

void tr_model_memory(const struct tr_model *m, int64_t *weights, int64_t *grads, int64_t *activations)
{
	*weights = *grads = m->total * (int64_t)sizeof(float);
	*activations = (int64_t)m->a.bytes + m->rope_rows * m->config.head_dim * (int64_t)sizeof(float);
}

void tr_model_times(struct tr_model *m, struct tr_model_times *out)
{
	*out = m->times;
	out->other = m->row_seconds - out->gemm - out->attn - out->exchange - out->loss;
	m->times = (struct tr_model_times){ 0 };
	m->row_seconds = 0;
}
