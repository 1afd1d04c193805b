/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of the cpu backend against the oracle (fp64 sums), forward and backward, for every instruction set.
 * Tolerances relative to the largest value of each tensor, or 1 where that is less (one-token documents have
 * gradients that cancel to 0): scores of +-3 are fp32 sums of up to 256 terms, off by some 1e-7 to 1e-6, and so
 * are probabilities, relatively; outputs are convex combinations of values: 2e-6; gradients go through two: 4e-6.
 */
#include "tests/unit/kernels_attn_util.h"

#define FWD			 2e-6
#define BWD			 4e-6
#define near_(what, x, y, n, tol) tk_close_(what, x, y, n, tol, 1, __FILE__, __LINE__)

static const struct kn_ops *R, *P;
static struct kn_ctx *rc_, *pc;

static void compare(int nq, int nkv, int d, const int64_t *len, int64_t window)
{
	struct ta *x = ta_new(nq, nkv, d, len, window, 1.5f), *y = ta_new(nq, nkv, d, len, window, 1.5f);
	char what[128];

	snprintf(what, sizeof(what), "heads %d/%d d %d, S %lld in %lld documents, window %lld", nq, nkv, d,
		 (long long)x->a.s, (long long)x->a.ndoc, (long long)window);
	ta_run(R, rc_, y);
	ta_run(P, pc, x);
	near_(what, x->a.lse, y->a.lse, y->a.s * nq, FWD);
	near_(what, x->ob, y->ob, y->nqf, FWD);
	near_(what, x->dqb, y->dqb, y->nqf, BWD);
	near_(what, x->dkb, y->dkb, y->nkvf, BWD);
	near_(what, x->dvb, y->dvb, y->nkvf, BWD);
	/* gaps between rows stay untouched: both started with the same numbers */
	for (int64_t t = 0; t + 1 < y->a.s; t++)
		for (int j = 0; j < TA_GAP; j++) {
			assert_true(x->ob[t * x->ldq + nq * d + j] == y->ob[t * y->ldq + nq * d + j]);
			assert_true(x->dqb[t * x->ldq + nq * d + j] == y->dqb[t * y->ldq + nq * d + j]);
			assert_true(x->dkb[t * x->ldkv + nkv * d + j] == y->dkb[t * y->ldkv + nkv * d + j]);
		}
	ta_free(x);
	ta_free(y);
}

static void head_sizes(void **state)
{
	static const int dims[] = {1, 5, 16, 24, 64, 80, 96, 128, 200, 256};
	static const int64_t lens[][4] = {{1}, {3}, {17}, {64}, {65}, {130}, {1, 1, 2}, {63, 1, 70}};

	(void)state;
	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
		for (size_t j = 0; j < sizeof(lens) / sizeof(lens[0]); j++)
			compare(2, 1, dims[i], (const int64_t[]){lens[j][0], lens[j][1], lens[j][2], 0}, 0);
}

static void head_groups(void **state)
{
	static const int heads[][2] = {{4, 2}, {5, 1}, {6, 3}, {1, 1}, {3, 2}, {16, 1}, {5, 5}, {10, 1}};

	(void)state;
	for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
		compare(heads[i][0], heads[i][1], 16, (const int64_t[]){257, 0}, 0);
		compare(heads[i][0], heads[i][1], 8, (const int64_t[]){255, 1, 40, 3, 0}, 0);
	}
}

static void windows(void **state)
{
	static const int64_t w[] = {1, 2, 17, 63, 64, 65, 127, 128, 129, 191, 192, 193, 256, 257, 1000, INT64_MAX};

	(void)state;
	for (size_t i = 0; i < sizeof(w) / sizeof(w[0]); i++) {
		compare(2, 1, 16, (const int64_t[]){257, 0}, w[i]);
		compare(4, 2, 16, (const int64_t[]){1, 255, 193, 5, 64, 0}, w[i]);
		compare(3, 1, 130, (const int64_t[]){193, 0}, w[i]); /* the smaller query tile of d > 128 */
	}
}

/* A token one past a document's end must not be looked at, NaN there must not spread. */
static void documents_are_apart(void **state)
{
	struct ta *x = ta_new(4, 2, 32, (const int64_t[]){70, 1, 90, 0}, 0, 1);

	(void)state;
	for (int64_t t = 70; t < 71; t++)
		for (int j = 0; j < 64; j++)
			x->kb[t * x->ldkv + j] = x->vb[t * x->ldkv + j] = NAN;
	ta_run(P, pc, x);
	for (int64_t t = 0; t < x->a.s; t++)
		for (int j = 0; j < 128; j++) {
			assert_int_equal(!!isnan(x->ob[t * x->ldq + j]), t == 70);
			assert_int_equal(!!isnan(x->dqb[t * x->ldq + j]), t == 70);
			if (j < 64)
				assert_int_equal(!!isnan(x->dkb[t * x->ldkv + j]), t == 70);
		}
	ta_free(x);
}

/* A token after t must not change rows up to t, bit for bit; scores of hundreds do not overflow. */
static void causal_and_large(void **state)
{
	struct ta *x = ta_new(2, 1, 64, (const int64_t[]){200, 0}, 0, 40), *y = ta_new(2, 1, 64, (const int64_t[]){200, 0}, 0, 40);

	(void)state;
	for (int j = 0; j < 64; j++)
		y->kb[150 * y->ldkv + j] = 1e4f;
	ta_run(P, pc, x);
	ta_run(P, pc, y);
	for (int64_t t = 0; t < 200; t++)
		for (int j = 0; j < 128; j++)
			assert_true(isfinite(x->ob[t * x->ldq + j]) && isfinite(x->dqb[t * x->ldq + j]) &&
				    isfinite(y->ob[t * y->ldq + j]) && isfinite(y->dqb[t * y->ldq + j]));
	assert_memory_equal(x->ob, y->ob, (size_t)(150 * x->ldq) * sizeof(float));
	assert_memory_not_equal(x->ob, y->ob, (size_t)x->nqf * sizeof(float));
	ta_free(x);
	ta_free(y);
}

