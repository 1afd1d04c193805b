/* SPDX-License-Identifier: Apache-2.0 */
/* Text to ids and back: the steps of a tokenizer.json in order, with a cache of words. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "io/io_tok_load.h"

/* Words come again and again: a direct-mapped cache of what BPE made of them. Emptied when its memory is used up. */
#define CACHE_SLOTS (1u << 16)
#define CACHE_WORD_MAX 256
#define CACHE_BYTES (16u << 20)

struct cache_slot {
	uint64_t hash;
	uint32_t off, len, nids; /* word bytes at off, ids behind them (4-byte aligned); nids 0: free */
};

struct io_tok_scratch {
	pcre2_match_data *md;
	struct tok_buf clean, text, tmp, norm;
	struct tok_pieces a, b;
	struct tok_work work;
	struct tok_ids ids;
	struct cache_slot *slots;
	char *mem;
	uint32_t mem_n;
};

int io_tok_scratch_create(const struct io_tokenizer *t, struct io_tok_scratch **out, struct io_error *err)
{
	struct io_tok_scratch *s = calloc(1, sizeof(*s));

	(void)t;
	if (s) {
		s->md = pcre2_match_data_create(64, NULL);
		s->slots = calloc(CACHE_SLOTS, sizeof(*s->slots));
		s->mem = malloc(CACHE_BYTES);
	}
	if (!s || !s->md || !s->slots || !s->mem) {
		io_tok_scratch_destroy(s);
		return io_errorf(err, ENOMEM, "no memory for a tokenizer's buffers");
	}
	*out = s;
	return 0;
}

void io_tok_scratch_destroy(struct io_tok_scratch *s)
{
	if (!s)
		return;
	pcre2_match_data_free(s->md);
	free(s->clean.p);
	free(s->text.p);
	free(s->tmp.p);
	free(s->norm.p);
	free(s->a.p);
	free(s->b.p);
	free(s->work.sym);
	free(s->work.heap);
	free(s->ids.p);
	free(s->slots);
	free(s->mem);
	free(s);
}

static void cache_store(struct io_tok_scratch *s, struct cache_slot *e, uint64_t hash, const char *w, uint32_t len,
			const uint32_t *ids, size_t nids)
{
	uint32_t need = ((len + 3u) & ~3u) + (uint32_t)nids * 4u;

	if (s->mem_n + need > CACHE_BYTES) {
		memset(s->slots, 0, CACHE_SLOTS * sizeof(*s->slots));
		s->mem_n = 0;
	}
	*e = (struct cache_slot){ hash, s->mem_n, len, (uint32_t)nids };
	memcpy(s->mem + s->mem_n, w, len);
	memcpy(s->mem + s->mem_n + ((len + 3u) & ~3u), ids, nids * 4);
	s->mem_n += need;
}

static int encode_word(const struct io_tokenizer *t, struct io_tok_scratch *s, const char *w, size_t n)
{
	uint64_t h;
	struct cache_slot *e;
	size_t before = s->ids.n;

	if (n > CACHE_WORD_MAX)
		return tok_bpe_word(t, &s->work, w, n, &s->ids);
	h = XXH3_64bits(w, n);
	e = &s->slots[h & (CACHE_SLOTS - 1)];
	if (e->nids && e->hash == h && e->len == n && !memcmp(s->mem + e->off, w, n)) {
		const char *ids = s->mem + e->off + ((e->len + 3u) & ~3u);

		for (uint32_t i = 0; i < e->nids; i++) {
			uint32_t id;

			memcpy(&id, ids + 4 * i, 4);
			if (tok_ids_add(&s->ids, id))
				return -1;
		}
		return 0;
	}
	if (tok_bpe_word(t, &s->work, w, n, &s->ids))
		return -1;
	if (s->ids.n > before)
		cache_store(s, e, h, w, (uint32_t)n, s->ids.p + before, s->ids.n - before);
	return 0;
}

/* Normalizes the text pieces of s->a (over s->clean) into s->text, cutting out normalized added tokens. */
static int normalize_pieces(const struct io_tokenizer *t, struct io_tok_scratch *s, struct io_error *err)
{
	s->text.n = 0;
	s->b.n = 0;
	for (size_t i = 0; i < s->a.n; i++) {
		struct tok_piece q = s->a.p[i];
		const char *src = s->clean.p + q.off;
		size_t n = q.n;

		if (q.id == TOK_NONE && t->nnorms) {
			if (tok_normalize(t->norms, t->nnorms, s->md, src, n, &s->norm, &s->tmp, err))
				return -1;
			src = s->norm.p;
			n = s->norm.n;
		}
		q.off = s->text.n;
		q.n = n;
		if (tok_buf_add(&s->text, src, n))
			return io_errorf(err, ENOMEM, "no memory while encoding text");
		if (q.id == TOK_NONE && t->has_normalized && n) {
			if (tok_added_split(t, &t->normalized, s->text.p, q, &s->b))
				return io_errorf(err, ENOMEM, "no memory while encoding text");
		} else if (tok_pieces_add(&s->b, q)) {
			return io_errorf(err, ENOMEM, "no memory while encoding text");
		}
	}
	return 0;
}

static int split_added(const struct io_tokenizer *t, struct io_tok_scratch *s, const char *text, size_t len,
		       struct io_error *err)
{
	struct tok_piece whole = { 0, 0, TOK_NONE, 1 };
	int rc;

