/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle's backward functions against central finite differences of its forward functions. Forward results are
 * fp32 and of order 1, so with step h = 2^-7 a five-point quotient (error h^4/30, 1e-10) is off by about eps / h =
 * 1.5e-5 from rounding. Allowed: 2e-4 of the largest derivative or of 0.1, far below any wrong term.
 */
#include "tests/unit/kernels_attn_util.h"

#define TOL 2e-4

static const struct kn_ops *R;
static struct kn_ctx *c;

typedef double (*loss_fn)(void *arg);

/* df/dx[i], five points */
static double slope(loss_fn f, void *arg, float *x)
{
	const float h = 1.0f / 128, x0 = *x;
	double d[4];

	for (int i = 0; i < 4; i++) {
		*x = x0 + h * (float)(i < 2 ? i - 2 : i - 1);
		d[i] = f(arg);
	}
	*x = x0;
	return (d[0] - 8 * d[1] + 8 * d[2] - d[3]) / (12 * h);
}

/* Every step'th of n inputs x with the analytic gradient g (g has the layout of x). */
static void check(const char *what, loss_fn f, void *arg, float *x, const float *g, int64_t n, int64_t step)
{
	double big = 0.1;

	for (int64_t i = 0; i < n; i++)
		big = fmax(big, fabs((double)g[i]));
	for (int64_t i = 0; i < n; i += step) {
		double s = slope(f, arg, x + i);

		if (!(fabs(s - g[i]) <= TOL * big))
			fail_msg("%s: d/dx[%lld] = %.8g, finite difference %.8g", what, (long long)i, (double)g[i], s);
	}
}

static double weigh(const float *y, const float *w, int64_t n)
{
	double s = 0;

	for (int64_t i = 0; i < n; i++)
		s += (double)y[i] * w[i];
	return s;
}

struct norm {
	int64_t rows, C;
	float *x, *w, *y, *rstd, *gy;
};

static double norm_loss(void *arg)
{
	struct norm *n = arg;

	assert_int_equal(R->rmsnorm_fwd(c, KN_F32, n->rows, n->C, 1e-3f, n->x, n->C, n->w, n->y, n->C, n->rstd), 0);
	return weigh(n->y, n->gy, n->rows * n->C);
}

static void rmsnorm(void **state)
{
	int64_t n = 3 * 7;
	struct norm a = {3, 7, tk_new(n, 2, 1), tk_new(7, 1, 2), tk_new(n, 1, 3), tk_new(3, 1, 4), tk_new(n, 1, 5)};
	float *dx = tk_new(n, 1, 6), *dw = tk_new(7, 0, 7);

	(void)state;
	norm_loss(&a);
	assert_int_equal(R->rmsnorm_bwd(c, KN_F32, 3, 7, a.x, 7, a.w, a.rstd, a.gy, 7, dx, 7, 0, dw), 0);
	check("rmsnorm dx", norm_loss, &a, a.x, dx, n, 1);
	check("rmsnorm dw", norm_loss, &a, a.w, dw, 7, 1);
	free(a.x), free(a.w), free(a.y), free(a.rstd), free(a.gy), free(dx), free(dw);
}

struct glu {
	int64_t n;
	float *g, *u, *y, *gy;
};

static double glu_loss(void *arg)
{
	struct glu *a = arg;

	assert_int_equal(R->swiglu_fwd(c, KN_F32, 1, a->n, a->g, a->n, a->u, a->n, a->y, a->n), 0);
	return weigh(a->y, a->gy, a->n);
}

static void swiglu(void **state)
{
	int64_t n = 40;
	struct glu a = {n, tk_new(n, 4, 1), tk_new(n, 1, 2), tk_new(n, 1, 3), tk_new(n, 1, 4)};
	float *dg = tk_new(n, 1, 5), *du = tk_new(n, 1, 6);

	(void)state;
	assert_int_equal(R->swiglu_bwd(c, KN_F32, 1, n, a.g, n, a.u, n, a.gy, n, dg, n, du, n), 0);
	check("swiglu dg", glu_loss, &a, a.g, dg, n, 1);
	check("swiglu du", glu_loss, &a, a.u, du, n, 1);
	free(a.g), free(a.u), free(a.y), free(a.gy), free(dg), free(du);
}

