/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include "libsp/sp_plan.h"

#define MAX_HEADS 65536 /* keeps heads * 2 * d inside an int; lengths are multiplied in 64 bits */
#define MAX_D 256

/* One allocation: the public struct first, its arrays behind it. */
struct plan_mem {
	struct sp_plan pub;
	struct sp_run *runs;
	int *ints;
};

void sp_split(int64_t total, int parts, int index, int64_t *begin, int64_t *end)
{
	int64_t base = total / parts, longer = total % parts;

	*begin = base * index + (index < longer ? index : longer);
	*end = *begin + base + (index < longer);
}

static int check(int hq, int hkv, int d, int p, int rank, struct sp_error *err)
{
	if (hq < 1 || hkv < 1 || hq > MAX_HEADS || hkv > MAX_HEADS)
		return sp_errorf(err, SP_EUSAGE, "%d query and %d key/value heads: each must be 1 to %d", hq, hkv,
				 MAX_HEADS);
	if (hkv > hq)
		return sp_errorf(err, SP_EUSAGE, "%d key/value heads are more than the %d query heads", hkv, hq);
	if (d < 1 || d > MAX_D)
		return sp_errorf(err, SP_EUSAGE, "head size %d: must be 1 to %d", d, MAX_D);
	if (p < 1 || rank < 0 || rank >= p)
		return sp_errorf(err, SP_EINTERNAL, "rank %d of %d ranks", rank, p);
	if (p > hq)
		return sp_errorf(err, SP_EUSAGE,
				 "sp size %d is more than the %d query heads: every rank needs at least one; use at most "
				 "--sp-size=%d",
				 p, hq, hq);
	return 0;
}

/* kv heads of every rank from its q heads: head i of Hq attends with kv head floor(i * Hkv / Hq). */
static void deal_heads(int hq, int hkv, int p, int *q_begin, int *kv_lo, int *kv_hi)
{
	q_begin[0] = 0;
	for (int r = 0; r < p; r++) {
		int64_t a, b;

		sp_split(hq, p, r, &a, &b);
		q_begin[r + 1] = (int)b;
		kv_lo[r] = (int)(a * hkv / hq);
		kv_hi[r] = (int)((b - 1) * hkv / hq) + 1;
	}
}

/* kv_lo and kv_hi rise with the rank and hkv <= hq leaves no head out, so the ranks that need head h are contiguous
 * and never none. Returns the number of runs. */
static int make_runs(int hkv, int p, const int *kv_lo, const int *kv_hi, struct sp_run *runs)
{
	int n = 0, begin = 0, end = 0;

	for (int h = 0; h < hkv; h++) {
		while (kv_hi[begin] <= h)
			begin++;
		while (end < p && kv_lo[end] <= h)
			end++;
		if (n && runs[n - 1].dest_begin == begin && runs[n - 1].dest_end == end)
			runs[n - 1].kv_end = h + 1;
		else
			runs[n++] = (struct sp_run){h, h + 1, begin, end};
	}
	return n;
}

int sp_plan_create(int hq, int hkv, int d, int p, int rank, struct sp_plan **out, struct sp_error *err)
{
	struct plan_mem *m;
	int *q_begin, *kv_lo, *kv_hi, *kv_of;
	int64_t a, b;

	*out = NULL;
	if (check(hq, hkv, d, p, rank, err))
		return -1;
	sp_split(hq, p, rank, &a, &b);
	m = calloc(1, sizeof(*m));
	if (m) {
		m->runs = calloc((size_t)hkv, sizeof(*m->runs));
		m->ints = calloc((size_t)(3 * (int64_t)p + 1 + (b - a)), sizeof(int));
	}
	if (!m || !m->runs || !m->ints) {
		sp_plan_destroy(m ? &m->pub : NULL);
		return sp_errorf(err, SP_ENOMEM, "no memory for the plan of %d heads on %d ranks", hq, p);
	}
	q_begin = m->ints;
	kv_lo = q_begin + p + 1;
	kv_hi = kv_lo + p;
	kv_of = kv_hi + p;
	deal_heads(hq, hkv, p, q_begin, kv_lo, kv_hi);
	for (int64_t i = a; i < b; i++)
		kv_of[i - a] = (int)(i * hkv / hq) - kv_lo[rank];

	struct sp_plan *pl = &m->pub;

	*pl = (struct sp_plan){.p = p, .rank = rank, .hq = hq, .hkv = hkv, .d = d, .q_begin = q_begin,
			       .kv_lo = kv_lo, .kv_hi = kv_hi, .runs = m->runs, .kv_of = kv_of};
	pl->nruns = make_runs(hkv, p, kv_lo, kv_hi, m->runs);
	pl->run_lo = pl->nruns;
	for (int u = 0; u < pl->nruns; u++) {
		const struct sp_run *run = &pl->runs[u];

		pl->replicas += run->dest_end - run->dest_begin;
		if (rank >= run->dest_begin && rank < run->dest_end) {
			pl->run_lo = u < pl->run_lo ? u : pl->run_lo;
			pl->run_hi = u + 1;
		}
	}
	*out = pl;
	return 0;
}

void sp_plan_destroy(struct sp_plan *plan)
{
	struct plan_mem *m = (struct plan_mem *)plan; /* pub is its first member */

	if (!m)
		return;
	free(m->runs);
	free(m->ints);
	free(m);
}

void sp_plan_sizes(const struct sp_plan *pl, int64_t t, int64_t s, struct sp_plan_sizes *out)
{
	int64_t nq = sp_plan_nq(pl, pl->rank), nkv = sp_plan_nkv(pl, pl->rank), replicas = 0;

	for (int u = 0; u < pl->nruns; u++)
		replicas += (int64_t)(pl->runs[u].kv_end - pl->runs[u].kv_begin) *
			    (pl->runs[u].dest_end - pl->runs[u].dest_begin);
	*out = (struct sp_plan_sizes){
		.q_local = t * pl->hq * pl->d,
		.kv_local = t * pl->hkv * 2 * pl->d,
		.d_local = t * pl->hq,
		.dkv_recv = t * replicas * 2 * pl->d,
		.q_remote = s * nq * pl->d,
		.kv_remote = s * nkv * 2 * pl->d,
		.d_remote = s * nq,
	};
}

void sp_plan_bytes(const struct sp_plan *pl, int64_t s, int elem_size, struct sp_plan_bytes *out)
{
	int64_t nq = sp_plan_nq(pl, pl->rank), nkv = sp_plan_nkv(pl, pl->rank), begin, end, t, sent_kv = 0;

	sp_split(s, pl->p, pl->rank, &begin, &end);
	t = end - begin;
	for (int r = 0; r < pl->p; r++) /* a head needed by several ranks is sent to each of them */
		sent_kv += r == pl->rank ? 0 : sp_plan_nkv(pl, r);
	*out = (struct sp_plan_bytes){
		.fwd_qkv = t * ((pl->hq - nq) + 2 * sent_kv) * pl->d * elem_size,
		.fwd_out = (s - t) * nq * pl->d * elem_size,
		.bwd_out = t * (pl->hq - nq) * ((int64_t)pl->d * elem_size + (int64_t)sizeof(float)),
		.bwd_qkv = (s - t) * (nq + 2 * nkv) * pl->d * elem_size,
	};
}
