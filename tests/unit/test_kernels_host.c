/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the host backends as a whole: determinism, contexts side by side, big offsets, refusals, exp. */
#include "tests/unit/kernels_attn_util.h"

#include <pthread.h>
#include <sys/mman.h>

#include "kernels/cpu/vec.h"

static const struct kn_ops *P;

/* ---- the same bits ---------------------------------------------------------------------------------------- */

/* Results of every operation but gemm and attention (see test_kernels_attn.c) on sizes that several threads share. */
enum { T = 300, C = 500 };
struct results {
	float rms[T * C], rstd[T], dx[T * C], dw[C], glu[T * C], dg[T * C], du[T * C], rope[T * C], db[C], emb[T * C],
		demb[7 * C], dots[T * 5], xent[T * C], nll[T], p[T * C], m[T * C], v[T * C];
	double loss, sumsq, sumsq_big;
};

static void run_all(struct kn_ctx *c, struct results *r)
{
	float *x = tk_new(T * C, 1, 1), *y = tk_new(T * C, 1, 2), *w = tk_new(C, 1, 3), *cs = tk_new(T * 25, 1, 4);
	float *big = tk_new(5000011, 1, 5);
	uint32_t ids[T];
	int32_t lab[T];
	int64_t pos[T];
	struct kn_adamw a = {.n = T * C, .p = r->p, .m = r->m, .v = r->v, .g = y, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.9,
			     .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1, .step = 3};

	for (int t = 0; t < T; t++) {
		ids[t] = (uint32_t)(t * t % 7);
		lab[t] = t % 9 ? t : -1;
		pos[t] = T - 1 - t;
	}
	memset(r, 0, sizeof(*r));
	memcpy(r->rope, x, sizeof(r->rope));
	memcpy(r->xent, x, sizeof(r->xent));
	memcpy(r->p, x, sizeof(r->p));
	assert_int_equal(P->rmsnorm_fwd(c, KN_F32, T, C, 1e-5f, x, C, w, r->rms, C, r->rstd), 0);
	assert_int_equal(P->rmsnorm_bwd(c, KN_F32, T, C, x, C, w, r->rstd, y, C, r->dx, C, 0, r->dw), 0);
	assert_int_equal(P->swiglu_fwd(c, KN_F32, T, C, x, C, y, C, r->glu, C), 0);
	assert_int_equal(P->swiglu_bwd(c, KN_F32, T, C, x, C, y, C, y, C, r->dg, C, r->du, C), 0);
	assert_int_equal(P->rope(c, KN_F32, T, 5, 100, 50, r->rope, C, pos, cs, cs, T, 0), 0);
	assert_int_equal(P->bias_bwd(c, KN_F32, T, C, y, C, r->db), 0);
	assert_int_equal(P->embed_fwd(c, KN_F32, T, 7, C, ids, x, r->emb), 0);
	assert_int_equal(P->embed_bwd(c, KN_F32, T, 7, C, ids, y, r->demb), 0);
	assert_int_equal(P->rowdot(c, KN_F32, T, 5, 100, x, C, y, C, r->dots, 5), 0);
	assert_int_equal(P->xent(c, T, C, r->xent, C, lab, 0.5f, r->nll, &r->loss), 0);
	assert_int_equal(P->adamw(c, &a), 0);
	assert_int_equal(P->sumsq(c, T * C, x, &r->sumsq), 0);
	assert_int_equal(P->sumsq(c, 5000011, big, &r->sumsq_big), 0);
	free(x), free(y), free(w), free(cs), free(big);
}

static void same_bits(void **state)
{
	struct results *one = malloc(sizeof(*one)), *r = malloc(sizeof(*r));

	(void)state;
	for (int threads = 1; threads <= 4; threads++) {
		struct kn_ctx *c = tk_open(P, threads);

		for (int rep = 0; rep < 2; rep++) {
			run_all(c, threads == 1 && rep == 0 ? one : r);
			if (threads > 1 || rep > 0)
				assert_memory_equal(one, r, sizeof(*r));
		}
		P->close(c);
	}
	assert_true(one->loss > 0 && one->sumsq_big > 1e6);
	free(one);
	free(r);
}

