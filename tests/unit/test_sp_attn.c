/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ulysses attention on P virtual ranks against one rank, and one rank against a direct fp64 formula.
 *
 * Whole rows are kept canonical, q [S][Hq][d] and k, v [S][Hkv][d]; each rank cuts its own buffers out of them as sp_plan.h
 * says. A head's arithmetic does not depend on who does it, so o, lse and dq must have the same bits for any P, and so must
 * dk, dv of heads one rank needs. Heads of several ranks are summed from partial sums rounded to fp32 first: each of the
 * R <= 8 partials and sums rounds by 2^-24 relative, so 1e-6 of the largest value bounds the difference.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "tests/unit/loop_util.h"

#define WRONG(v, ...) sp_errorf(&(v)->err, SP_EINTERNAL, __VA_ARGS__)

struct row {
	int hq, hkv, d;
	int64_t s, ndoc, cu[64];
	int64_t window;
	float *q, *k, *v, *go;         /* inputs: q, go [S][Hq][d]; k, v [S][Hkv][d] */
	float *o, *lse, *dq, *dk, *dv; /* results; lse [Hq][S] */
};

static float *floats(int64_t n)
{
	return calloc((size_t)n, sizeof(float));
}

static void row_make(struct row *r, uint64_t *seed)
{
	int64_t nq = r->s * r->hq * r->d, nkv = r->s * r->hkv * r->d;

	r->ndoc = 0;
	r->cu[0] = 0;
	for (int64_t at = 0; at < r->s;) { /* documents of 1.. tokens, at most 8 */
		at = r->ndoc == 7 ? r->s : at + 1 + (int64_t)(rnd(seed) % (uint64_t)(r->s - at));
		r->cu[++r->ndoc] = at;
	}
	r->q = floats(nq), r->go = floats(nq), r->o = floats(nq), r->dq = floats(nq);
	r->k = floats(nkv), r->v = floats(nkv), r->dk = floats(nkv), r->dv = floats(nkv);
	r->lse = floats(r->s * r->hq);
	for (int64_t i = 0; i < nq; i++)
		r->q[i] = rnd_f(seed), r->go[i] = rnd_f(seed);
	for (int64_t i = 0; i < nkv; i++)
		r->k[i] = rnd_f(seed), r->v[i] = rnd_f(seed);
}

static void row_free(struct row *r)
{
	float *all[] = {r->q, r->k, r->v, r->go, r->o, r->lse, r->dq, r->dk, r->dv};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		free(all[i]);
}

/* Same inputs, results empty. */
static struct row row_twin(const struct row *r)
{
	struct row t = *r;
	int64_t nq = r->s * r->hq * r->d, nkv = r->s * r->hkv * r->d;

	t.o = floats(nq), t.dq = floats(nq), t.dk = floats(nkv), t.dv = floats(nkv), t.lse = floats(r->s * r->hq);
	return t;
}

static void row_free_results(struct row *t)
{
	free(t->o);
	free(t->lse);
	free(t->dq);
	free(t->dk);
	free(t->dv);
}

/* Moves this rank's tokens between a whole [S][Hq][d] tensor and a local Q buffer. */
static void cut_q(const struct sp_plan *pl, int64_t first, int64_t t, float *whole, float *local, int out)
{
	for (int p = 0; p < pl->p; p++)
		for (int64_t i = 0; i < t; i++) {
			int64_t n = (int64_t)sp_plan_nq(pl, p) * pl->d;
			float *a = whole + ((first + i) * pl->hq + pl->q_begin[p]) * pl->d;
			float *b = local + sp_plan_q_off(pl, t, p) + i * n;

			memcpy(out ? a : b, out ? b : a, (size_t)n * sizeof(float));
		}
}

static void cut_kv(const struct sp_plan *pl, int64_t first, int64_t t, float *k, float *v, float *local, int out)
{
	for (int u = 0; u < pl->nruns; u++)
		for (int64_t i = 0; i < t; i++) {
			int64_t n = (int64_t)(pl->runs[u].kv_end - pl->runs[u].kv_begin) * pl->d;
			int64_t col = ((first + i) * pl->hkv + pl->runs[u].kv_begin) * pl->d;
			float *b = local + sp_plan_kv_off(pl, t, u) + i * 2 * n;

			memcpy(out ? k + col : b, out ? b : k + col, (size_t)n * sizeof(float));
			memcpy(out ? v + col : b + n, out ? b + n : v + col, (size_t)n * sizeof(float));
		}
}

