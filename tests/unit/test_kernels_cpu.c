/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cpu backend against the oracle, operation by operation, over ragged shapes and every instruction set this
 * processor has; results that must not depend on the number of threads are compared bit for bit.
 * Tolerances are relative to the largest value of a result. fp32 element-wise work is a few roundings: 1e-6.
 * Sums of n terms in fp32 lanes err by about sqrt(n) roundings: 3e-6 for the n <= 5000 used here.
 */
#include "tests/unit/kernels_util.h"

#define ELEM 1e-6
#define SUM  3e-6

static const struct kn_ops *R, *P;
static struct kn_ctx *rc_, *pc;

static const int64_t rows_[] = {1, 3, 17, 255, 257};
static const int64_t cols_[] = {1, 5, 16, 64, 80, 96, 129, 1000};
#define N(a) (int64_t)(sizeof(a) / sizeof((a)[0]))
#define EACH_SHAPE(T, C)                                                                                           \
	for (int64_t i_ = 0, T; i_ < N(rows_) && (T = rows_[i_], 1); i_++)                                         \
		for (int64_t j_ = 0, C; j_ < N(cols_) && (C = cols_[j_], 1); j_++)

/* Rows of stride ld: the gap between rows must stay as it was. Element count of a [T][C] view with stride ld. */
static int64_t span(int64_t T, int64_t C, int64_t ld) { return (T - 1) * ld + C; }

static void gemm_cases(void **state)
{
	static const int64_t dim[] = {1, 2, 7, 16, 33, 64, 130};

	(void)state;
	for (int ta = 0; ta < 2; ta++)
		for (int tb = 0; tb < 2; tb++)
			for (int i = 0; i < 7 * 7 * 7; i++) {
				int64_t m = dim[i % 7], n = dim[i / 7 % 7], k = i % 5 == 4 ? 0 : dim[i / 49];
				float beta = (float)(i % 3), *x, *y;
				struct kn_gemm g = {.ta = ta, .tb = tb, .m = m, .n = n, .k = k, .alpha = 0.5f, .beta = beta};
				float *a = tk_new((m + 3) * (k + 3), 1, 1), *b = tk_new((k + 3) * (n + 3), 1, 2);

				g.a = a;
				g.b = b;
				g.lda = (ta ? m : k) + 3;
				g.ldb = (tb ? k : n) + 3;
				g.ldc = n + 1;
				x = tk_new(m * g.ldc, 1, 3);
				y = tk_copy(x, m * g.ldc);
				if (beta == 0) /* must not be read */
					for (int64_t r = 0; r < m; r++)
						for (int64_t q = 0; q < n; q++)
							x[r * g.ldc + q] = NAN;
				g.c = x;
				assert_int_equal(P->gemm(pc, &g), 0);
				g.c = y;
				assert_int_equal(R->gemm(rc_, &g), 0);
				tk_close("gemm", x, y, m * g.ldc, SUM);
				free(a);
				free(b);
				free(x);
				free(y);
			}
}

static void elementwise(void **state)
{
	(void)state;
	EACH_SHAPE(T, C)
	{
		int64_t ldx = C + 2, ldy = C + 1, n = span(T, C, ldy);
		float *x = tk_new(span(T, C, ldx), 2, 4), *y = tk_new(n, 2, 5), *z = tk_copy(y, n), *b = tk_new(C, 1, 6);
		float *db = tk_new(C, 1, 7), *eb = tk_copy(db, C);
		double s, t;

		assert_int_equal(P->add_rows(pc, KN_F32, T, C, x, ldx, y, ldy), 0);
		assert_int_equal(R->add_rows(rc_, KN_F32, T, C, x, ldx, z, ldy), 0);
		assert_int_equal(P->bias_fwd(pc, KN_F32, T, C, b, y, ldy), 0);
		assert_int_equal(R->bias_fwd(rc_, KN_F32, T, C, b, z, ldy), 0);
		assert_int_equal(P->scale(pc, n, -1.5f, y), 0);
		assert_int_equal(R->scale(rc_, n, -1.5f, z), 0);
		assert_memory_equal(y, z, (size_t)n * sizeof(*y));
		assert_int_equal(P->bias_bwd(pc, KN_F32, T, C, y, ldy, db), 0);
		assert_int_equal(R->bias_bwd(rc_, KN_F32, T, C, y, ldy, eb), 0);
		tk_close("bias_bwd", db, eb, C, SUM);
		assert_int_equal(P->add(pc, KN_F32, n, z, y), 0);
		assert_int_equal(R->add(rc_, KN_F32, n, z, z), 0);
		assert_memory_equal(y, z, (size_t)n * sizeof(*y));
		assert_int_equal(P->sumsq(pc, n, y, &s), 0);
		assert_int_equal(R->sumsq(rc_, n, y, &t), 0);
		assert_true(fabs(s - t) <= 1e-12 * t); /* sqrt(n) fp64 roundings, n < 3e5 */
		free(x);
		free(y);
		free(z);
		free(b);
		free(db);
		free(eb);
	}
}