/* gemm promises the same bits for the same number of threads, wherever the operands lie. */
static void gemm_same_bits(void **state)
{
	static const int64_t shape[][3] = {{64, 64, 64}, {300, 65, 700}, {17, 1000, 3000}, {1000, 16, 16}, {5, 5, 20000}};

	(void)state;
	for (int threads = 1; threads <= 3; threads++) {
		struct kn_ctx *c = tk_open(P, threads);

		for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
			int64_t m = shape[i][0], n = shape[i][1], k = shape[i][2];
			float *a = tk_new(m * k + 16, 1, 1), *b = tk_new(k * n + 16, 1, 2), *x = tk_new(m * n, 1, 3), *y = tk_new(m * n, 1, 4);
			struct kn_gemm g = {.m = m, .n = n, .k = k, .alpha = 1, .a = a, .lda = k, .b = b, .ldb = n, .c = x, .ldc = n};

			assert_int_equal(P->gemm(c, &g), 0);
			g.c = y;
			for (int rep = 0; rep < 5; rep++) {
				/* the operands one float further on: another alignment */
				memmove(a + rep + 1, a + rep, (size_t)(m * k) * sizeof(*a));
				g.a = a + rep + 1;
				assert_int_equal(P->gemm(c, &g), 0);
				assert_memory_equal(x, y, (size_t)(m * n) * sizeof(*x));
			}
			free(a), free(b), free(x), free(y);
		}
		P->close(c);
	}
}

/* ---- contexts side by side -------------------------------------------------------------------------------- */

struct rank {
	int threads, ok;
	const float *want;
};

/* One virtual rank: its own context, attention and products over and over while the others do the same. */
static void *rank_main(void *arg)
{
	struct rank *r = arg;
	struct kn_open_args args = {.threads = r->threads};
	struct kn_ctx *c = NULL;
	struct ta *x = ta_new(4, 2, 32, (const int64_t[]){150, 61, 0}, 0, 1);

	r->ok = P->open(&args, &c) == 0;
	for (int rep = 0; r->ok && rep < 10; rep++) {
		r->ok = !P->attn_fwd(c, &x->a) && !P->attn_bwd(c, &x->a);
		r->ok = r->ok && !memcmp(r->want, x->dqb, (size_t)x->nqf * sizeof(float));
	}
	P->close(c);
	ta_free(x);
	return NULL;
}