struct rot {
	int64_t T, n;
	float *x, *y, *co, *si, *gy;
	int64_t pos[4];
};

static double rot_loss(void *arg)
{
	struct rot *a = arg;

	memcpy(a->y, a->x, (size_t)a->n * sizeof(float));
	assert_int_equal(R->rope(c, KN_F32, a->T, 2, 6, 4, a->y, 12, a->pos, a->co, a->si, 8, 0), 0);
	return weigh(a->y, a->gy, a->n);
}

static void rope(void **state)
{
	int64_t n = 4 * 12;
	struct rot a = {4, n, tk_new(n, 1, 1), tk_new(n, 1, 2), tk_new(16, 1, 3), tk_new(16, 1, 4), tk_new(n, 1, 5), {0, 3, 7, 1}};
	float *dx;

	(void)state;
	/* any cos, sin: the transpose is the gradient whether or not they lie on a circle */
	dx = tk_copy(a.gy, n);
	assert_int_equal(R->rope(c, KN_F32, a.T, 2, 6, 4, dx, 12, a.pos, a.co, a.si, 8, 1), 0);
	check("rope dx", rot_loss, &a, a.x, dx, n, 1);
	free(a.x), free(a.y), free(a.co), free(a.si), free(a.gy), free(dx);
}

/* Dimension i turns with i + rd/2 by the position's angle, the rest stays. */
static void rope_pairs(void **state)
{
	float x[6] = {1, 2, 3, 4, 5, 6}, co[4] = {1, 1, 0, 1}, si[4] = {0, 0, 1, 0};
	const float want[6] = {-3, 2, 1, 4, 5, 6};
	int64_t pos = 1;

	(void)state;
	assert_int_equal(R->rope(c, KN_F32, 1, 1, 6, 4, x, 6, &pos, co, si, 2, 0), 0);
	assert_memory_equal(x, want, sizeof(x));
}

struct ce {
	int64_t T, V;
	float *x, *tmp;
	int32_t lab[4];
};

static double ce_loss(void *arg)
{
	struct ce *a = arg;
	double s = 0;

	memcpy(a->tmp, a->x, (size_t)(a->T * a->V) * sizeof(float));
	assert_int_equal(R->xent(c, a->T, a->V, a->tmp, a->V, a->lab, 0, NULL, &s), 0);
	return s;
}

static void xent(void **state)
{
	int64_t n = 4 * 9;
	struct ce a = {4, 9, tk_new(n, 3, 1), tk_new(n, 1, 2), {0, 8, -1, 3}};
	float *g = tk_copy(a.x, n);
	double s = 0;

	(void)state;
	assert_int_equal(R->xent(c, 4, 9, g, 9, a.lab, 1, NULL, &s), 0);
	check("xent", ce_loss, &a, a.x, g, n, 1);
	for (int j = 0; j < 9; j++)
		assert_true(g[2 * 9 + j] == 0);
	free(a.x), free(a.tmp), free(g);
}

struct mm {
	struct kn_gemm g;
	float *gy;
};

static double mm_loss(void *arg)
{
	struct mm *a = arg;

	assert_int_equal(R->gemm(c, &a->g), 0);
	return weigh(a->g.c, a->gy, a->g.m * a->g.n);
}

