/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan against a naive model: every (token, head) is tagged, laid out as sp_plan.h says on the token side, moved block by
 * block per pair of ranks, and looked up on the head side by the definition of who needs what.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "tests/unit/loop_util.h"

enum { KIND_Q, KIND_K, KIND_V };

/* One number names an element: what, which token, which head, which dimension. */
static uint64_t tag(int kind, int64_t token, int head, int dim)
{
	return (((uint64_t)kind << 60) | ((uint64_t)token << 32) | ((uint64_t)head << 12) | (uint64_t)dim) + 1;
}

static void test_split(void **state)
{
	(void)state;
	for (int64_t total = 0; total < 40; total++)
		for (int parts = 1; parts < 12; parts++) {
			int64_t at = 0, first = -1, last = 0;

			for (int i = 0; i < parts; i++) {
				int64_t b, e;

				sp_split(total, parts, i, &b, &e);
				assert_int_equal(b, at);
				assert_true(e - b == total / parts || e - b == total / parts + 1);
				if (i)
					assert_true(e - b <= last); /* longer parts first */
				first = first < 0 ? e - b : first;
				last = e - b;
				at = e;
			}
			assert_int_equal(at, total);
			assert_true(first - last <= 1);
		}
	int64_t b, e;

	sp_split(INT64_C(3) << 40, 7, 6, &b, &e);
	assert_int_equal(e, INT64_C(3) << 40);
}

static int needs(int hq, int hkv, int p, int rank, int kv)
{
	int64_t a, b;

	sp_split(hq, p, rank, &a, &b);
	for (int64_t i = a; i < b; i++)
		if (i * hkv / hq == kv)
			return 1;
	return 0;
}

static void check_runs(const struct sp_plan *pl)
{
	int replicas = 0, covered = 0;

	for (int u = 0; u < pl->nruns; u++) {
		const struct sp_run *run = &pl->runs[u];

		assert_int_equal(run->kv_begin, covered);
		assert_true(run->kv_end > run->kv_begin);
		covered = run->kv_end;
		replicas += run->dest_end - run->dest_begin;
		for (int h = run->kv_begin; h < run->kv_end; h++)
			for (int r = 0; r < pl->p; r++)
				assert_int_equal(needs(pl->hq, pl->hkv, pl->p, r, h),
						 r >= run->dest_begin && r < run->dest_end);
		if (u) /* maximal */
			assert_true(run->dest_begin != run[-1].dest_begin || run->dest_end != run[-1].dest_end);
		assert_int_equal(u >= pl->run_lo && u < pl->run_hi,
				 pl->rank >= run->dest_begin && pl->rank < run->dest_end);
	}
	assert_int_equal(covered, pl->hkv);
	assert_int_equal(replicas, pl->replicas);
	for (int i = 0; i < sp_plan_nq(pl, pl->rank); i++)
		assert_int_equal(pl->kv_of[i] + pl->kv_lo[pl->rank],
				 (int64_t)(pl->q_begin[pl->rank] + i) * pl->hkv / pl->hq);
}

/* Token-sharded buffers of one rank, filled by the header's words. */
static void fill_local(const struct sp_plan *pl, int64_t s, uint64_t *q, uint64_t *kv)
{
	int64_t b, e, t;

	sp_split(s, pl->p, pl->rank, &b, &e);
	t = e - b;
	for (int p = 0; p < pl->p; p++)
		for (int64_t i = 0; i < t; i++)
			for (int h = 0; h < sp_plan_nq(pl, p); h++)
				for (int j = 0; j < pl->d; j++)
					q[sp_plan_q_off(pl, t, p) + (i * sp_plan_nq(pl, p) + h) * pl->d + j] =
						tag(KIND_Q, b + i, pl->q_begin[p] + h, j);
	for (int u = 0; u < pl->nruns; u++) {
		int n = pl->runs[u].kv_end - pl->runs[u].kv_begin;

		for (int64_t i = 0; i < t; i++)
			for (int h = 0; h < 2 * n; h++)
				for (int j = 0; j < pl->d; j++)
					kv[sp_plan_kv_off(pl, t, u) + (i * 2 * n + h) * pl->d + j] =
						tag(h < n ? KIND_K : KIND_V, b + i, pl->runs[u].kv_begin + h % n, j);
	}
}

