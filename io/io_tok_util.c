/* SPDX-License-Identifier: Apache-2.0 */
/* Containers of the tokenizer: growing buffers, the string table, the merge table, the trie of added tokens. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "io/io_tok_priv.h"

static int grow(void **p, size_t *cap, size_t need, size_t size)
{
	size_t c = *cap ? *cap : 64;
	void *q;

	if (need <= *cap)
		return 0;
	if (need > SIZE_MAX / 2 / size)
		return -1;
	while (c < need)
		c *= 2;
	q = realloc(*p, c * size);
	if (!q)
		return -1;
	*p = q;
	*cap = c;
	return 0;
}

int tok_buf_reserve(struct tok_buf *b, size_t n)
{
	return n > SIZE_MAX - b->n ? -1 : grow((void **)&b->p, &b->cap, b->n + n, 1);
}

int tok_buf_add(struct tok_buf *b, const void *p, size_t n)
{
	if (tok_buf_reserve(b, n))
		return -1;
	if (n)
		memcpy(b->p + b->n, p, n);
	b->n += n;
	return 0;
}

int tok_pieces_add(struct tok_pieces *l, struct tok_piece x)
{
	if (!x.n)
		return 0;
	if (grow((void **)&l->p, &l->cap, l->n + 1, sizeof(*l->p)))
		return -1;
	l->p[l->n++] = x;
	return 0;
}

int tok_ids_add(struct tok_ids *l, uint32_t id)
{
	if (grow((void **)&l->p, &l->cap, l->n + 1, sizeof(*l->p)))
		return -1;
	l->p[l->n++] = id;
	return 0;
}

/* ---- strings ---------------------------------------------------------------------------------------------------- */

static size_t vocab_slot(const struct tok_vocab *v, const char *s, size_t n)
{
	size_t i = XXH3_64bits(s, n) & (v->cap - 1);

	while (v->id[i] != TOK_NONE && (v->len[i] != n || memcmp(v->text + v->off[i], s, n)))
		i = (i + 1) & (v->cap - 1);
	return i;
}

static int vocab_rehash(struct tok_vocab *v)
{
	struct tok_vocab w = *v;

	w.cap = v->cap ? v->cap * 2 : 256;
	w.off = calloc(w.cap, sizeof(*w.off));
	w.len = calloc(w.cap, sizeof(*w.len));
	w.id = malloc(w.cap * sizeof(*w.id));
	if (!w.off || !w.len || !w.id) {
		free(w.off);
		free(w.len);
		free(w.id);
		return -1;
	}
	memset(w.id, 0xff, w.cap * sizeof(*w.id));
	for (size_t i = 0; i < v->cap; i++) {
		if (v->id[i] == TOK_NONE)
			continue;
		size_t k = vocab_slot(&w, v->text + v->off[i], v->len[i]);

		w.off[k] = v->off[i];
		w.len[k] = v->len[i];
		w.id[k] = v->id[i];
	}
	free(v->off);
	free(v->len);
	free(v->id);
	*v = w;
	return 0;
}

int tok_vocab_put(struct tok_vocab *v, const char *s, size_t n, uint32_t id)
{
	size_t i;

	if (n > UINT32_MAX || (v->n + 1 > v->cap / 2 && vocab_rehash(v)))
		return -1;
	i = vocab_slot(v, s, n);
	if (v->id[i] == TOK_NONE) {
		if (grow((void **)&v->text, &v->text_cap, v->text_n + n + 1, 1))
			return -1;
		if (n)
			memcpy(v->text + v->text_n, s, n);
		v->off[i] = v->text_n;
		v->len[i] = (uint32_t)n;
		v->text_n += n;
		v->n++;
	}
	v->id[i] = id;
	return 0;
}

uint32_t tok_vocab_get(const struct tok_vocab *v, const char *s, size_t n)
{
	return v->cap ? v->id[vocab_slot(v, s, n)] : TOK_NONE;
}

void tok_vocab_free(struct tok_vocab *v)
{
	free(v->text);
	free(v->off);
	free(v->len);
	free(v->id);
	memset(v, 0, sizeof(*v));
}

/* ---- merges ----------------------------------------------------------------------------------------------------- */

static size_t merge_slot(const struct tok_merges *m, uint64_t key)
{
	uint64_t h = key * 0x9E3779B97F4A7C15u;
	size_t i = (h ^ (h >> 29)) & (m->cap - 1);

	while (m->t[i].key != UINT64_MAX && m->t[i].key != key)
		i = (i + 1) & (m->cap - 1);
	return i;
}