struct local {
	float *q, *kv, *o, *go, *dq, *dkv;
	struct sp_attn_save save;
};

static void local_make(const struct sp_attn *a, struct row *r, int64_t first, int64_t t, struct local *l)
{
	const struct sp_plan *pl = sp_attn_plan(a);
	struct sp_plan_sizes z;
	int64_t nq, nkv, nlse;

	sp_plan_sizes(pl, t, r->s, &z);
	l->q = floats(z.q_local), l->o = floats(z.q_local), l->go = floats(z.q_local), l->dq = floats(z.q_local);
	l->kv = floats(z.kv_local), l->dkv = floats(z.kv_local);
	sp_attn_save_sizes(a, r->s, &nq, &nkv, &nlse);
	l->save = (struct sp_attn_save){nq ? floats(nq) : NULL, nkv ? floats(nkv) : NULL, floats(nlse)};
	for (int64_t i = 0; i < z.q_local; i++)
		l->o[i] = l->dq[i] = NAN; /* every element must be written */
	for (int64_t i = 0; i < z.kv_local; i++)
		l->dkv[i] = NAN;
	cut_q(pl, first, t, r->q, l->q, 0);
	cut_q(pl, first, t, r->go, l->go, 0);
	cut_kv(pl, first, t, r->k, r->v, l->kv, 0);
}

static void local_free(struct local *l)
{
	float *all[] = {l->q, l->kv, l->o, l->go, l->dq, l->dkv, l->save.q, l->save.kv, l->save.lse};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		free(all[i]);
}

static int run_once(struct vrank *v, struct sp_attn *a, struct row *r)
{
	struct sp_comm *c = sp_mesh_comm(v->mesh, SP_GROUP_SP);
	const struct sp_plan *pl = sp_attn_plan(a);
	int64_t first, end, t;
	struct local l;
	int rc = -1;

	sp_split(r->s, sp_comm_size(c), sp_comm_rank(c), &first, &end);
	t = end - first;
	if (sp_attn_set_row(a, r->s, r->cu, r->ndoc, &v->err))
		return -1;
	local_make(a, r, first, t, &l);
	if (sp_attn_fwd(a, l.q, l.kv, l.o, &l.save, &v->err) ||
	    sp_attn_bwd(a, l.q, l.kv, l.o, l.go, &l.save, l.dq, l.dkv, &v->err))
		goto out;
	cut_q(pl, first, t, r->o, l.o, 1);
	cut_q(pl, first, t, r->dq, l.dq, 1);
	cut_kv(pl, first, t, r->dk, r->dv, l.dkv, 1);
	memcpy(r->lse + r->s * pl->q_begin[pl->rank], l.save.lse,
	       (size_t)(r->s * sp_plan_nq(pl, pl->rank)) * sizeof(float));
	rc = 0;
out:
	local_free(&l);
	return rc;
}

static int attn_fn(struct vrank *v)
{
	struct row *r = v->arg; /* ranks write disjoint parts of its results */
	struct sp_attn_opts o = {r->hq, r->hkv, r->d, 1.0f / sqrtf((float)r->d), r->window, KN_F32};
	struct row shorter = *r;
	struct sp_attn *a;
	int rc;

	if (sp_attn_create(sp_mesh_comm(v->mesh, SP_GROUP_SP), v->ops, v->ctx, &o, &a, &v->err))
		return -1;
	/* A shorter row first, so that scratch must grow; its results are written over. */
	shorter.s = shorter.cu[1] = r->cu[1];
	shorter.ndoc = 1;
	rc = run_once(v, a, &shorter) || sp_comm_barrier(sp_mesh_comm(v->mesh, SP_GROUP_SP), &v->err) ||
	     run_once(v, a, r);
	sp_attn_destroy(a);
	return rc ? -1 : 0;
}

static void run_row(struct row *r, int p)
{
	struct sp_boot_opts o = {.sizes = {.sp = p, .cp = 1, .dp_shard = 1, .dp_replicate = 1}, .timeout_s = 120};
	struct sp_error err = {.text = ""};

	if (run_loop(&o, p, 1, kn_ref(), attn_fn, r, &err))
		fail_msg("%d/%d heads, %d ranks, %lld tokens: %s", r->hq, r->hkv, p, (long long)r->s, err.text);
}