/* dA = dC B^T, dB = A^T dC, written with gemm's own transposes. */
static void gemm(void **state)
{
	enum { M = 5, N = 4, K = 6 };
	float *x = tk_new(M * K, 1, 1), *w = tk_new(K * N, 1, 2), *y = tk_new(M * N, 1, 3), *dx = tk_new(M * K, 1, 4),
	      *dw = tk_new(K * N, 0, 5);
	struct mm a = {{.m = M, .n = N, .k = K, .alpha = 1, .a = x, .lda = K, .b = w, .ldb = N, .c = y, .ldc = N},
		       tk_new(M * N, 1, 6)};
	struct kn_gemm gx = {.tb = 1, .m = M, .n = K, .k = N, .alpha = 1, .a = a.gy, .lda = N, .b = w, .ldb = N, .c = dx, .ldc = K};
	struct kn_gemm gw = {.ta = 1, .m = K, .n = N, .k = M, .alpha = 1, .beta = 1, .a = x, .lda = K, .b = a.gy, .ldb = N,
			     .c = dw, .ldc = N};

	(void)state;
	assert_int_equal(R->gemm(c, &gx), 0);
	assert_int_equal(R->gemm(c, &gw), 0);
	check("gemm dA", mm_loss, &a, x, dx, M * K, 1);
	check("gemm dB", mm_loss, &a, w, dw, K * N, 1);
	free(x), free(w), free(y), free(dx), free(dw), free(a.gy);
}

static double attn_loss(void *arg)
{
	struct ta *x = arg;
	double s = 0;

	assert_int_equal(R->attn_fwd(c, &x->a), 0);
	for (int64_t t = 0; t < x->a.s; t++)
		s += weigh(x->ob + t * x->ldq, x->gob + t * x->ldq, x->a.nq * x->a.d);
	return s;
}

/* Gradients copied into the layout of the inputs; the gaps of the rows belong to nobody and are skipped. */
static void attn_case(int nq, int nkv, int d, const int64_t *len, int64_t window)
{
	struct ta *x = ta_new(nq, nkv, d, len, window, 1);

	ta_run(R, c, x);
	for (int64_t t = 0; t < x->a.s; t++) {
		check("dq", attn_loss, x, x->qb + t * x->ldq, x->dqb + t * x->ldq, nq * d, 3);
		check("dk", attn_loss, x, x->kb + t * x->ldkv, x->dkb + t * x->ldkv, nkv * d, 2);
		check("dv", attn_loss, x, x->vb + t * x->ldkv, x->dvb + t * x->ldkv, nkv * d, 2);
	}
	ta_free(x);
}

static void attn(void **state)
{
	(void)state;
	attn_case(2, 1, 3, (const int64_t[]){9, 0}, 0);
	attn_case(4, 2, 4, (const int64_t[]){3, 1, 6, 0}, 0);
	attn_case(3, 3, 2, (const int64_t[]){11, 2, 0}, 4);
	attn_case(5, 2, 2, (const int64_t[]){1, 5, 0}, 1);
}

/* One head, by hand: the first token copies its v, the second mixes by softmax, the third document token is alone. */
static void attn_by_hand(void **state)
{
	float q[3] = {1, 2, 1}, k[3] = {1, -1, 5}, v[3] = {10, 20, 7}, o[3], lse[3];
	struct kn_q_head qh = {.q = q, .ldq = 1, .o = o, .ldo = 1};
	struct kn_kv_head kv = {.k = k, .v = v, .ldk = 1, .ldv = 1};
	struct kn_attn a = {.s = 3, .d = 1, .nq = 1, .nkv = 1, .scale = 0.5f, .cu = (const int64_t[]){0, 2, 3}, .ndoc = 2,
			    .q = &qh, .kv = &kv, .kv_of = (const int[]){0}, .lse = lse};
	double p = exp(1) / (exp(1) + exp(-1)); /* scores of token 1: 0.5 * 2 * (1, -1) */

	(void)state;
	assert_int_equal(R->attn_fwd(c, &a), 0);
	assert_true(o[0] == 10 && o[2] == 7);
	assert_true(fabs(o[1] - (10 * p + 20 * (1 - p))) < 1e-5);
	assert_true(fabs(lse[0] - 0.5) < 1e-6 && fabs(lse[1] - log(exp(1) + exp(-1))) < 1e-6 && fabs(lse[2] - 2.5) < 1e-6);
	a.window = 1;
	assert_int_equal(R->attn_fwd(c, &a), 0);
	assert_true(o[1] == 20);
}