/* scale negative and zero are allowed; a kv head nobody queries gets zero gradients. */
static void odd_calls(void **state)
{
	for (int k = 0; k < 3; k++) {
		struct ta *x = ta_new(2, 3, 16, (const int64_t[]){100, 0}, 0, 1), *y = ta_new(2, 3, 16, (const int64_t[]){100, 0}, 0, 1);

		x->a.scale = y->a.scale = k == 0 ? -0.3f : k == 1 ? 0.0f : 0.5f;
		x->kv_of[0] = y->kv_of[0] = 0;
		x->kv_of[1] = y->kv_of[1] = 2;
		ta_run(P, pc, x);
		ta_run(R, rc_, y);
		near_("odd o", x->ob, y->ob, x->nqf, FWD);
		near_("odd dq", x->dqb, y->dqb, x->nqf, BWD);
		near_("odd dk", x->dkb, y->dkb, x->nkvf, BWD);
		near_("odd dv", x->dvb, y->dvb, x->nkvf, BWD);
		for (int j = 0; j < 16; j++)
			assert_true(x->dkb[7 * x->ldkv + 16 + j] == 0 && x->dvb[7 * x->ldkv + 16 + j] == 0);
		ta_free(x);
		ta_free(y);
	}
	(void)state;
}

static int polls;
static void count_poll(void *arg)
{
	assert_ptr_equal(arg, &polls);
	polls++;
}

/* The same bits twice and for any number of threads; poll is called. */
static void same_bits(void **state)
{
	const int64_t len[] = {300, 20, 129, 0};
	struct ta *x = ta_new(5, 2, 40, len, 0, 2);

	(void)state;
	ta_run(P, pc, x);
	for (int threads = 1; threads <= 5; threads++) {
		struct kn_ctx *c = tk_open(P, threads);

		for (int rep = 0; rep < 4; rep++) {
			struct ta *y = ta_new(5, 2, 40, len, 0, 2);

			polls = 0;
			y->a.poll = count_poll;
			y->a.poll_arg = &polls;
			ta_run(P, c, y);
			if (threads == 1)
				assert_true(polls > 10);
			assert_memory_equal(x->ob, y->ob, (size_t)x->nqf * 4);
			assert_memory_equal(x->a.lse, y->a.lse, (size_t)(x->a.s * 5) * 4);
			assert_memory_equal(x->dqb, y->dqb, (size_t)x->nqf * 4);
			assert_memory_equal(x->dkb, y->dkb, (size_t)x->nkvf * 4);
			assert_memory_equal(x->dvb, y->dvb, (size_t)x->nkvf * 4);
			ta_free(y);
		}
		P->close(c);
	}
	ta_free(x);
}

static void refusals(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		const struct kn_ops *o = i ? P : R;
		struct kn_ctx *c = i ? pc : rc_;
		struct ta *x = ta_new(4, 2, 16, (const int64_t[]){10, 5, 0}, 0, 1);
		struct kn_attn a = x->a;

#define BAD(field, value, text)                                                                                    \
	a = x->a;                                                                                                  \
	a.field = value;                                                                                           \
	tk_refused(o, c, o->attn_fwd(c, &a), text);                                                                \
	tk_refused(o, c, o->attn_bwd(c, &a), text)
		BAD(d, 0, "head size 0");
		BAD(d, 257, "head size 257");
		BAD(s, -1, "-1 tokens");
		BAD(s, 14, "documents end at 15");
		BAD(window, -1, "window -1");
		BAD(scale, NAN, "scale");
		BAD(nkv, 1, "kv_of[2] = 1");
		BAD(lse, NULL, "lse is NULL");
		BAD(cu, NULL, "cu must hold");
		x->cu[1] = 0;
		BAD(window, 0, "rise strictly");
		x->cu[1] = 10;
		x->q[1].ldq = 15;
		BAD(window, 0, "stride of q is 15");
		x->q[1].ldq = x->ldq;
		x->kv[1].lddk = 3;
		tk_refused(o, c, o->attn_bwd(c, &x->a), "stride of dk");
		a = x->a;
		a.dtype = KN_BF16;
		assert_int_equal(o->attn_fwd(c, &a), -ENOTSUP);
		/* no tokens, no heads: nothing to do */
		a = (struct kn_attn){.d = 8, .scale = 1, .cu = (const int64_t[]){0}};
		assert_int_equal(o->attn_fwd(c, &a), 0);
		assert_int_equal(o->attn_bwd(c, &a), 0);
		ta_free(x);
	}
}

static int setup(void **state)
{
	setenv("KN_CPU_ISA", (const char *)*state, 1);
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
		const struct CMUnitTest tests[] = {T_(head_sizes), T_(head_groups), T_(windows), T_(documents_are_apart),
						   T_(causal_and_large), T_(odd_calls), T_(same_bits), T_(refusals)};

		setenv("KN_CPU_ISA", isas[i], 1);
		if (kn_cpu()->open(&(struct kn_open_args){.threads = 1}, &c)) {
			print_message("# no %s on this processor\n", isas[i]);
			continue;
		}
		kn_cpu()->close(c);
		snprintf(name, sizeof(name), "kernels_attn_%s", isas[i]);
		failed += _cmocka_run_group_tests(name, tests, sizeof(tests) / sizeof(tests[0]), NULL, NULL);
	}
	return failed;
}
