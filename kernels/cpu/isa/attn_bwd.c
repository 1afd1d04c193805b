/* SPDX-License-Identifier: Apache-2.0 */
/* One backward job (attn.h): one key tile against every query tile that sees it. */
#include "kernels/cpu/isa/attn_tiles.h"
#include "kernels/cpu/isa/tile.h"

#include <sched.h>

struct bwd {
	const struct kn_attn *a;
	const struct attn_job *j;
	int64_t bk, dp;      /* keys of the job; d padded to vectors */
	float *kt, *vt, *k;  /* panels of k^T, v^T [d][bk] and k [bk][d] */
	float *dk, *dv;      /* [bk][dp] */
	float *q, *go, *dq;  /* panels of q, do [nq][d]; dq [nq][dp] */
	float *p, *ds;       /* [nq][BK] */
};

/* Rows of p hold scores, rows of ds do v^T: make them P = exp(scale s - lse) and dS = scale P (dP - D), 0 outside
 * the keys [lo, hi) the query sees. */
static void row_grad(const struct bwd *b, float *p, float *ds, float lse, float dsum, int64_t lo, int64_t hi)
{
	int64_t width = tile_seen(hi, (b->bk + W - 1) / W * W);
	float scale = b->a->scale;

	for (int64_t c = 0; c < width; c += W) {
		vf x = vexp(vld(p + c) * scale - lse);

		vst(p + c, x);
		vst(ds + c, x * (vld(ds + c) - dsum) * scale);
	}
	for (int64_t c = 0; c < lo && c < width; c++)
		p[c] = ds[c] = 0;
	for (int64_t c = hi > 0 ? hi : 0; c < width; c++)
		p[c] = ds[c] = 0;
}

/* Scores and do v^T of queries [q0, q0 + nq); on the diagonal only of keys some query of MR rows sees. */
static void tile_scores(const struct bwd *b, const struct kn_q_head *qh, int64_t q0, int64_t nq)
{
	const float *q = (const float *)qh->q + q0 * qh->ldq, *go = (const float *)qh->do_ + q0 * qh->lddo;
	int64_t d = b->a->d, first = q0 - b->j->lo + 1, step = first >= b->bk ? nq : MR;

	for (int64_t i = 0; i < nq; i += step) {
		int64_t mr = nq - i < step ? nq - i : step, n = first + i + mr - 1;

		n = n < 0 ? 0 : n < b->bk ? n : b->bk;
		tile_nn(mr, n, d, q + i * qh->ldq, qh->ldq, b->kt, d * NR, b->p + i * ATTN_BK, ATTN_BK, 0);
		tile_nn(mr, n, d, go + i * qh->lddo, qh->lddo, b->vt, d * NR, b->ds + i * ATTN_BK, ATTN_BK, 0);
	}
}

/* dq = dS k, dv += P^T do, dk += dS^T q with what is 0 on the diagonal left out. */
static void tile_grads(const struct bwd *b, int64_t q0, int64_t nq)
{
	int64_t d = b->a->d, first = q0 - b->j->lo + 1, step = first >= b->bk ? nq : MR;

	for (int64_t i = 0; i < nq; i += step) {
		int64_t mr = nq - i < step ? nq - i : step, n = first + i + mr - 1;

		n = n < 0 ? 0 : n < b->bk ? n : b->bk;
		tile_nn(mr, d, n, b->ds + i * ATTN_BK, ATTN_BK, b->k, b->bk * NR, b->dq + i * b->dp, b->dp, 0);
	}
	step = first >= b->bk ? b->bk : MR;
	for (int64_t i = 0; i < b->bk; i += step) {
		int64_t mr = b->bk - i < step ? b->bk - i : step, from = step == MR ? i - first + 1 : 0;
		const float *p = b->p + i, *ds = b->ds + i;

		from = from < 0 ? 0 : from; /* first query that sees key i */
		if (from >= nq)
			break;
		tile_tn(mr, d, nq - from, p + from * ATTN_BK, ATTN_BK, b->go + from * NR, nq * NR, b->dv + i * b->dp, b->dp, 1);
		tile_tn(mr, d, nq - from, ds + from * ATTN_BK, ATTN_BK, b->q + from * NR, nq * NR, b->dk + i * b->dp, b->dp, 1);
	}
}