static void embedding(void **state)
{
	const int64_t V = 37;

	(void)state;
	EACH_SHAPE(T, C)
	{
		uint32_t *ids = malloc((size_t)T * sizeof(*ids));
		float *w = tk_new(V * C, 1, 1), *w2 = tk_copy(w, V * C), *y = tk_new(T * C, 1, 2), *z = tk_new(T * C, 1, 3);

		for (int64_t t = 0; t < T; t++)
			ids[t] = (uint32_t)((t * 7 + t / 5) % V);
		assert_int_equal(P->embed_fwd(pc, KN_F32, T, V, C, ids, w, y), 0);
		assert_int_equal(R->embed_fwd(rc_, KN_F32, T, V, C, ids, w, z), 0);
		assert_memory_equal(y, z, (size_t)(T * C) * sizeof(*y));
		assert_int_equal(P->embed_bwd(pc, KN_F32, T, V, C, ids, y, w), 0);
		assert_int_equal(R->embed_bwd(rc_, KN_F32, T, V, C, ids, y, w2), 0);
		assert_memory_equal(w, w2, (size_t)(V * C) * sizeof(*w)); /* token order is promised */
		ids[T - 1] = (uint32_t)V;
		tk_refused(P, pc, P->embed_fwd(pc, KN_F32, T, V, C, ids, w, y), "id 37");
		tk_refused(R, rc_, R->embed_bwd(rc_, KN_F32, T, V, C, ids, y, w), "id 37");
		free(ids);
		free(w);
		free(w2);
		free(y);
		free(z);
	}
}

static void rmsnorm(void **state)
{
	(void)state;
	EACH_SHAPE(T, C)
	{
		int64_t ldx = C + 2, ldy = C + 3, n = span(T, C, ldy);
		float *x = tk_new(span(T, C, ldx), 2, 1), *w = tk_new(C, 1, 2), *y = tk_new(n, 1, 3), *z = tk_copy(y, n);
		float *rs = tk_new(T, 1, 4), *rs2 = tk_new(T, 1, 5), *dy = tk_new(n, 1, 6);
		float *dw = tk_new(C, 1, 7), *dw2 = tk_copy(dw, C);
		double big = 1;

		assert_int_equal(P->rmsnorm_fwd(pc, KN_F32, T, C, 1e-5f, x, ldx, w, y, ldy, rs), 0);
		assert_int_equal(R->rmsnorm_fwd(rc_, KN_F32, T, C, 1e-5f, x, ldx, w, z, ldy, rs2), 0);
		tk_close("rmsnorm", y, z, n, SUM);
		tk_close("rstd", rs, rs2, T, SUM);
		for (int64_t t = 0; t < T; t++)
			big = fmax(big, rs2[t]);
		for (int acc = 0; acc < 2; acc++) {
			if (!acc) /* must not be read */
				for (int64_t t = 0; t < T; t++)
					y[t * ldy] = NAN;
			assert_int_equal(P->rmsnorm_bwd(pc, KN_F32, T, C, x, ldx, w, rs2, dy, ldy, y, ldy, acc, dw), 0);
			assert_int_equal(R->rmsnorm_bwd(rc_, KN_F32, T, C, x, ldx, w, rs2, dy, ldy, z, ldy, acc, dw2), 0);
			/* the two terms of dx, each about w dy rstd, may cancel (with C = 1 they do): their size counts */
			tk_close_("rmsnorm dx", y, z, n, SUM, big, __FILE__, __LINE__);
			tk_close("rmsnorm dw", dw, dw2, C, SUM);
		}
		free(x);
		free(w);
		free(y);
		free(z);
		free(rs);
		free(rs2);
		free(dy);
		free(dw);
		free(dw2);
	}
}

