/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "io/io_pack_priv.h"

/*
 * Best fit needs, for a piece of n tokens, the fullest bin with used <= L - n. Bins of equal fill queue up; a 64-ary tree
 * of bit words over the fills finds the next lower fill that has a queue: word w of level k+1 says which of 64 words of
 * level k are not empty.
 */
#define LEVELS 6 /* 64^6 > 2^30 */

struct fills {
	int64_t n; /* fills 0 .. n - 1 */
	uint64_t *bits[LEVELS];
	int64_t *head, *tail; /* [n] first and last bin of each queue */
	int64_t *next;        /* [bins] */
};

static void fills_free(struct fills *f)
{
	for (int k = 0; k < LEVELS; k++)
		free(f->bits[k]);
	free(f->head);
	free(f->tail);
	free(f->next);
}

static int fills_init(struct fills *f, int64_t n, int64_t bins)
{
	int64_t words = n;
	int ok = 1;

	memset(f, 0, sizeof(*f));
	f->n = n;
	for (int k = 0; k < LEVELS; k++) {
		words = (words + 63) / 64;
		f->bits[k] = calloc((size_t)words, 8);
		ok = ok && f->bits[k];
	}
	f->head = malloc((size_t)n * 8);
	f->tail = malloc((size_t)n * 8);
	f->next = malloc((size_t)bins * 8);
	return ok && f->head && f->tail && f->next ? 0 : -1;
}

/* The greatest fill <= x that has a queue, or -1. */
static int64_t fills_below(const struct fills *f, int64_t x)
{
	int64_t at = x < f->n ? x : f->n - 1;
	int k = 0;

	if (at < 0)
		return -1;
	for (; k < LEVELS; k++) {
		/* bits 0 .. at % 64 of the word that holds `at` */
		uint64_t w = f->bits[k][at / 64] & (~UINT64_C(0) >> (63 - at % 64));

		if (w) {
			at = at / 64 * 64 + 63 - __builtin_clzll(w);
			break;
		}
		at = at / 64 - 1; /* the words before this one, seen from the level above */
		if (at < 0)
			return -1;
	}
	if (k == LEVELS)
		return -1;
	while (k-- > 0)
		at = at * 64 + 63 - __builtin_clzll(f->bits[k][at]);
	return at;
}

static void fills_push(struct fills *f, int64_t fill, int64_t bin)
{
	int empty = !(f->bits[0][fill / 64] >> (fill % 64) & 1);

	f->next[bin] = -1;
	if (empty)
		f->head[fill] = bin;
	else
		f->next[f->tail[fill]] = bin;
	f->tail[fill] = bin;
	for (int k = 0; k < LEVELS; k++) {
		f->bits[k][fill / 64] |= UINT64_C(1) << (fill % 64);
		fill /= 64;
	}
}

static int64_t fills_pop(struct fills *f, int64_t fill)
{
	int64_t bin = f->head[fill];

	f->head[fill] = f->next[bin];
	if (f->head[fill] >= 0)
		return bin;
	for (int k = 0; k < LEVELS; k++) {
		f->bits[k][fill / 64] &= ~(UINT64_C(1) << (fill % 64));
		if (f->bits[k][fill / 64])
			break;
		fill /= 64;
	}
	return bin;
}

int64_t io__bfd_assign(const struct io_piece *pieces, int64_t n, int64_t L, int64_t *bin, struct io_error *err)
{
	int64_t total = 0, nbins = 0;
	struct fills f;

	for (int64_t i = 0; i < n; i++)
		total += pieces[i].len;
	/* No bin holds more than all tokens together, however long samples may be. */
	if (fills_init(&f, (total < L ? total : L) + 1, n ? n : 1) < 0) {
		fills_free(&f);
		return io_errorf(err, ENOMEM, "out of memory for packing %lld pieces", (long long)n);
	}
	for (int64_t i = 0; i < n; i++) {
		int64_t used = fills_below(&f, L - pieces[i].len);

		bin[i] = used >= 0 ? fills_pop(&f, used) : nbins++;
		used = (used >= 0 ? used : 0) + pieces[i].len;
		if (used < L)
			fills_push(&f, used, bin[i]);
	}
	fills_free(&f);
	return nbins;
}

static int by_length(const void *a, const void *b)
{
	const struct io_piece *x = a, *y = b;

	if (x->len != y->len)
		return x->len < y->len ? 1 : -1;
	if (x->doc != y->doc)
		return x->doc > y->doc ? 1 : -1;
	return (x->start > y->start) - (x->start < y->start);
}

/* Pieces by bin, each bin's in the order they were put there: first[b] .. first[b + 1] of order. */
static void sort_by_bin(const struct io_piece *pieces, const int64_t *bin, int64_t n, int64_t nbins, int64_t *first,
			const struct io_piece **order)
{
	memset(first, 0, (size_t)(nbins + 2) * sizeof(*first));
	for (int64_t i = 0; i < n; i++)
		first[bin[i] + 2]++;
	for (int64_t b = 0; b < nbins; b++)
		first[b + 2] += first[b + 1];
	for (int64_t i = 0; i < n; i++)
		order[first[bin[i] + 1]++] = &pieces[i];
}

int io__bfd_flush(struct io_packer *p, struct io_error *err)
{
	struct io_piece *pieces = p->pieces.p;
	int64_t n = p->pieces.n, nbins, rc = -1;
	const struct io_piece **order = NULL;
	int64_t *bin = NULL, *first = NULL;

	if (n == 0)
		return 0;
	bin = malloc((size_t)n * sizeof(*bin));
	first = malloc((size_t)(n + 2) * sizeof(*first));
	order = malloc((size_t)n * sizeof(*order));
	if (!bin || !first || !order) {
		io_errorf(err, ENOMEM, "out of memory for packing %lld pieces", (long long)n);
		goto fail;
	}
	qsort(pieces, (size_t)n, sizeof(*pieces), by_length);
	nbins = io__bfd_assign(pieces, n, p->o.seq_length, bin, err);
	if (nbins < 0)
		goto fail;
	sort_by_bin(pieces, bin, n, nbins, first, order);
	for (int64_t b = 0; b < nbins; b++)
		if (io__pack_sample(p, order + first[b], first[b + 1] - first[b], err) < 0)
			goto fail;
	p->pieces.n = p->tok.n = p->group_n = 0;
	rc = 0;
fail:
	free(bin);
	free(first);
	free(order);
	return (int)rc;
}