/* What rank `to` reads after everyone's blocks came. */
static void check_remote(struct sp_plan **pl, uint64_t **q, uint64_t **kv, int64_t s, int to)
{
	const struct sp_plan *me = pl[to];
	struct sp_plan_sizes z;
	int nq = sp_plan_nq(me, to), d = me->d;

	sp_plan_sizes(me, 0, s, &z);
	uint64_t *rq = calloc((size_t)z.q_remote, 8), *rkv = calloc((size_t)z.kv_remote, 8);

	for (int from = 0; from < me->p; from++) {
		int64_t b, e;

		sp_split(s, me->p, from, &b, &e);
		memcpy(rq + b * nq * d, q[from] + sp_plan_q_off(pl[from], e - b, to), (size_t)((e - b) * nq * d) * 8);
		for (int u = me->run_lo; u < me->run_hi; u++) {
			int64_t w = (int64_t)(me->runs[u].kv_end - me->runs[u].kv_begin) * 2 * d;

			memcpy(rkv + s * (me->runs[u].kv_begin - me->kv_lo[to]) * 2 * d + b * w,
			       kv[from] + sp_plan_kv_off(pl[from], e - b, u), (size_t)((e - b) * w) * 8);
		}
	}
	for (int64_t t = 0; t < s; t++)
		for (int h = 0; h < nq; h++)
			for (int j = 0; j < d; j++)
				assert_true(rq[(t * nq + h) * d + j] == tag(KIND_Q, t, me->q_begin[to] + h, j));
	for (int u = me->run_lo; u < me->run_hi; u++) {
		int n = me->runs[u].kv_end - me->runs[u].kv_begin;
		const uint64_t *base = rkv + s * (me->runs[u].kv_begin - me->kv_lo[to]) * 2 * d;

		for (int64_t t = 0; t < s; t++)
			for (int h = 0; h < n; h++)
				for (int j = 0; j < d; j++) {
					int head = me->runs[u].kv_begin + h;

					assert_true(base[(t * 2 * n + h) * d + j] == tag(KIND_K, t, head, j));
					assert_true(base[(t * 2 * n + n + h) * d + j] == tag(KIND_V, t, head, j));
				}
	}
	free(rq);
	free(rkv);
}

static void one_case(int hq, int hkv, int d, int p, int64_t s)
{
	struct sp_plan *pl[64];
	uint64_t *q[64], *kv[64];
	struct sp_error err;
	int64_t sent_q = 0;

	for (int r = 0; r < p; r++) {
		struct sp_plan_sizes z;
		int64_t b, e;

		assert_int_equal(sp_plan_create(hq, hkv, d, p, r, &pl[r], &err), 0);
		check_runs(pl[r]);
		sp_split(s, p, r, &b, &e);
		sp_plan_sizes(pl[r], e - b, s, &z);
		assert_int_equal(z.q_local, (e - b) * hq * d);
		assert_int_equal(z.kv_local, (e - b) * hkv * 2 * d);
		assert_int_equal(z.d_local, (e - b) * hq);
		assert_int_equal(z.d_remote * d, z.q_remote);
		sent_q += z.q_remote;
		q[r] = malloc((size_t)(z.q_local + 1) * 8);
		kv[r] = malloc((size_t)(z.kv_local + 1) * 8);
		fill_local(pl[r], s, q[r], kv[r]);
	}
	assert_int_equal(sent_q, s * hq * d); /* every q head is somebody's, once */
	for (int r = 0; r < p; r++)
		check_remote(pl, q, kv, s, r);
	for (int r = 0; r < p; r++) {
		sp_plan_destroy(pl[r]);
		free(q[r]);
		free(kv[r]);
	}
}

static void test_named_cases(void **state)
{
	static const int heads[][2] = {{4, 2}, {6, 3}, {5, 1}, {28, 7}, {28, 4}, {8, 8}, {7, 7}, {5, 3}, {40, 8}, {1, 1}};
	static const int64_t lengths[] = {1, 3, 7, 31, 32, 33};

	(void)state;
	for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++)
		for (size_t l = 0; l < sizeof(lengths) / sizeof(*lengths); l++)
			for (int p = 1; p <= heads[i][0]; p++)
				one_case(heads[i][0], heads[i][1], 2, p, lengths[l]);
}

static void test_fuzz(void **state)
{
	uint64_t seed = 20240607;

	(void)state;
	for (int i = 0; i < 1500; i++) {
		int hq = rnd_in(&seed, 1, 40), hkv = rnd_in(&seed, 1, hq), p = rnd_in(&seed, 1, hq);

		one_case(hq, hkv, rnd_in(&seed, 1, 4), p, rnd_in(&seed, 1, 60));
	}
}