static void rope(void **state)
{
	static const int64_t hd[][3] = {{1, 2, 2}, {3, 5, 4}, {2, 64, 64}, {4, 80, 32}, {5, 6, 0}, {1, 128, 128}};
	const int64_t max = 300;

	(void)state;
	for (int64_t s = 0; s < N(hd); s++)
		for (int64_t r = 0; r < N(rows_); r++) {
			int64_t T = rows_[r], h = hd[s][0], d = hd[s][1], rd = hd[s][2], ld = h * d + 3, n = span(T, h * d, ld);
			float *x = tk_new(n, 1, 1), *y = tk_copy(x, n), *x0 = tk_copy(x, n);
			float *co = tk_new(max * rd / 2, 1, 2), *si = tk_new(max * rd / 2, 1, 3);
			int64_t *pos = malloc((size_t)T * sizeof(*pos));

			for (int64_t i = 0; i < max * rd / 2; i++)
				si[i] = sinf(co[i] * 9), co[i] = cosf(co[i] * 9);
			for (int64_t t = 0; t < T; t++)
				pos[t] = (t * 31 + 5) % max;
			assert_int_equal(P->rope(pc, KN_F32, T, h, d, rd, x, ld, pos, co, si, max, 0), 0);
			assert_int_equal(R->rope(rc_, KN_F32, T, h, d, rd, y, ld, pos, co, si, max, 0), 0);
			tk_close("rope", x, y, n, ELEM);
			assert_int_equal(P->rope(pc, KN_F32, T, h, d, rd, x, ld, pos, co, si, max, 1), 0);
			tk_close("rope back", x, x0, n, ELEM);
			pos[T / 2] = max;
			tk_refused(P, pc, P->rope(pc, KN_F32, T, h, d, rd, x, ld, pos, co, si, max, 0), "position 300");
			pos[T / 2] = -1;
			tk_refused(R, rc_, R->rope(rc_, KN_F32, T, h, d, rd, x, ld, pos, co, si, max, 0), "position -1");
			free(x);
			free(y);
			free(x0);
			free(co);
			free(si);
			free(pos);
		}
}

static void swiglu(void **state)
{
	(void)state;
	EACH_SHAPE(T, F)
	{
		int64_t ld = F + 2, n = span(T, F, ld);
		float *g = tk_new(n, 12, 1), *u = tk_new(n, 1, 2), *y = tk_new(n, 1, 3), *z = tk_copy(y, n);
		float *dy = tk_new(n, 1, 4), *dg = tk_new(n, 1, 5), *du = tk_new(n, 1, 6), *dg2 = tk_copy(dg, n),
		      *du2 = tk_copy(du, n);

		g[0] = T % 2 ? 200.0f : -200.0f; /* far tails: finite and exact */
		assert_int_equal(P->swiglu_fwd(pc, KN_F32, T, F, g, ld, u, ld, y, ld), 0);
		assert_int_equal(R->swiglu_fwd(rc_, KN_F32, T, F, g, ld, u, ld, z, ld), 0);
		tk_close("swiglu", y, z, n, ELEM);
		assert_int_equal(P->swiglu_bwd(pc, KN_F32, T, F, g, ld, u, ld, dy, ld, dg, ld, du, ld), 0);
		assert_int_equal(R->swiglu_bwd(rc_, KN_F32, T, F, g, ld, u, ld, dy, ld, dg2, ld, du2, ld), 0);
		tk_close("swiglu dg", dg, dg2, n, ELEM);
		tk_close("swiglu du", du, du2, n, ELEM);
		/* in place */
		assert_int_equal(P->swiglu_bwd(pc, KN_F32, T, F, g, ld, u, ld, dy, ld, g, ld, u, ld), 0);
		for (int64_t t = 0; t < T; t++) {
			assert_memory_equal(g + t * ld, dg + t * ld, (size_t)F * sizeof(*g));
			assert_memory_equal(u + t * ld, du + t * ld, (size_t)F * sizeof(*u));
		}
		free(g);
		free(u);
		free(y);
		free(z);
		free(dy);
		free(dg);
		free(du);
		free(dg2);
		free(du2);
	}
}