static void check_bits(const char *what, const struct row *r, int p, const float *got, const float *want, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (memcmp(&got[i], &want[i], sizeof(float)))
			fail_msg("%d/%d heads, %d ranks, %lld tokens: %s[%lld] is %.9g not %.9g", r->hq, r->hkv, p,
				 (long long)r->s, what, (long long)i, (double)got[i], (double)want[i]);
}

static void check_near(const char *what, const struct row *r, int p, const float *got, const float *want, int64_t n)
{
	float big = 1;

	for (int64_t i = 0; i < n; i++)
		big = fmaxf(big, fabsf(want[i]));
	for (int64_t i = 0; i < n; i++)
		if (!(fabsf(got[i] - want[i]) <= 1e-6f * big))
			fail_msg("%d/%d heads, %d ranks, %lld tokens: %s[%lld] is %.9g not %.9g", r->hq, r->hkv, p,
				 (long long)r->s, what, (long long)i, (double)got[i], (double)want[i]);
}

static void compare(const struct row *one, int p)
{
	struct row many = row_twin(one);
	int64_t nq = one->s * one->hq * one->d, nkv = one->s * one->hkv * one->d;
	struct sp_plan *pl;
	int shared;

	run_row(&many, p);
	assert_int_equal(sp_plan_create(one->hq, one->hkv, one->d, p, 0, &pl, NULL), 0);
	shared = pl->replicas > pl->nruns;
	sp_plan_destroy(pl);
	check_bits("o", one, p, many.o, one->o, nq);
	check_bits("lse", one, p, many.lse, one->lse, one->s * one->hq);
	check_bits("dq", one, p, many.dq, one->dq, nq);
	(shared ? check_near : check_bits)("dk", one, p, many.dk, one->dk, nkv);
	(shared ? check_near : check_bits)("dv", one, p, many.dv, one->dv, nkv);
	row_free_results(&many);
}

static void test_any_ranks(void **state)
{
	static const int heads[][2] = {{4, 2}, {6, 3}, {5, 1}, {28, 7}, {8, 8}};
	static const int64_t lengths[] = {1, 3, 7, 255, 256, 257};
	static const int ranks[] = {2, 3, 4, 8};
	uint64_t seed = 4242;

	(void)state;
	for (size_t h = 0; h < sizeof(heads) / sizeof(*heads); h++)
		for (size_t l = 0; l < sizeof(lengths) / sizeof(*lengths); l++) {
			struct row r = {.hq = heads[h][0], .hkv = heads[h][1], .d = 4, .s = lengths[l]};

			row_make(&r, &seed);
			run_row(&r, 1);
			for (size_t p = 0; p < sizeof(ranks) / sizeof(*ranks); p++)
				if (ranks[p] <= r.hq)
					compare(&r, ranks[p]);
			if (r.hq < 8)
				compare(&r, r.hq); /* one head a rank */
			row_free(&r);
		}
}

/* Random everything, windows included. */
static void test_fuzz(void **state)
{
	uint64_t seed = 777;

	(void)state;
	for (int i = 0; i < 60; i++) {
		struct row r = {.hq = rnd_in(&seed, 1, 12), .d = rnd_in(&seed, 1, 9), .s = rnd_in(&seed, 1, 40)};

		r.hkv = rnd_in(&seed, 1, r.hq);
		r.window = rnd_in(&seed, 0, 1) ? rnd_in(&seed, 1, 12) : 0;
		row_make(&r, &seed);
		run_row(&r, 1);
		compare(&r, rnd_in(&seed, 1, r.hq));
		row_free(&r);
	}
}