static void side_by_side(void **state)
{
	struct kn_ctx *c = tk_open(P, 1);
	struct ta *x = ta_new(4, 2, 32, (const int64_t[]){150, 61, 0}, 0, 1);
	struct rank r[4];
	pthread_t th[4];

	(void)state;
	assert_int_equal(P->attn_fwd(c, &x->a), 0);
	assert_int_equal(P->attn_bwd(c, &x->a), 0);
	for (int i = 0; i < 4; i++) {
		r[i] = (struct rank){.threads = 1 + i % 3, .want = x->dqb};
		assert_int_equal(pthread_create(&th[i], NULL, rank_main, &r[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(th[i], NULL);
		assert_true(r[i].ok);
	}
	ta_free(x);
	P->close(c);
}

/* ---- offsets past 2^32 elements: untouched pages of a sparse map cost nothing -------------------------------- */

static float *sparse(int64_t floats)
{
	void *p = mmap(NULL, (size_t)floats * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	return p;
}

static void big_offsets(void **state)
{
	const int64_t ld = 3000000007; /* two rows lie past 2^32 elements */
	struct kn_ctx *c = tk_open(P, 2);
	float *x = sparse(2 * ld + 8), *y = sparse(2 * ld + 8), *z = tk_new(24, 1, 1), w[8] = {1, 1, 1, 1, 1, 1, 1, 1}, rstd[3];

	(void)state;
	for (int r = 0; r < 3; r++)
		for (int j = 0; j < 8; j++)
			x[r * ld + j] = z[r * 8 + j];
	assert_int_equal(P->add_rows(c, KN_F32, 3, 8, x, ld, y, ld), 0);
	assert_int_equal(P->rmsnorm_fwd(c, KN_F32, 3, 8, 0, x, ld, w, y, ld, rstd), 0);
	for (int j = 0; j < 8; j++)
		assert_true(fabsf(y[2 * ld + j] - z[16 + j] * rstd[2]) < 1e-6f);
	for (int i = 0; i < 2; i++) {
		const struct kn_ops *o = i ? kn_ref() : P;
		struct kn_ctx *k = tk_open(o, 2);
		float a[3] = {1, 2, 3}, want[8];
		struct kn_gemm g = {.ta = 1, .m = 1, .n = 8, .k = 3, .alpha = 1, .a = a, .lda = 1, .b = x, .ldb = ld, .c = y + ld,
				    .ldc = 8};
		struct kn_q_head q = {.q = x, .ldq = ld, .o = y, .ldo = ld, .do_ = x, .lddo = ld, .dq = y, .lddq = ld, .dsum = a, .lddsum = 1};
		struct kn_kv_head kv = {.k = x, .v = x, .ldk = ld, .ldv = ld, .dk = y + 8, .dv = y + 16, .lddk = ld - 8, .lddv = ld - 16};
		struct kn_attn at = {.s = 3, .d = 8, .nq = 1, .nkv = 1, .scale = 1, .cu = (const int64_t[]){0, 1, 3}, .ndoc = 2, .q = &q,
				     .kv = &kv, .kv_of = (const int[]){0}, .lse = rstd};

		for (int j = 0; j < 8; j++)
			want[j] = z[j] + 2 * z[8 + j] + 3 * z[16 + j];
		assert_int_equal(o->gemm(k, &g), 0);
		tk_close("gemm", y + ld, want, 8, 1e-6);
		assert_int_equal(o->attn_fwd(k, &at), 0);
		assert_memory_equal(y, x, 8 * sizeof(float)); /* a document of one token copies v */
		assert_int_equal(o->attn_bwd(k, &at), 0);
		o->close(k);
	}
	munmap(y, (size_t)(2 * ld + 8) * 4);
	free(z);
	munmap(x, (size_t)(2 * ld + 8) * 4);
	P->close(c);
}

/* ---- exp --------------------------------------------------------------------------------------------------- */

static void exp_accuracy(void **state)
{
	static const char *isas[] = {"generic", "avx2", "avx512"};
	enum { N = 1 << 16 };
	float *x = malloc(N * 4), *y = malloc(N * 4);
	float edge[8] = {-INFINITY, -88, 89, INFINITY, NAN, 0, -0.0f, -1e30f}, out[8];

	(void)state;
	for (int i = 0; i < 3; i++) {
		const struct kn_vec *v;
		double worst = 0;

		setenv("KN_CPU_ISA", isas[i], 1);
		v = kn_vec_pick();
		if (!v)
			continue;
		assert_string_equal(v->name, isas[i]);
		for (int j = 0; j < N; j++)
			x[j] = -87.3f + (88.3f + 87.3f) * (float)j / N;
		v->exp(N, x, y);
		for (int j = 0; j < N; j++) {
			double e = exp((double)x[j]);
			float f = (float)e;

			worst = fmax(worst, fabs(y[j] - e) / (nextafterf(f, INFINITY) - f));
		}
		if (worst > 2)
			fail_msg("exp (%s) is off by %.2f ulp", isas[i], worst);
		v->exp(8, edge, out);
		assert_true(out[0] == 0 && out[1] == 0 && out[2] == INFINITY && out[3] == INFINITY && isnan(out[4]) && out[5] == 1 &&
			    out[6] == 1 && out[7] == 0);
	}
	setenv("KN_CPU_ISA", "sse9", 1);
	assert_null(kn_vec_pick());
	setenv("KN_CPU_ISA", "", 1);
	assert_non_null(kn_vec_pick());
	free(x), free(y);
}

/* ---- refusals ---------------------------------------------------------------------------------------------- */

static void refusals_of(const struct kn_ops *o)
{
	struct kn_ctx *c = tk_open(o, 1);
	float f[64] = {0};
	double s = 0;
	struct kn_gemm g = {.m = 2, .n = 2, .k = 2, .alpha = 1, .a = f, .lda = 2, .b = f, .ldb = 2, .c = f + 32, .ldc = 2};
	struct kn_gemm b;

#define BADG(field, value, text)                                                                                   \
	b = g;                                                                                                     \
	b.field = value;                                                                                           \
	tk_refused(o, c, o->gemm(c, &b), text)
	BADG(m, -1, "m, n, k = -1");
	BADG(lda, 1, "stride of A is 1");
	BADG(ldb, 1, "stride of B is 1");
	BADG(ldc, 1, "stride of C is 1");
	BADG(a, NULL, "A is NULL");
	BADG(lda, INT64_MAX / 4, "passes 2^63");
	BADG(dtype, (enum kn_dtype)7, "unknown dtype 7");
	b = g;
	b.dtype = KN_BF16;
	assert_int_equal(o->gemm(c, &b), -ENOTSUP);
	assert_non_null(strstr(o->strerror(c), "use fp32"));
	assert_int_equal(o->add(c, KN_BF16, 4, f, f), -ENOTSUP);
	tk_refused(o, c, o->add(c, KN_F32, -1, f, f), "-1");
	tk_refused(o, c, o->add_rows(c, KN_F32, 2, 4, f, 3, f, 4), "stride of x is 3");
	tk_refused(o, c, o->scale(c, 4, 1, NULL), "NULL");
	tk_refused(o, c, o->sumsq(c, 4, f, NULL), "sum");
	tk_refused(o, c, o->convert(c, 4, f, (enum kn_dtype)3, f, KN_F32), "unknown dtype");
	tk_refused(o, c, o->rmsnorm_fwd(c, KN_F32, 2, 4, 0, f, 4, NULL, f, 4, f), "w is NULL");
	tk_refused(o, c, o->rmsnorm_fwd(c, KN_F32, 2, 4, 0, f, 3, f, f, 4, f), "stride of x is 3");
	tk_refused(o, c, o->rmsnorm_bwd(c, KN_F32, 2, 4, f, 4, f, f, f, 3, f, 4, 0, f), "stride of dy is 3");
	tk_refused(o, c, o->rope(c, KN_F32, 1, 1, 4, 3, f, 4, (const int64_t[]){0}, f, f, 1, 0), "even number");
	tk_refused(o, c, o->rope(c, KN_F32, 1, 1, 4, 6, f, 4, (const int64_t[]){0}, f, f, 1, 0), "even number");
	tk_refused(o, c, o->swiglu_fwd(c, KN_F32, 2, 4, f, 4, f, 3, f, 4), "stride of u is 3");
	tk_refused(o, c, o->swiglu_bwd(c, KN_F32, 2, 4, f, 4, f, 4, f, 4, f, 4, f, 2), "stride of du is 2");
	tk_refused(o, c, o->bias_fwd(c, KN_F32, 2, 4, NULL, f, 4), "b is NULL");
	tk_refused(o, c, o->bias_bwd(c, KN_F32, -2, 4, f, 4, f), "-2 x 4");
	tk_refused(o, c, o->rowdot(c, KN_F32, 2, 2, 2, f, 4, f, 4, f, 1), "stride of out is 1");
	tk_refused(o, c, o->xent(c, 1, 0, f, 4, (const int32_t[]){0}, 1, NULL, &s), "vocabulary of 0");
	/* nothing to do is no error, NULL or not */
	g.m = 0;
	g.c = NULL;
	assert_int_equal(o->gemm(c, &g), 0);
	assert_int_equal(o->add(c, KN_F32, 0, NULL, NULL), 0);
	assert_int_equal(o->embed_fwd(c, KN_F32, 0, 0, 4, NULL, NULL, NULL), 0);
	assert_int_equal(o->rmsnorm_bwd(c, KN_F32, 0, 4, NULL, 4, f, NULL, NULL, 4, NULL, 4, 1, f), 0);
	assert_int_equal(o->xent(c, 0, 4, NULL, 4, NULL, 1, NULL, &s), 0);
	assert_int_equal(o->zero(c, NULL, 0), 0);
	assert_int_equal(o->copy(c, NULL, NULL, 0, KN_D2D), 0);
	o->close(c);
}

static void refusals(void **state)
{
	struct kn_open_args none = {.threads = 0};
	struct kn_ctx *c = NULL;

	(void)state;
	refusals_of(kn_ref());
	refusals_of(P);
	assert_int_equal(P->open(&none, &c), -EINVAL);
	assert_null(c);
	P->close(NULL);
	setenv("KN_CPU_ISA", "mmx", 1);
	none.threads = 1;
	assert_int_equal(P->open(&none, &c), -ENOTSUP);
	assert_null(c);
	setenv("KN_CPU_ISA", "", 1);
}

static void memory(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		const struct kn_ops *o = i ? P : kn_ref();
		struct kn_ctx *c = tk_open(o, 2);
		static const size_t sizes[] = {0, 1, 65, 1000003, 5000000};

		for (int j = 0; j < 5; j++) {
			unsigned char *a, *b;
			void *p, *q;

			assert_int_equal(o->alloc(c, sizes[j], &p), 0);
			assert_int_equal(o->alloc(c, sizes[j], &q), 0);
			a = p, b = q;
			assert_true((uintptr_t)p % 64 == 0);
			for (size_t n = 0; n < sizes[j]; n++)
				b[n] = (unsigned char)(n * 31 + 7);
			assert_int_equal(o->zero(c, p, sizes[j]), 0);
			for (size_t n = 0; n < sizes[j]; n += 97)
				assert_int_equal(a[n], 0);
			assert_int_equal(o->copy(c, p, q, sizes[j], KN_H2D), 0);
			assert_memory_equal(p, q, sizes[j]);
			o->free(c, p);
			o->free(c, q);
		}
		o->free(c, NULL);
		assert_int_equal(o->sync(c), 0);
		o->close(c);
	}
}

static void out_of_memory(void **state)
{
	struct kn_ctx *c = tk_open(P, 1);
	void *p;

	(void)state;
	assert_int_equal(P->alloc(c, SIZE_MAX - 5, &p), -ENOMEM);
	assert_null(p);
	assert_non_null(strstr(P->strerror(c), "no memory"));
	P->close(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_bits), cmocka_unit_test(gemm_same_bits), cmocka_unit_test(side_by_side),
		cmocka_unit_test(big_offsets), cmocka_unit_test(exp_accuracy), cmocka_unit_test(refusals),
		cmocka_unit_test(memory), cmocka_unit_test(out_of_memory),
	};

	setenv("KN_CPU_ISA", "", 1);
	P = kn_cpu();
	return cmocka_run_group_tests_name("kernels_host", tests, NULL, NULL);
}