/* One head's queries [q0, q0 + nq): adds to dk, dv, leaves this job's share of dq in b->dq. */
static void query_tile(const struct bwd *b, int h, int64_t q0, int64_t nq)
{
	const struct kn_attn *a = b->a;
	const struct kn_q_head *qh = &a->q[h];
	int64_t k0 = b->j->lo;

	tile_scores(b, qh, q0, nq);
	for (int64_t i = 0; i < nq; i++) {
		int64_t t = q0 + i, hi = t - k0 + 1;

		row_grad(b, b->p + i * ATTN_BK, b->ds + i * ATTN_BK, a->lse[h * a->s + t], qh->dsum[t * qh->lddsum],
			 attn_first_key(a, b->j->begin, t) - k0, hi < b->bk ? hi : b->bk);
	}
	tile_pack(nq, a->d, (const float *)qh->q + q0 * qh->ldq, qh->ldq, b->q);
	tile_pack(nq, a->d, (const float *)qh->do_ + q0 * qh->lddo, qh->lddo, b->go);
	tile_grads(b, q0, nq);
}

static void wait_turn(const struct attn_job *j, const int32_t *turn, int32_t mine)
{
	for (int n = 0; __atomic_load_n(turn, __ATOMIC_ACQUIRE) != mine; n++) {
		if (j->poll && n % 64 == 0)
			j->poll(j->poll_arg);
		if (n > 256)
			sched_yield();
	}
}

static void add_dq(const struct bwd *b, int h, int64_t q0, int64_t nq, int first)
{
	const struct kn_q_head *qh = &b->a->q[h];

	for (int64_t i = 0; i < nq; i++) {
		const float *x = b->dq + i * b->dp;
		float *y = (float *)qh->dq + (q0 + i) * qh->lddq;

		if (first)
			memcpy(y, x, (size_t)b->a->d * sizeof(*y));
		else
			for (int j = 0; j < b->a->d; j++)
				y[j] += x[j];
	}
}

static void load_keys(struct bwd *b)
{
	const struct kn_kv_head *kv = &b->a->kv[b->j->kv];
	const float *k = (const float *)kv->k + b->j->lo * kv->ldk, *v = (const float *)kv->v + b->j->lo * kv->ldv;

	tile_pack_t(b->bk, b->a->d, k, kv->ldk, b->kt);
	tile_pack_t(b->bk, b->a->d, v, kv->ldv, b->vt);
	tile_pack(b->bk, b->a->d, k, kv->ldk, b->k);
	memset(b->dk, 0, (size_t)(b->bk * b->dp) * sizeof(float));
	memset(b->dv, 0, (size_t)(b->bk * b->dp) * sizeof(float));
}

static void store_keys(const struct bwd *b)
{
	const struct kn_kv_head *kv = &b->a->kv[b->j->kv];
	size_t bytes = (size_t)b->a->d * sizeof(float);

	for (int64_t i = 0; i < b->bk; i++) {
		memcpy((float *)kv->dk + (b->j->lo + i) * kv->lddk, b->dk + i * b->dp, bytes);
		memcpy((float *)kv->dv + (b->j->lo + i) * kv->lddv, b->dv + i * b->dp, bytes);
	}
}

void KN_SYM(kn_v_attn_bwd)(const struct kn_attn *a, const struct attn_job *j, float *buf)
{
	int64_t pad = attn_pad(a->d), bq = j->bq, end = j->end, mine = (j->lo - j->begin) / ATTN_BK;
	struct bwd b = {.a = a, .j = j, .bk = j->hi - j->lo, .dp = (a->d + W - 1) / W * W};

	b.kt = buf;
	b.vt = b.kt + ATTN_BK * pad;
	b.k = b.vt + ATTN_BK * pad;
	b.dk = b.k + ATTN_BK * pad;
	b.dv = b.dk + ATTN_BK * pad;
	b.q = b.dv + ATTN_BK * pad;
	b.go = b.q + bq * pad;
	b.dq = b.go + bq * pad;
	b.p = b.dq + bq * pad;
	b.ds = b.p + bq * ATTN_BK;
	load_keys(&b);
	if (a->window > 0 && a->window <= end - j->hi) /* the last query that sees key hi - 1 */
		end = j->hi - 1 + a->window;
	for (int64_t i = (j->lo - j->begin) / bq; j->h0 < j->h1 && j->begin + i * bq < end; i++) {
		int64_t q0 = j->begin + i * bq, nq = j->end - q0 < bq ? j->end - q0 : bq;
		int64_t first = (attn_first_key(a, j->begin, q0) - j->begin) / ATTN_BK;

		if (j->poll)
			j->poll(j->poll_arg);
		for (int h = j->h0; h < j->h1; h++) {
			query_tile(&b, h, q0, nq);
			if (h == j->h0)
				wait_turn(j, &j->turn[i], (int32_t)(mine - first));
			add_dq(&b, h, q0, nq, mine == first);
		}
		__atomic_store_n(&j->turn[i], (int32_t)(mine - first + 1), __ATOMIC_RELEASE);
	}
	store_keys(&b);
}