static void rowdot(void **state)
{
	(void)state;
	EACH_SHAPE(T, d)
	{
		const int64_t h = 3;
		int64_t ld = h * d + 1, n = span(T, h * d, ld);
		float *x = tk_new(n, 1, 1), *y = tk_new(n, 1, 2), *o = tk_new(T * 5, 1, 3), *p = tk_copy(o, T * 5);

		assert_int_equal(P->rowdot(pc, KN_F32, T, h, d, x, ld, y, ld, o, 5), 0);
		assert_int_equal(R->rowdot(rc_, KN_F32, T, h, d, x, ld, y, ld, p, 5), 0);
		tk_close("rowdot", o, p, T * 5, SUM);
		free(x);
		free(y);
		free(o);
		free(p);
	}
}

static void xent(void **state)
{
	(void)state;
	EACH_SHAPE(T, V)
	{
		int64_t ld = V + 3, n = span(T, V, ld);
		float *x = tk_new(n, 20, 1), *y = tk_copy(x, n), *x0 = tk_copy(x, n), *a = tk_new(T, 1, 2), *b = tk_new(T, 1, 3);
		int32_t *lab = malloc((size_t)T * sizeof(*lab));
		double l = 1, m = 1;

		for (int64_t t = 0; t < T; t++)
			lab[t] = t % 4 == 1 ? -100 : (int32_t)((t * 13) % V);
		if (V > 2)
			x[0] = y[0] = x0[0] = -INFINITY; /* an excluded class */
		if (V > 2 && T > 0 && lab[0] == 0)
			lab[0] = 1;
		assert_int_equal(P->xent(pc, T, V, x, ld, lab, 0, a, &l), 0); /* evaluation: logits stay */
		assert_memory_equal(x, x0, (size_t)n * sizeof(*x));
		assert_int_equal(R->xent(rc_, T, V, y, ld, lab, 0, b, &m), 0);
		assert_true(fabs(l - m) <= 1e-6 * (fabs(m) + 1));
		assert_int_equal(P->xent(pc, T, V, x, ld, lab, 0.25f, NULL, &l), 0);
		assert_int_equal(R->xent(rc_, T, V, y, ld, lab, 0.25f, NULL, &m), 0);
		assert_true(fabs(l - m) <= 1e-6 * (fabs(m) + 1));
		tk_close("xent gradient", x, y, n, ELEM);
		tk_close_("nll", a, b, T, ELEM, 1, __FILE__, __LINE__);
		lab[T - 1] = (int32_t)V;
		tk_refused(P, pc, P->xent(pc, T, V, x, ld, lab, 1, NULL, &l), "label");
		tk_refused(R, rc_, R->xent(rc_, T, V, x, ld, lab, 1, NULL, &l), "label");
		free(x);
		free(y);
		free(x0);
		free(a);
		free(b);
		free(lab);
	}
}

