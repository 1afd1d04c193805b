/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte-pair encoding of one word: merges leave a heap ordered by (rank, position). An entry whose pair has changed since is
 * dropped when it surfaces, by the same test as the reference (the pair there now must merge into the same id), so that even
 * vocabularies with two ways to one token give the same ids.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "io/io_tok_priv.h"

static int item_less(struct tok_heap_item a, struct tok_heap_item b)
{
	return a.rank != b.rank ? a.rank < b.rank : a.pos < b.pos;
}

static int heap_push(struct tok_work *w, uint32_t rank, uint32_t pos, uint32_t id)
{
	struct tok_heap_item x = { rank, pos, id };
	size_t i;

	if (w->heap_n == w->heap_cap) {
		size_t cap = w->heap_cap ? w->heap_cap * 2 : 256;
		struct tok_heap_item *q = realloc(w->heap, cap * sizeof(*q));

		if (!q)
			return -1;
		w->heap = q;
		w->heap_cap = cap;
	}
	for (i = w->heap_n++; i && item_less(x, w->heap[(i - 1) / 2]); i = (i - 1) / 2)
		w->heap[i] = w->heap[(i - 1) / 2];
	w->heap[i] = x;
	return 0;
}

static struct tok_heap_item heap_pop(struct tok_work *w)
{
	struct tok_heap_item top = w->heap[0], x = w->heap[--w->heap_n];
	size_t i = 0, c;

	while ((c = 2 * i + 1) < w->heap_n) {
		if (c + 1 < w->heap_n && item_less(w->heap[c + 1], w->heap[c]))
			c++;
		if (!item_less(w->heap[c], x))
			break;
		w->heap[i] = w->heap[c];
		i = c;
	}
	w->heap[i] = x;
	return top;
}

/* Symbols of a word before any merge. Unknown characters become <0xNN> bytes, the unknown token, or nothing. */
static size_t first_symbols(const struct io_tokenizer *t, struct tok_sym *sym, const char *s, size_t n)
{
	size_t k = 0, i = 0;
	int open_unk = 0; /* an unknown token that may still grow */

	while (i < n) {
		uint32_t c, id;
		size_t len = t->byte_level ? 1 : (size_t)tok_utf8_at(s + i, n - i, &c);

		id = t->byte_level ? t->byte_id[(unsigned char)s[i]] : tok_vocab_get(&t->vocab, s + i, len);
		if (id != TOK_NONE) {
			sym[k++] = (struct tok_sym){ .id = id, .len = (uint32_t)len };
			open_unk = 0;
			i += len;
			continue;
		}
		int all = t->byte_fallback;

		for (size_t j = 0; j < len && all; j++)
			all = t->fallback[(unsigned char)s[i + j]] != TOK_NONE;
		if (all) {
			for (size_t j = 0; j < len; j++)
				sym[k++] = (struct tok_sym){ .id = t->fallback[(unsigned char)s[i + j]], .len = 1 };
		} else if (t->unk != TOK_NONE) {
			if (open_unk && t->fuse_unk)
				sym[k - 1].len += (uint32_t)len;
			else
				sym[k++] = (struct tok_sym){ .id = t->unk, .len = (uint32_t)len };
			open_unk = 1;
		}
		i += len;
	}
	for (size_t j = 0; j < k; j++) {
		sym[j].prev = (int32_t)j - 1;
		sym[j].next = j + 1 < k ? (int32_t)j + 1 : -1;
	}
	return k;
}

static int push_pair(const struct io_tokenizer *t, struct tok_work *w, int32_t left)
{
	const struct tok_sym *a = &w->sym[left];
	const struct tok_merge *m = tok_merges_get(&t->merges, a->id, w->sym[a->next].id);

	return m ? heap_push(w, m->rank, (uint32_t)left, m->id) : 0;
}

static int merge_all(const struct io_tokenizer *t, struct tok_work *w, size_t k)
{
	w->heap_n = 0;
	for (size_t i = 0; i + 1 < k; i++)
		if (push_pair(t, w, (int32_t)i))
			return -1;
	while (w->heap_n) {
		struct tok_heap_item top = heap_pop(w);
		struct tok_sym *a = &w->sym[top.pos];
		const struct tok_merge *m;

		if (!a->len || a->next < 0)
			continue;
		struct tok_sym *b = &w->sym[a->next];

		m = tok_merges_get(&t->merges, a->id, b->id);
		if (!m || m->id != top.id)
			continue;
		a->id = top.id;
		a->len += b->len;
		a->next = b->next;
		b->len = 0;
		if (a->next >= 0)
			w->sym[a->next].prev = (int32_t)top.pos;
		if (a->prev >= 0 && push_pair(t, w, a->prev))
			return -1;
		if (a->next >= 0 && push_pair(t, w, (int32_t)top.pos))
			return -1;
	}
	return 0;
}

int tok_bpe_word(const struct io_tokenizer *t, struct tok_work *w, const char *s, size_t n, struct tok_ids *out)
{
	size_t k;

	if (n > INT32_MAX)
		return -1;
	if (t->ignore_merges) {
		uint32_t id = tok_vocab_get(&t->vocab, s, n);

		if (id != TOK_NONE)
			return tok_ids_add(out, id);
	}
	if (n > w->sym_cap) {
		struct tok_sym *q = realloc(w->sym, n * sizeof(*q));

		if (!q)
			return -1;
		w->sym = q;
		w->sym_cap = n;
	}
	k = first_symbols(t, w->sym, s, n);
	if (merge_all(t, w, k))
		return -1;
	for (size_t i = 0; i < k; i++)
		if (w->sym[i].len && tok_ids_add(out, w->sym[i].id))
			return -1;
	return 0;
}