/* The kv head of q head i and the documents, by definition: fp64 against fp32 storage, so 1e-5. */
static void test_formula(void **state)
{
	struct row r = {.hq = 5, .hkv = 3, .d = 8, .s = 37};
	uint64_t seed = 31;

	(void)state;
	row_make(&r, &seed);
	run_row(&r, 2);
	for (int64_t doc = 0; doc < r.ndoc; doc++)
		for (int64_t t = r.cu[doc]; t < r.cu[doc + 1]; t++)
			for (int h = 0; h < r.hq; h++) {
				int kv = h * r.hkv / r.hq;
				double sum = 0, o[8] = {0};

				for (int64_t j = r.cu[doc]; j <= t; j++) {
					double dot = 0, e;

					for (int x = 0; x < r.d; x++)
						dot += (double)r.q[(t * r.hq + h) * r.d + x] *
						       (double)r.k[(j * r.hkv + kv) * r.d + x];
					e = exp(dot / sqrt(8.0));
					sum += e;
					for (int x = 0; x < r.d; x++)
						o[x] += e * (double)r.v[(j * r.hkv + kv) * r.d + x];
				}
				for (int x = 0; x < r.d; x++)
					assert_true(fabs(o[x] / sum - (double)r.o[(t * r.hq + h) * r.d + x]) < 1e-5);
				assert_true(fabs(log(sum) - (double)r.lse[h * r.s + t]) < 1e-5);
			}
	row_free(&r);
}

/* A document's output does not change when its neighbours do: bit for bit. */
static void test_isolation(void **state)
{
	struct row r = {.hq = 4, .hkv = 2, .d = 4, .s = 50}, other;
	uint64_t seed = 8;

	(void)state;
	row_make(&r, &seed);
	r.ndoc = 3;
	r.cu[1] = 11, r.cu[2] = 30, r.cu[3] = 50;
	run_row(&r, 3);
	other = row_twin(&r);
	for (int64_t i = 0; i < 11 * r.hkv * r.d; i++)
		r.k[i] = r.v[i] = 3;
	for (int64_t i = 30 * r.hkv * r.d; i < 50 * r.hkv * r.d; i++)
		r.k[i] = r.v[i] = -3;
	run_row(&other, 3); /* shares the inputs just changed */
	check_bits("o", &r, 3, other.o + 11 * r.hq * r.d, r.o + 11 * r.hq * r.d, (int64_t)19 * r.hq * r.d);
	check_bits("dq", &r, 3, other.dq + 11 * r.hq * r.d, r.dq + 11 * r.hq * r.d, (int64_t)19 * r.hq * r.d);
	assert_memory_not_equal(other.o, r.o, (size_t)(11 * r.hq * r.d) * sizeof(float));
	row_free_results(&other);
	row_free(&r);
}

static int refuse_fn(struct vrank *v)
{
	struct sp_comm *c = sp_mesh_comm(v->mesh, SP_GROUP_SP);
	struct sp_attn_opts o = {2, 1, 4, 0.5f, 0, KN_F32};
	int64_t bad1[] = {0, 5, 5, 9}, bad2[] = {0, 4}, bad3[] = {1, 9};
	struct sp_attn *a;
	int rc = -1;

	if (!sp_attn_create(c, v->ops, v->ctx, &o, &a, &v->err))
		return WRONG(v, "3 ranks with 2 heads passed");
	if (v->err.code != SP_EUSAGE || !strstr(v->err.text, "use at most --sp-size=2"))
		return -1;
	o.hq = 3;
	if (sp_attn_create(c, v->ops, v->ctx, &o, &a, &v->err))
		return -1;
	if (!sp_attn_fwd(a, NULL, NULL, NULL, NULL, &v->err) || !sp_attn_set_row(a, 9, bad1, 3, &v->err) ||
	    !sp_attn_set_row(a, 9, bad2, 1, &v->err) || !sp_attn_set_row(a, 9, bad3, 1, &v->err) ||
	    !sp_attn_set_row(a, 0, bad2, 0, &v->err))
		WRONG(v, "a bad row passed");
	else
		rc = 0;
	sp_attn_destroy(a);
	return rc;
}

static void test_refusals(void **state)
{
	struct sp_boot_opts o = {.sizes = {.sp = 3}, .timeout_s = 60};
	struct sp_error err;

	(void)state;
	assert_int_equal(run_loop(&o, 3, 1, kn_ref(), refuse_fn, NULL, &err), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_ranks), cmocka_unit_test(test_fuzz),     cmocka_unit_test(test_formula),
		cmocka_unit_test(test_isolation), cmocka_unit_test(test_refusals),
	};

	unsetenv(SP_ENV_SP_SIZE);
	unsetenv(SP_ENV_CP_SIZE);
	unsetenv(SP_ENV_DP_SHARD);
	unsetenv(SP_ENV_DP_REPLICATE);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
