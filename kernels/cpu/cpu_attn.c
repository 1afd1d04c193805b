/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention: cuts the call into jobs (attn.h), longest first, which threads take from a counter. Who takes which
 * job depends on timing, what a job computes and the order of every sum does not. Memory: one buffer a thread,
 * one offset a document and, backward, one counter a query tile; nothing grows with the square of the length.
 */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* Documents longest first, with the number of the first job tile of each. */
struct doc {
	int64_t begin, end, tile0, tiles;
};

struct plan {
	struct doc *doc; /* [ndoc] */
	int64_t ndoc, tiles, bq;
	int *chunk;      /* [2 * chunks] heads [a, b) of one kv head */
	int chunks;
	int32_t *turn;   /* backward: [tiles of bq queries][nkv] */
	float *buf;      /* [threads][buf_floats] */
	int64_t buf_floats;
};

static int longer(const void *a, const void *b)
{
	const struct doc *x = a, *y = b;
	int64_t lx = x->end - x->begin, ly = y->end - y->begin;

	return lx != ly ? (lx < ly) - (lx > ly) : (x->begin > y->begin) - (x->begin < y->begin);
}

static void plan_docs(struct plan *p, const struct kn_attn *a, int64_t tile)
{
	p->ndoc = a->ndoc;
	for (int64_t i = 0; i < a->ndoc; i++)
		p->doc[i] = (struct doc){.begin = a->cu[i], .end = a->cu[i + 1]};
	qsort(p->doc, (size_t)a->ndoc, sizeof(*p->doc), longer);
	p->tiles = 0;
	for (int64_t i = 0; i < a->ndoc; i++) {
		p->doc[i].tile0 = p->tiles;
		p->doc[i].tiles = (p->doc[i].end - p->doc[i].begin + tile - 1) / tile;
		p->tiles += p->doc[i].tiles;
	}
}

static const struct doc *doc_of_tile(const struct plan *p, int64_t tile)
{
	int64_t lo = 0, hi = p->ndoc - 1;

	while (lo < hi) {
		int64_t mid = (lo + hi + 1) / 2;

		if (p->doc[mid].tile0 <= tile)
			lo = mid;
		else
			hi = mid - 1;
	}
	return &p->doc[lo];
}

/* Heads [h0, h1) of kv head g. */
static void group(const struct kn_attn *a, int g, int *h0, int *h1)
{
	for (*h0 = 0; *h0 < a->nq && a->kv_of[*h0] < g; ++*h0)
		;
	for (*h1 = *h0; *h1 < a->nq && a->kv_of[*h1] == g; ++*h1)
		;
}

/* One scratch block: documents, chunks, counters, thread buffers. */
static int plan_alloc(struct kn_ctx *c, struct plan *p, const struct kn_attn *a, int64_t turns)
{
	size_t docs = kn_round64((size_t)a->ndoc * sizeof(*p->doc)), chunks = kn_round64((size_t)a->nq * 2 * sizeof(int));
	size_t turn = kn_round64((size_t)turns * sizeof(int32_t));
	size_t bufs = (size_t)c->threads * kn_round64((size_t)p->buf_floats * sizeof(float));
	char *m = kn_host_scratch(c, docs + chunks + turn + bufs);

	if (!m)
		return -ENOMEM;
	p->buf_floats = (int64_t)(kn_round64((size_t)p->buf_floats * sizeof(float)) / sizeof(float));
	p->doc = (struct doc *)m;
	p->chunk = (int *)(m + docs);
	p->turn = (int32_t *)(m + docs + chunks);
	p->buf = (float *)(m + docs + chunks + turn);
	memset(p->turn, 0, turn);
	return 0;
}

/* ---- forward: job = (query tile, chunk of a group's heads) -------------------------------------------------- */