struct emb {
	float *w, *y, *gy;
	uint32_t ids[5];
};

static double emb_loss(void *arg)
{
	struct emb *a = arg;

	assert_int_equal(R->embed_fwd(c, KN_F32, 5, 4, 3, a->ids, a->w, a->y), 0);
	return weigh(a->y, a->gy, 15);
}

static double bias_loss(void *arg)
{
	struct emb *a = arg;

	memset(a->y, 0, 15 * sizeof(float));
	assert_int_equal(R->bias_fwd(c, KN_F32, 5, 3, a->w, a->y, 3), 0);
	return weigh(a->y, a->gy, 15);
}

static void embed_and_bias(void **state)
{
	struct emb a = {tk_new(12, 1, 1), tk_new(15, 1, 2), tk_new(15, 1, 3), {3, 0, 3, 2, 3}};
	float dw[12] = {0}, db[3] = {0};

	(void)state;
	assert_int_equal(R->embed_bwd(c, KN_F32, 5, 4, 3, a.ids, a.gy, dw), 0);
	check("embed", emb_loss, &a, a.w, dw, 12, 1);
	assert_int_equal(R->bias_bwd(c, KN_F32, 5, 3, a.gy, 3, db), 0);
	check("bias", bias_loss, &a, a.w, db, 3, 1);
	free(a.w), free(a.y), free(a.gy);
}

/* Three steps of AdamW as the paper writes it (algorithm 2), in fp64. */
static void adamw(void **state)
{
	static const float grad[3][2] = {{0.5f, -2.0f}, {0.25f, 1.0f}, {-1.0f, 3.0f}};
	float p[2] = {1, -1}, m[2] = {0}, v[2] = {0}, g[2];
	double ep[2] = {1, -1}, em[2] = {0}, ev[2] = {0};
	struct kn_adamw a = {.n = 2, .p = p, .m = m, .v = v, .g = g, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8,
			     .weight_decay = 0.01, .grad_scale = 2};

	(void)state;
	for (a.step = 1; a.step <= 3; a.step++) {
		for (int i = 0; i < 2; i++) {
			g[i] = grad[a.step - 1][i] / 2;
			ep[i] *= 1 - 0.1 * 0.01;
			em[i] = 0.9 * em[i] + 0.1 * grad[a.step - 1][i];
			ev[i] = 0.99 * ev[i] + 0.01 * grad[a.step - 1][i] * grad[a.step - 1][i];
			ep[i] -= 0.1 * (em[i] / (1 - pow(0.9, (double)a.step))) /
				 (sqrt(ev[i] / (1 - pow(0.99, (double)a.step))) + 1e-8);
		}
		assert_int_equal(R->adamw(c, &a), 0);
	}
	for (int i = 0; i < 2; i++) {
		assert_true(fabs(p[i] - ep[i]) < 1e-6);
		assert_true(fabs(m[i] - em[i]) < 1e-6);
		assert_true(fabs(v[i] - ev[i]) < 1e-6);
	}
	/* the first step moves every parameter by lr against its sign, whatever its gradient */
	assert_true(p[0] < 1 && p[1] > -1);
}

static int setup(void **state)
{
	(void)state;
	R = kn_ref();
	c = tk_open(R, 1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	R->close(c);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rmsnorm),	  cmocka_unit_test(swiglu),	    cmocka_unit_test(rope),
		cmocka_unit_test(rope_pairs),	  cmocka_unit_test(xent),	    cmocka_unit_test(gemm),
		cmocka_unit_test(attn),		  cmocka_unit_test(attn_by_hand), cmocka_unit_test(embed_and_bias),
		cmocka_unit_test(adamw),
	};

	return cmocka_run_group_tests_name("kernels_ref", tests, setup, teardown);
}
