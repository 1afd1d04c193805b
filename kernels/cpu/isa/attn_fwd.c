/* SPDX-License-Identifier: Apache-2.0 */
/* One forward job (attn.h): online softmax over key tiles (Milakov & Gimelshein 1805.02867, Dao 2307.08691). */
#include "kernels/cpu/isa/attn_tiles.h"
#include "kernels/cpu/isa/tile.h"

struct fwd {
	const struct kn_attn *a;
	const struct attn_job *j;
	int64_t nq, dp; /* tokens of the job; d padded to vectors */
	float *q;       /* [rows][d]   scaled; row = head * nq + token */
	float *o;       /* [rows][dp]  not yet divided by l */
	float *s;       /* [rows][BK]  scores, then probabilities */
	float *kt, *v;  /* panels of k^T [d][bk] and v [bk][d] */
	float *m, *l;   /* [rows] running maximum and sum */
};

static void load_queries(struct fwd *f)
{
	const struct kn_attn *a = f->a;

	for (int h = f->j->h0; h < f->j->h1; h++)
		for (int64_t i = 0; i < f->nq; i++) {
			const float *x = (const float *)a->q[h].q + (f->j->lo + i) * a->q[h].ldq;
			float *y = f->q + ((h - f->j->h0) * f->nq + i) * a->d;

			for (int j = 0; j < a->d; j++)
				y[j] = x[j] * a->scale;
		}
}

/* Keys outside [lo, hi) of a row get -inf, the columns past the tile's last key too. */
static void mask_row(float *s, int64_t lo, int64_t hi, int64_t width)
{
	for (int64_t c = 0; c < lo && c < width; c++)
		s[c] = -INFINITY;
	for (int64_t c = hi > 0 ? hi : 0; c < width; c++)
		s[c] = -INFINITY;
}

/* Scores of one row become probabilities under the new maximum; what was summed before is rescaled. */
static void softmax_row(struct fwd *f, int64_t r, int64_t width)
{
	float *s = f->s + r * ATTN_BK, *o = f->o + r * f->dp, max, sub, alpha;
	vf big = vset(-INFINITY), sum = vset(0);

	for (int64_t c = 0; c < width; c += W)
		big = vmax(vld(s + c), big);
	max = vmaxall(big);
	max = max > f->m[r] ? max : f->m[r];
	sub = max == -INFINITY ? 0.0f : max; /* nothing visible yet: exp(-inf - 0) = 0, not NaN */
	for (int64_t c = 0; c < width; c += W) {
		vf p = vexp(vld(s + c) - sub);

		vst(s + c, p);
		sum += p;
	}
	alpha = f->m[r] == max ? 1.0f : vexp(vset(f->m[r] - sub))[0];
	f->l[r] = f->l[r] * alpha + vsum(sum);
	f->m[r] = max;
	if (alpha != 1.0f)
		for (int64_t c = 0; c < f->dp; c += W)
			vst(o + c, vld(o + c) * alpha);
}

/* On the diagonal, MR rows at a time with the keys the last of them sees; elsewhere all rows at once. */
static void scores(struct fwd *f, int64_t k0, int64_t bk)
{
	int64_t d = f->a->d, first = f->j->lo - k0 + 1; /* keys of this tile the first query sees, if positive */

	if (first >= bk) {
		tile_nn((f->j->h1 - f->j->h0) * f->nq, bk, d, f->q, d, f->kt, d * NR, f->s, ATTN_BK, 0);
		return;
	}
	for (int64_t h = 0; h < f->j->h1 - f->j->h0; h++)
		for (int64_t i = 0; i < f->nq; i += MR) {
			int64_t mr = f->nq - i < MR ? f->nq - i : MR, n = first + i + mr - 1, r = h * f->nq + i;

			if (n > 0)
				tile_nn(mr, n < bk ? n : bk, d, f->q + r * d, d, f->kt, d * NR, f->s + r * ATTN_BK, ATTN_BK, 0);
		}
}

