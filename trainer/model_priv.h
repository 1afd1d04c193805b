/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_MODEL_PRIV_H
#define TRAINER_MODEL_PRIV_H
/*
 * Inside the model: its state, what one row leaves for backward, and the steps of the pass.
 * C hidden, F intermediate, V vocabulary, d head size, T own tokens of the row, S all tokens of the row.
 */
#include "trainer/model.h"
#include "trainer/params.h"

/* What forward of one layer keeps. The norms' outputs and the SwiGLU product are computed again in backward. */
struct tr_layer_act {
	float *x1, *rstd1;        /* [T][C] input of the layer, [T] */
	float *q, *kv, *o;        /* send layout of sp_plan.h; q and k already turned */
	struct sp_attn_save save; /* head-sharded q, kv and log-sum-exp */
	float *x2, *rstd2;        /* [T][C] after attention, [T] */
	float *gu;                /* [T][2F] rows gate | up; backward overwrites it with its gradient */
};

/* All buffers of a row, one allocation that grows when a row has more tokens than any before. */
struct tr_acts {
	int64_t cap_t, cap_s;
	char *slab;
	size_t bytes;
	uint32_t *ids;   /* [T] */
	int32_t *labels; /* [T] */
	int64_t *pos;    /* [T] */
	struct tr_layer_act *layer;
	float *xf, *rstdf;   /* [T][C] output of the last layer, [T] */
	float *n;            /* [T][C] output of the norm at hand */
	float *h;            /* [T][F] SwiGLU product, then its gradient */
	float *dx, *dn;      /* [T][C] gradients of the residual stream and of n */
	float *do_, *dq, *dkv; /* as o, q, kv */
	float *logits;       /* [tile][V] */
	float *nll;          /* [T] */
};

struct tr_model {
	struct tr_model_config config;
	const struct kn_ops *ops;
	struct kn_ctx *ctx;
	struct sp_comm *sp;
	struct sp_attn *attn;
	const struct sp_plan *plan;
	int64_t tile; /* tokens of a loss tile */

	struct tr_param *params;
	int64_t nparams, total;
	struct tr_offsets off;
	float *weights, *grads; /* [total] */

	float *rope_cos, *rope_sin; /* [rope_rows][d/2], one allocation */
	int64_t rope_rows;
	struct tr_acts a;
	int64_t t, s; /* of the row at hand */
	struct tr_model_times times;
	double row_seconds; /* all of tr_model_row so far */
};

/* Turns a status of the kernels backend into an error text: 0, or -1 after tr_errorf. */
int tr_k(const struct tr_model *m, struct tr_error *err, const char *what, int status);
int tr_alloc(struct tr_model *m, size_t bytes, void **out, const char *what, struct tr_error *err);
double tr_now(void);

void tr_philox(uint64_t seed, uint64_t hi, uint64_t lo, uint32_t out[4]);
/* Elements [first, first + n) of the tensor. */
void tr_init_normal(uint64_t seed, const char *name, double std, int64_t first, int64_t n, float *out);
void tr_rope_table(double theta, int64_t d, int64_t first, int64_t n, float *cos_t, float *sin_t);
int tr_rope_reserve(struct tr_model *m, int64_t need, struct tr_error *err);
/* Buffers for t own and s row tokens. */
int tr_acts_reserve(struct tr_model *m, int64_t t, int64_t s, struct tr_error *err);

/* Matrix products of a linear layer y[T][N] = x[T][K] w[N][K]': row strides ld*, beta 0 overwrites, 1 adds.
 * T = 0 touches nothing. */
int tr_linear_fwd(struct tr_model *m, int64_t T, int64_t N, int64_t K, const float *x, int64_t ldx, const float *w,
		  int64_t ldw, float beta, float *y, int64_t ldy, struct tr_error *err);
/* dx[T][K] = dy[T][N] w[N][K] (+ beta dx) */
int tr_linear_dx(struct tr_model *m, int64_t T, int64_t N, int64_t K, const float *dy, int64_t lddy, const float *w,
		 int64_t ldw, float beta, float *dx, int64_t lddx, struct tr_error *err);
/* dw[N][K] += dy[T][N]' x[T][K] */
int tr_linear_dw(struct tr_model *m, int64_t T, int64_t N, int64_t K, const float *dy, int64_t lddy, const float *x,
		 int64_t ldx, float *dw, int64_t lddw, struct tr_error *err);

/* Layer l: reads its x1, writes its activations and x_next [T][C]. Collective over sp. */
int tr_block_fwd(struct tr_model *m, int64_t l, float *x_next, struct tr_error *err);
/* a.dx holds the gradient of x_next and becomes that of x1; gradients of the layer's weights are added. Collective. */
int tr_block_bwd(struct tr_model *m, int64_t l, struct tr_error *err);

/* Final norm, LM head and cross-entropy in token tiles. train: a.dx becomes the gradient of a.xf, weights' gradients are
 * added. a.nll is written when want_nll. */
int tr_loss(struct tr_model *m, int train, double grad_scale, int want_nll, double *loss_sum, struct tr_error *err);
/* Final norm and LM head of all tiles into host logits [T][V]. */
int tr_head_logits(struct tr_model *m, float *host, struct tr_error *err);

#endif