static void adamw(void **state)
{
	(void)state;
	for (int64_t i = 0; i < N(cols_); i++) {
		int64_t n = cols_[i] * 37;
		float *p = tk_new(n, 1, 1), *m = tk_new(n, 0, 2), *v = tk_new(n, 0, 3), *g = tk_new(n, 1, 4);
		float *p2 = tk_copy(p, n), *m2 = tk_copy(m, n), *v2 = tk_copy(v, n);
		uint16_t *h = malloc((size_t)n * 2);
		struct kn_adamw a = {.n = n, .p = p, .m = m, .v = v, .g = g, .p_copy = h, .copy_dtype = KN_BF16, .lr = 1e-2,
				     .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 0.5};
		struct kn_adamw b = a;
		float *back = tk_new(n, 1, 5);

		b.p = p2, b.m = m2, b.v = v2, b.p_copy = NULL;
		for (a.step = b.step = 1; a.step <= 10; a.step++, b.step++) {
			assert_int_equal(P->adamw(pc, &a), 0);
			assert_int_equal(R->adamw(rc_, &b), 0);
			for (int64_t j = 0; j < n; j++)
				g[j] = g[j] * 0.7f + 0.01f;
		}
		tk_close("adamw p", p, p2, n, 2 * ELEM);
		tk_close("adamw m", m, m2, n, 2 * ELEM);
		tk_close("adamw v", v, v2, n, 2 * ELEM);
		assert_int_equal(P->convert(pc, n, h, KN_BF16, back, KN_F32), 0);
		tk_close("bf16 copy", back, p, n, 1.0 / 256);
		a.step = 0;
		tk_refused(P, pc, P->adamw(pc, &a), "step 0");
		free(p);
		free(m);
		free(v);
		free(g);
		free(p2);
		free(m2);
		free(v2);
		free(h);
		free(back);
	}
}

static void convert(void **state)
{
	/* ties to even both ways, carry into the exponent, overflow to inf, subnormal, NaN with only low bits */
	static const uint32_t in[] = {0x3f800000, 0x3f808000, 0x3f818000, 0x3f80ffff, 0x3fffffff, 0x7f7fffff, 0x80000001,
				      0x00018000, 0x7f800000, 0xff800000, 0x7f800001, 0xffc00000, 0x80000000};
	static const uint16_t out[] = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x4000, 0x7f80, 0x8000,
				       0x0002, 0x7f80, 0xff80, 0x7fc0, 0xffc0, 0x8000};
	uint16_t h[N(in)];
	uint32_t back[N(in)];

	(void)state;
	for (int i = 0; i < 2; i++) {
		const struct kn_ops *o = i ? P : R;
		struct kn_ctx *c = i ? pc : rc_;

		assert_int_equal(o->convert(c, N(in), in, KN_F32, h, KN_BF16), 0);
		assert_memory_equal(h, out, sizeof(out));
		assert_int_equal(o->convert(c, N(in), out, KN_BF16, back, KN_F32), 0);
		for (int j = 0; j < N(in); j++)
			assert_int_equal(back[j], (uint32_t)out[j] << 16);
	}
}

static int setup(void **state)
{
	setenv("KN_CPU_ISA", *state ? (const char *)*state : "", 1);
	R = kn_ref();
	P = kn_cpu();
	rc_ = tk_open(R, 1);
	pc = tk_open(P, 2);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	R->close(rc_);
	P->close(pc);
	return 0;
}

int main(void)
{
	static const char *isas[] = {"generic", "avx2", "avx512"};
	int failed = 0;

	for (int i = 0; i < 3; i++) {
		char name[32];
		void *isa = (void *)isas[i];
		struct kn_ctx *c = NULL;
#define T_(f) {#f, f, setup, teardown, isa}
		const struct CMUnitTest tests[] = {T_(gemm_cases), T_(elementwise), T_(embedding), T_(rmsnorm), T_(rope),
						   T_(swiglu), T_(rowdot), T_(xent), T_(adamw), T_(convert)};

		setenv("KN_CPU_ISA", isas[i], 1);
		if (kn_cpu()->open(&(struct kn_open_args){.threads = 1}, &c)) {
			print_message("# no %s on this processor\n", isas[i]);
			continue;
		}
		kn_cpu()->close(c);
		snprintf(name, sizeof(name), "kernels_cpu_%s", isas[i]);
		failed += _cmocka_run_group_tests(name, tests, sizeof(tests) / sizeof(tests[0]), NULL, NULL);
	}
	return failed;
}