/* Bytes sent, counted block by block. */
static void test_bytes(void **state)
{
	uint64_t seed = 99;

	(void)state;
	for (int i = 0; i < 300; i++) {
		int hq = rnd_in(&seed, 1, 24), hkv = rnd_in(&seed, 1, hq), p = rnd_in(&seed, 1, hq), d = rnd_in(&seed, 1, 8);
		int rank = rnd_in(&seed, 0, p - 1), es = rnd_in(&seed, 0, 1) ? 4 : 2;
		int64_t s = rnd_in(&seed, 1, 99), b, e, qkv = 0, out = 0, dqkv = 0, dout = 0;
		struct sp_plan *pl;
		struct sp_plan_bytes bytes;

		assert_int_equal(sp_plan_create(hq, hkv, d, p, rank, &pl, NULL), 0);
		for (int r = 0; r < p; r++) {
			int64_t mine;

			if (r == rank)
				continue;
			sp_split(s, p, rank, &b, &e);
			mine = e - b;
			sp_split(s, p, r, &b, &e);
			qkv += mine * sp_plan_nq(pl, r) * d * es;
			for (int h = 0; h < hkv; h++)
				qkv += needs(hq, hkv, p, r, h) ? mine * 2 * d * es : 0;
			out += (e - b) * sp_plan_nq(pl, rank) * d * es;
			dout += mine * sp_plan_nq(pl, r) * (d * es + 4);
			dqkv += (e - b) * (sp_plan_nq(pl, rank) + 2 * sp_plan_nkv(pl, rank)) * d * es;
		}
		sp_plan_bytes(pl, s, es, &bytes);
		assert_int_equal(bytes.fwd_qkv, qkv);
		assert_int_equal(bytes.fwd_out, out);
		assert_int_equal(bytes.bwd_out, dout);
		assert_int_equal(bytes.bwd_qkv, dqkv);
		sp_plan_destroy(pl);
	}
}

static void test_refusals(void **state)
{
	static const struct {
		int hq, hkv, d, p;
		const char *text;
	} bad[] = {
		{4, 2, 64, 5, "use at most --sp-size=4"}, {4, 5, 64, 1, "more than the 4 query heads"},
		{0, 1, 64, 1, "each must be 1 to"},       {4, 0, 64, 1, "each must be 1 to"},
		{4, 4, 0, 1, "head size 0"},              {4, 4, 257, 1, "must be 1 to 256"},
	};
	struct sp_plan *pl;
	struct sp_error err;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		assert_int_equal(sp_plan_create(bad[i].hq, bad[i].hkv, bad[i].d, bad[i].p, 0, &pl, &err), -1);
		assert_null(pl);
		assert_int_equal(err.code, SP_EUSAGE);
		if (!strstr(err.text, bad[i].text))
			fail_msg("\"%s\" lacks \"%s\"", err.text, bad[i].text);
		assert_int_equal(sp_plan_create(bad[i].hq, bad[i].hkv, bad[i].d, bad[i].p, 0, &pl, NULL), -1);
	}
	sp_plan_destroy(NULL);
}

/* Offsets past 2^32 elements keep all their bits. */
static void test_wide(void **state)
{
	struct sp_plan *pl;
	struct sp_plan_sizes z;
	struct sp_plan_bytes bytes;
	int64_t s = INT64_C(1) << 26;

	(void)state;
	assert_int_equal(sp_plan_create(128, 8, 128, 8, 7, &pl, NULL), 0);
	sp_plan_sizes(pl, s / 8, s, &z);
	assert_true(z.q_remote == s * 16 * 128);
	assert_true(z.kv_remote == s * 2 * 128);
	assert_true(sp_plan_q_off(pl, s / 8, 7) == s / 8 * 112 * 128);
	assert_true(sp_plan_kv_off(pl, s / 8, 7) == s / 8 * 7 * 256);
	sp_plan_bytes(pl, s, 2, &bytes);
	assert_true(bytes.fwd_out == s / 8 * 7 * 16 * 128 * 2);
	sp_plan_destroy(pl);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_split),    cmocka_unit_test(test_named_cases), cmocka_unit_test(test_fuzz),
		cmocka_unit_test(test_bytes),    cmocka_unit_test(test_refusals),    cmocka_unit_test(test_wide),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