	s->clean.n = 0;
	s->a.n = 0;
	if (tok_utf8_lossy(text, len, &s->clean))
		return io_errorf(err, ENOMEM, "no memory while encoding text");
	whole.n = s->clean.n;
	rc = t->has_raw && whole.n ? tok_added_split(t, &t->raw, s->clean.p, whole, &s->a) : tok_pieces_add(&s->a, whole);
	return rc ? io_errorf(err, ENOMEM, "no memory while encoding text") : 0;
}

int io_tokenizer_encode(const struct io_tokenizer *t, struct io_tok_scratch *s, const char *text, size_t len,
			int add_special, const uint32_t **ids, int64_t *n, struct io_error *err)
{
	s->ids.n = 0;
	if (split_added(t, s, text, len, err) || normalize_pieces(t, s, err))
		return -1;
	for (int i = 0; i < t->nstages; i++) {
		struct tok_pieces x = s->b;

		if (tok_stage_run(&t->stages[i], s->md, &s->text, &s->tmp, &s->b, &s->a, err))
			return -1;
		s->b = s->a;
		s->a = x;
	}
	for (int i = 0; add_special && i < t->nbefore; i++)
		if (tok_ids_add(&s->ids, t->before[i]))
			goto nomem;
	for (size_t i = 0; i < s->b.n; i++) {
		const struct tok_piece *q = &s->b.p[i];

		if (q->id != TOK_NONE ? tok_ids_add(&s->ids, q->id) : encode_word(t, s, s->text.p + q->off, q->n))
			goto nomem;
	}
	for (int i = 0; add_special && i < t->nafter; i++)
		if (tok_ids_add(&s->ids, t->after[i]))
			goto nomem;
	*ids = s->ids.p;
	*n = (int64_t)s->ids.n;
	return 0;
nomem:
	return io_errorf(err, ENOMEM, "no memory while encoding text");
}

/* ---- back to text ---------------------------------------------------------------------------------------------------- */

static const struct tok_added *added_of(const struct io_tokenizer *t, uint32_t id)
{
	for (int i = 0; i < t->nadded; i++)
		if (t->added[i].id == id)
			return &t->added[i];
	return NULL;
}

static int decode_token(const struct io_tokenizer *t, const char *s, size_t n, struct tok_buf *out)
{
	size_t from = out->n;

	if (!t->byte_level && n == 6 && !memcmp(s, "<0x", 3) && s[5] == '>') {
		char hex[3] = { s[3], s[4], 0 }, *end, b = (char)strtol(hex, &end, 16);

		if (!*end)
			return tok_buf_add(out, &b, 1);
	}
	for (size_t i = 0; i < n;) {
		uint32_t c;
		int k = tok_utf8_at(s + i, n - i, &c), byte = t->byte_level ? tok_char_to_byte(c) : -1;
		char b = (char)byte;

		if (t->byte_level && byte < 0) { /* not byte-level text after all: taken as written */
			out->n = from;
			return tok_buf_add(out, s, n);
		}
		if (byte >= 0 ? tok_buf_add(out, &b, 1) :
		    c == 0x2581 ? tok_buf_add(out, " ", 1) :
				  tok_buf_add(out, s + i, (size_t)k))
			return -1;
		i += (size_t)k;
	}
	return 0;
}

int io_tokenizer_decode(const struct io_tokenizer *t, const uint32_t *ids, int64_t n, int skip_special, char **text,
			size_t *len, struct io_error *err)
{
	struct tok_buf out = { 0 };
	int first = 1;

	for (int64_t i = 0; i < n; i++) {
		const struct tok_added *x = ids[i] < t->vocab_size ? added_of(t, ids[i]) : NULL;
		size_t slot;
		int rc;

		if (ids[i] >= t->vocab_size || (!x && !t->name_slot[ids[i]])) {
			free(out.p);
			return io_errorf(err, EINVAL, "token id %u is not in the vocabulary", ids[i]);
		}
		if (x && x->special && skip_special)
			continue;
		if (x) {
			rc = tok_buf_add(&out, x->content, x->n);
		} else {
			size_t from = out.n;

			slot = t->name_slot[ids[i]] - 1;
			rc = decode_token(t, t->names.text + t->names.off[slot], t->names.len[slot], &out);
			if (!rc && first && t->strip_left && out.n > from && out.p[from] == ' ')
				memmove(out.p + from, out.p + from + 1, --out.n - from);
		}
		first = 0;
		if (rc)
			goto nomem;
	}
	if (tok_buf_add(&out, "", 1))
		goto nomem;
	*text = out.p;
	*len = out.n - 1;
	return 0;
nomem:
	free(out.p);
	return io_errorf(err, ENOMEM, "no memory while decoding");
}

int64_t io_tokenizer_vocab_size(const struct io_tokenizer *t)
{
	return t->vocab_size;
}

int64_t io_tokenizer_token_id(const struct io_tokenizer *t, const char *token)
{
	size_t n = strlen(token);
	uint32_t id;

	for (int i = 0; i < t->nadded; i++)
		if (t->added[i].n == n && !memcmp(t->added[i].content, token, n))
			return t->added[i].id;
	id = tok_vocab_get(&t->names, token, n);
	return id == TOK_NONE ? -1 : (int64_t)id;
}