static void fwd_job(struct kn_ctx *c, const struct kn_attn *a, const struct plan *p, int64_t n, int tid)
{
	int64_t tile = n / p->chunks;
	const int *ch = p->chunk + 2 * (n % p->chunks);
	const struct doc *d = doc_of_tile(p, tile);
	int64_t i = d->tiles - 1 - (tile - d->tile0); /* last queries first: they see most keys */
	struct attn_job j = {.begin = d->begin, .end = d->end, .kv = a->kv_of[ch[0]], .h0 = ch[0], .h1 = ch[1]};

	j.lo = d->begin + i * p->bq;
	j.hi = d->end - j.lo < p->bq ? d->end : j.lo + p->bq;
	j.poll = tid == 0 ? a->poll : NULL;
	j.poll_arg = a->poll_arg;
	c->v->attn_fwd(a, &j, p->buf + tid * p->buf_floats);
}

static void plan_chunks(struct plan *p, const struct kn_attn *a)
{
	p->chunks = 0;
	for (int h = 0, e; h < a->nq; h = e) {
		for (e = h + 1; e < a->nq && a->kv_of[e] == a->kv_of[h] && e - h < ATTN_MAX_HEADS; e++)
			;
		p->chunk[2 * p->chunks] = h;
		p->chunk[2 * p->chunks++ + 1] = e;
	}
}

int cpu_attn_fwd(struct kn_ctx *c, const struct kn_attn *a)
{
	struct plan p = {0};
	int rc = kn_check_attn(&c->err, a, 0), widest = 1;
	int64_t next = 0, jobs;

	if (rc || a->s == 0 || a->nq == 0)
		return rc;
	p.buf_floats = attn_fwd_floats(a->d);
	if ((rc = plan_alloc(c, &p, a, 0)))
		return rc;
	plan_chunks(&p, a);
	for (int i = 0; i < p.chunks; i++)
		if (p.chunk[2 * i + 1] - p.chunk[2 * i] > widest)
			widest = p.chunk[2 * i + 1] - p.chunk[2 * i];
	p.bq = widest == 1 ? 64 : ATTN_ROWS / widest / 8 * 8;
	plan_docs(&p, a, p.bq);
	jobs = p.tiles * p.chunks;
#pragma omp parallel num_threads(cpu_nt(c, a->s *a->d *a->nq))
	for (int64_t n; (n = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < jobs;)
		fwd_job(c, a, &p, n, omp_get_thread_num());
	return 0;
}

/* ---- backward: job = (key tile, kv head) --------------------------------------------------------------------- */

static void bwd_job(struct kn_ctx *c, const struct kn_attn *a, const struct plan *p, int64_t n, int tid)
{
	int64_t tile = n / a->nkv;
	const struct doc *d = doc_of_tile(p, tile);
	struct attn_job j = {.begin = d->begin, .end = d->end, .bq = p->bq, .kv = (int)(n % a->nkv)};

	group(a, j.kv, &j.h0, &j.h1);
	j.lo = d->begin + (tile - d->tile0) * ATTN_BK;
	j.hi = d->end - j.lo < ATTN_BK ? d->end : j.lo + ATTN_BK;
	/* ATTN_BK / bq query tiles to a key tile, so this is the document's first query tile. */
	j.turn = p->turn + (j.kv * p->tiles + d->tile0) * (ATTN_BK / p->bq);
	j.poll = tid == 0 ? a->poll : NULL;
	j.poll_arg = a->poll_arg;
	c->v->attn_bwd(a, &j, p->buf + tid * p->buf_floats);
}

int cpu_attn_bwd(struct kn_ctx *c, const struct kn_attn *a)
{
	struct plan p = {.bq = a->d > 128 ? ATTN_BK / 2 : ATTN_BK};
	int rc = kn_check_attn(&c->err, a, 1);
	int64_t next = 0, jobs;

	if (rc || a->s == 0 || a->nkv == 0)
		return rc;
	p.buf_floats = attn_bwd_floats(a->d, p.bq);
	/* at most one ragged tile a document */
	if ((rc = plan_alloc(c, &p, a, a->nkv * (a->s / ATTN_BK + a->ndoc) * (ATTN_BK / p.bq))))
		return rc;
	plan_docs(&p, a, ATTN_BK);
	jobs = p.tiles * a->nkv;
#pragma omp parallel num_threads(cpu_nt(c, a->s *a->d *a->nkv))
	for (int64_t n; (n = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < jobs;)
		bwd_job(c, a, &p, n, omp_get_thread_num());
	return 0;
}