int tok_merges_put(struct tok_merges *m, uint32_t a, uint32_t b, uint32_t rank, uint32_t id)
{
	uint64_t key = (uint64_t)a << 32 | b;
	size_t i;

	if (m->n + 1 > m->cap / 2) {
		struct tok_merges w = { .cap = m->cap ? m->cap * 2 : 256, .n = m->n };

		w.t = malloc(w.cap * sizeof(*w.t));
		if (!w.t)
			return -1;
		memset(w.t, 0xff, w.cap * sizeof(*w.t));
		for (i = 0; i < m->cap; i++)
			if (m->t[i].key != UINT64_MAX)
				w.t[merge_slot(&w, m->t[i].key)] = m->t[i];
		free(m->t);
		*m = w;
	}
	i = merge_slot(m, key);
	m->n += m->t[i].key == UINT64_MAX;
	m->t[i] = (struct tok_merge){ key, rank, id };
	return 0;
}

const struct tok_merge *tok_merges_get(const struct tok_merges *m, uint32_t a, uint32_t b)
{
	const struct tok_merge *e;

	if (!m->cap)
		return NULL;
	e = &m->t[merge_slot(m, (uint64_t)a << 32 | b)];
	return e->key == UINT64_MAX ? NULL : e;
}

/* ---- added tokens ------------------------------------------------------------------------------------------------- */

int tok_trie_put(struct tok_trie *t, const char *s, size_t n, int32_t added)
{
	uint32_t at = 0;

	if (!t->n) {
		if (grow((void **)&t->nodes, &t->cap, 1, sizeof(*t->nodes)))
			return -1;
		t->nodes[0] = (struct tok_trie_node){ .added = -1 };
		t->n = 1;
	}
	for (size_t i = 0; i < n; i++) {
		unsigned char b = (unsigned char)s[i];
		uint32_t c = i ? t->nodes[at].child : t->root[b];

		while (i && c && t->nodes[c].byte != b)
			c = t->nodes[c].next;
		if (!c) {
			if (t->n >= UINT32_MAX || grow((void **)&t->nodes, &t->cap, t->n + 1, sizeof(*t->nodes)))
				return -1;
			c = (uint32_t)t->n++;
			t->nodes[c] = (struct tok_trie_node){ .next = t->nodes[at].child, .added = -1, .byte = b };
			t->nodes[at].child = c;
			if (!i)
				t->root[b] = c;
		}
		at = c;
	}
	t->nodes[at].added = added;
	return 0;
}

/* Longest added token at s, its index or -1. */
static int32_t trie_longest(const struct tok_trie *t, const char *s, size_t n, size_t *len)
{
	int32_t best = -1;
	uint32_t c = n ? t->root[(unsigned char)s[0]] : 0;

	for (size_t i = 1; c; i++) {
		if (t->nodes[c].added >= 0) {
			best = t->nodes[c].added;
			*len = i;
		}
		if (i >= n)
			break;
		for (c = t->nodes[c].child; c && t->nodes[c].byte != (unsigned char)s[i]; c = t->nodes[c].next)
			;
	}
	return best;
}

static size_t char_start_before(const char *s, size_t at)
{
	do
		at--;
	while (at && ((unsigned char)s[at] & 0xc0) == 0x80);
	return at;
}

static int word_before(const char *s, size_t at)
{
	uint32_t c;

	if (!at)
		return 0;
	size_t b = char_start_before(s, at);

	tok_utf8_at(s + b, at - b, &c);
	return tok_is_word(c);
}

int tok_added_split(const struct io_tokenizer *t, const struct tok_trie *trie, const char *base, struct tok_piece in,
		    struct tok_pieces *out)
{
	const char *s = base + in.off;
	size_t done = 0, i = 0, len = 0;
	uint32_t c;

	while (i < in.n) {
		int32_t a = trie_longest(trie, s + i, in.n - i, &len);
		size_t start = i, stop = i + len;

		if (a < 0) {
			i++;
			continue;
		}
		const struct tok_added *x = &t->added[a];

		i = stop;
		if (x->single_word) {
			int after = 0;

			if (stop < in.n) {
				tok_utf8_at(s + stop, in.n - stop, &c);
				after = tok_is_word(c);
			}
			if (after || word_before(s, start))
				continue;
		}
		if (x->lstrip)
			while (start > done) {
				size_t b = char_start_before(s, start);

				tok_utf8_at(s + b, start - b, &c);
				if (!tok_is_space(c) || b < done)
					break;
				start = b;
			}
		if (start < done)
			start = done; /* an rstrip before took these blanks */
		if (x->rstrip)
			while (stop < in.n) {
				int k = tok_utf8_at(s + stop, in.n - stop, &c);

				if (!tok_is_space(c))
					break;
				stop += (size_t)k;
			}
		if (done < start && tok_pieces_add(out, (struct tok_piece){ in.off + done, start - done, TOK_NONE,
									    in.first && !done }))
			return -1;
		if (tok_pieces_add(out, (struct tok_piece){ in.off + start, stop - start, x->id, 0 }))
			return -1;
		done = stop;
	}
	if (done < in.n)
		return tok_pieces_add(out, (struct tok_piece){ in.off + done, in.n - done, TOK_NONE, in.first && !done });
	return 0;
}