static void add_values(struct fwd *f, int64_t k0, int64_t bk)
{
	int64_t d = f->a->d, first = f->j->lo - k0 + 1;

	if (first >= bk) {
		tile_nn((f->j->h1 - f->j->h0) * f->nq, d, bk, f->s, ATTN_BK, f->v, bk * NR, f->o, f->dp, 1);
		return;
	}
	for (int64_t h = 0; h < f->j->h1 - f->j->h0; h++)
		for (int64_t i = 0; i < f->nq; i += MR) {
			int64_t mr = f->nq - i < MR ? f->nq - i : MR, n = first + i + mr - 1, r = h * f->nq + i;

			if (n > 0)
				tile_nn(mr, d, n < bk ? n : bk, f->s + r * ATTN_BK, ATTN_BK, f->v, bk * NR, f->o + r * f->dp, f->dp,
					1);
		}
}

static void key_tile(struct fwd *f, int64_t k0, int64_t bk)
{
	const struct kn_attn *a = f->a;
	const struct kn_kv_head *kv = &a->kv[f->j->kv];
	int64_t heads = f->j->h1 - f->j->h0, width = (bk + W - 1) / W * W;

	tile_pack_t(bk, a->d, (const float *)kv->k + k0 * kv->ldk, kv->ldk, f->kt);
	tile_pack(bk, a->d, (const float *)kv->v + k0 * kv->ldv, kv->ldv, f->v);
	scores(f, k0, bk);
	for (int64_t h = 0; h < heads; h++)
		for (int64_t i = 0; i < f->nq; i++) {
			int64_t r = h * f->nq + i, t = f->j->lo + i, hi = t - k0 + 1 < bk ? t - k0 + 1 : bk;
			int64_t seen = tile_seen(hi, width);

			mask_row(f->s + r * ATTN_BK, attn_first_key(a, f->j->begin, t) - k0, hi, seen);
			softmax_row(f, r, seen);
		}
	add_values(f, k0, bk);
}

static void store_rows(struct fwd *f)
{
	const struct kn_attn *a = f->a;

	for (int h = f->j->h0; h < f->j->h1; h++)
		for (int64_t i = 0; i < f->nq; i++) {
			int64_t r = (h - f->j->h0) * f->nq + i, t = f->j->lo + i;
			float *y = (float *)a->q[h].o + t * a->q[h].ldo, inv = 1.0f / f->l[r];

			for (int j = 0; j < a->d; j++)
				y[j] = f->o[r * f->dp + j] * inv;
			a->lse[h * a->s + t] = f->m[r] + logf(f->l[r]);
		}
}

void KN_SYM(kn_v_attn_fwd)(const struct kn_attn *a, const struct attn_job *j, float *buf)
{
	int64_t nq = j->hi - j->lo, rows = (j->h1 - j->h0) * nq, pad = attn_pad(a->d);
	struct fwd f = {.a = a, .j = j, .nq = nq, .dp = (a->d + W - 1) / W * W};

	f.q = buf;
	f.o = f.q + ATTN_ROWS * pad;
	f.s = f.o + ATTN_ROWS * pad;
	f.kt = f.s + ATTN_ROWS * ATTN_BK;
	f.v = f.kt + ATTN_BK * pad;
	f.m = f.v + ATTN_BK * pad;
	f.l = f.m + ATTN_ROWS;
	load_queries(&f);
	memset(f.o, 0, (size_t)(rows * f.dp) * sizeof(float));
	for (int64_t r = 0; r < rows; r++) {
		f.m[r] = -INFINITY;
		f.l[r] = 0;
	}
	for (int64_t k = attn_first_key(a, j->begin, j->lo); k < j->hi; k += ATTN_BK) {
		if (j->poll)
			j->poll(j->poll_arg);
		key_tile(&f, k, j->hi - k < ATTN_BK ? j->hi - k : ATTN_BK);
	}
	store_rows(&f);
}
