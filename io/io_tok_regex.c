/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions of tokenizer.json on PCRE2, and the pre-tokenizer stages that split by them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "io/io_tok_load.h"

/* Unicode White_Space, what \s is in Oniguruma; PCRE2's own \s also holds U+180E. */
static const char SPACE[] = "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"
			    "\\x{202f}\\x{205f}\\x{3000}";
static const char WORD[] = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

static int put(struct tok_buf *b, const char *s)
{
	return tok_buf_add(b, s, strlen(s));
}

/* One escape at p[0] = '\\', p[1] = e. Returns 1 when it was rewritten, 0 when it stands as it is, -1 on failure. */
static int rewrite_escape(struct tok_buf *b, char e, int in_class, struct io_error *err)
{
	const char *set = (e == 's' || e == 'S') ? SPACE : (e == 'w' || e == 'W') ? WORD : NULL;
	int negated = e == 'S' || e == 'W', rc = 0;

	if (e == 'h' || e == 'H') { /* Oniguruma: hexadecimal digit */
		set = "0-9a-fA-F";
		negated = e == 'H';
	}
	if (!set)
		return 0;
	if (in_class && negated)
		return io_errorf(err, EINVAL, "\\%c inside [...] is not supported in a tokenizer pattern", e);
	if (!in_class)
		rc |= put(b, negated ? "[^" : "[");
	rc |= put(b, set);
	if (set == WORD)
		rc |= put(b, tok_since14("L", 1)) | put(b, tok_since14("M", 1)) | put(b, tok_since14("Nd", 2));
	if (!in_class)
		rc |= put(b, "]");
	return rc ? io_errorf(err, ENOMEM, "no memory for a tokenizer pattern") : 1;
}

/* \p{X} or \P{X} at p of n bytes, spelled with the characters newer than PCRE2's Unicode. Returns the length taken, 0 when
 * it stands as it is, -1 on failure. */
static int rewrite_property(struct tok_buf *b, const char *p, size_t n, int in_class, struct io_error *err)
{
	const char *close = n > 3 && p[2] == '{' ? memchr(p, '}', n) : NULL, *more;
	int negated = p[1] == 'P', rc;

	if (!close)
		return 0;
	more = tok_since14(p + 3, (size_t)(close - p - 3));
	if (!more)
		return 0;
	if (in_class && negated)
		return io_errorf(err, EINVAL, "\\P{...} inside [...] is not supported in a tokenizer pattern");
	rc = in_class ? 0 : put(b, negated ? "[^" : "[");
	rc |= put(b, "\\p") | tok_buf_add(b, p + 2, (size_t)(close - p - 1)) | put(b, more);
	rc |= in_class ? 0 : put(b, "]");
	return rc ? io_errorf(err, ENOMEM, "no memory for a tokenizer pattern") : (int)(close - p + 1);
}

static int translate(const char *p, size_t n, struct tok_buf *b, struct io_error *err)
{
	int depth = 0; /* inside [...] */

	for (size_t i = 0; i < n; i++) {
		if (p[i] == '\\' && i + 1 < n) {
			int property = p[i + 1] == 'p' || p[i + 1] == 'P';
			int r = property ? rewrite_property(b, p + i, n - i, depth > 0, err) :
					   rewrite_escape(b, p[i + 1], depth > 0, err);

			if (r < 0)
				return -1;
			if (property && r) {
				i += (size_t)r - 1;
				continue;
			}
			if (r == 0 && tok_buf_add(b, p + i, 2))
				return io_errorf(err, ENOMEM, "no memory for a tokenizer pattern");
			i++;
			continue;
		}
		if (depth && p[i] == '&' && i + 1 < n && p[i + 1] == '&')
			return io_errorf(err, EINVAL, "class intersection (&&) is not supported in a tokenizer pattern");
		if (depth && p[i] == '[' && !(i + 1 < n && p[i + 1] == ':'))
			return io_errorf(err, EINVAL, "nested [...] is not supported in a tokenizer pattern");
		if (p[i] == '[' && !depth) {
			depth = 1;
			/* a ']' right after the opening (or its ^) is a literal, the same in both engines */
			if (tok_buf_add(b, p + i, 1))
				return io_errorf(err, ENOMEM, "no memory for a tokenizer pattern");
			if (i + 1 < n && p[i + 1] == '^' && tok_buf_add(b, p + ++i, 1))
				return io_errorf(err, ENOMEM, "no memory for a tokenizer pattern");
			if (i + 1 < n && p[i + 1] == ']' && tok_buf_add(b, p + ++i, 1))
				return io_errorf(err, ENOMEM, "no memory for a tokenizer pattern");
			continue;
		}
		if (p[i] == ']' && depth)
			depth = 0;
		if (tok_buf_add(b, p + i, 1))
			return io_errorf(err, ENOMEM, "no memory for a tokenizer pattern");
	}
	return 0;
}

int tok_regex_compile(struct tok_regex *r, const char *pattern, size_t n, struct io_error *err)
{
	struct tok_buf b = { 0 };
	int code, rc = -1;
	PCRE2_SIZE at;
	PCRE2_UCHAR msg[160];

	r->code = NULL;
	if (n > 65536)
		return io_errorf(err, EINVAL, "a tokenizer pattern of %zu bytes is too long", n);
	if (translate(pattern, n, &b, err))
		goto out;
	r->code = pcre2_compile((PCRE2_SPTR)(b.p ? b.p : ""), b.n, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code,
				&at, NULL);
	if (!r->code) {
		pcre2_get_error_message(code, msg, sizeof(msg));
		io_errorf(err, EINVAL, "tokenizer pattern: %s (at byte %zu)", (char *)msg, (size_t)at);
		goto out;
	}
	/* Without JIT (not built in, or refused by the system) matching still works, slower. */
	(void)pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
	rc = 0;
out:
	free(b.p);
	return rc;
}

void tok_regex_free(struct tok_regex *r)
{
	pcre2_code_free(r->code);
	r->code = NULL;
}

/* ---- splitting ----------------------------------------------------------------------------------------------- */

/* Pieces are folded as they come, so that no list of matches is kept: `last` is the open output piece. */
struct fold {
	enum tok_behavior behavior;
	int prev_match, have;
	struct tok_piece last;
	struct tok_pieces *out;
	size_t base;
	int first;
};

static int fold_flush(struct fold *f)
{
	if (!f->have || !f->last.n)
		return 0;
	f->have = 0;
	return tok_pieces_add(f->out, f->last);
}

static int fold_open(struct fold *f, size_t a, size_t b)
{
	if (fold_flush(f))
		return -1;
	f->have = 1;
	f->last = (struct tok_piece){ f->base + a, b - a, TOK_NONE, f->first && a == 0 };
	return 0;
}

/* Text [a, b) of the input piece, a match or not. MergedWithNext decides one step late: a match stays open until what
 * follows is known. */
static int fold_add(struct fold *f, size_t a, size_t b, int match)
{
	int merge = 0;

	switch (f->behavior) {
	case TOK_REMOVED:
		if (match)
			return 0;
		break;
	case TOK_ISOLATED:
		break;
	case TOK_CONTIGUOUS:
		merge = f->have && match == f->prev_match;
		break;
	case TOK_PREV:
		merge = f->have && match && !f->prev_match;
		break;
	case TOK_NEXT: /* folding backwards: a match joins the non-match after it */
		merge = f->have && f->prev_match && !match;
		break;
	}
	f->prev_match = match;
	if (!merge)
		return fold_open(f, a, b);
	f->last.n = f->base + b - f->last.off;
	return 0;
}

static int split_piece(const struct tok_stage *st, pcre2_match_data *md, const char *text, struct tok_piece in,
		       struct tok_pieces *out, struct io_error *err)
{
	const char *s = text + in.off;
	struct fold f = { .behavior = st->behavior, .out = out, .base = in.off, .first = in.first };
	size_t prev = 0, at = 0;
	PCRE2_SIZE *ov = pcre2_get_ovector_pointer(md);

	while (at <= in.n) {
		int r = pcre2_match(st->re.code, (PCRE2_SPTR)s, in.n, at, PCRE2_NO_UTF_CHECK, md, NULL);

		if (r == PCRE2_ERROR_NOMATCH)
			break;
		if (r < 0)
			return io_errorf(err, EINVAL, "a tokenizer pattern cannot be matched (PCRE2 error %d)", r);
		if (ov[0] == ov[1]) { /* an empty match cuts, then one character is stepped over */
			uint32_t c;

			if (ov[0] > prev && fold_add(&f, prev, ov[0], st->invert))
				goto nomem;
			prev = ov[0];
			if (prev >= in.n)
				break;
			at = prev + (size_t)tok_utf8_at(s + prev, in.n - prev, &c);
			continue;
		}
		if (ov[0] > prev && fold_add(&f, prev, ov[0], st->invert))
			goto nomem;
		if (fold_add(&f, ov[0], ov[1], !st->invert))
			goto nomem;
		prev = at = ov[1];
	}
	if (prev < in.n && fold_add(&f, prev, in.n, st->invert))
		goto nomem;
	if (fold_flush(&f))
		goto nomem;
	return 0;
nomem:
	return io_errorf(err, ENOMEM, "no memory while splitting text");
}

/* ---- stages that rewrite the text -------------------------------------------------------------------------------- */

static int prefix_space(struct tok_buf *text, struct tok_buf *tmp, const struct tok_pieces *in, struct tok_pieces *out)
{
	tmp->n = 0;
	for (size_t i = 0; i < in->n; i++) {
		struct tok_piece q = in->p[i];
		const char *s = text->p + q.off;

		q.off = tmp->n;
		if (q.id == TOK_NONE && s[0] != ' ') {
			if (tok_buf_add(tmp, " ", 1))
				return -1;
			q.n++;
		}
		if (tok_buf_add(tmp, s, in->p[i].n) || tok_pieces_add(out, q))
			return -1;
	}
	struct tok_buf x = *text;
	*text = *tmp;
	*tmp = x;
	return 0;
}

static int metaspace_piece(const struct tok_stage *st, const char *s, struct tok_piece in, struct tok_buf *to,
			   struct tok_pieces *out)
{
	size_t start = to->n, cut;
	int starts = s[0] == ' ' || (in.n >= st->repl_n && !memcmp(s, st->repl, st->repl_n));

	if (!starts && (st->scheme == TOK_ALWAYS || (st->scheme == TOK_FIRST && in.first)) &&
	    tok_buf_add(to, st->repl, st->repl_n))
		return -1;
	for (size_t i = 0; i < in.n; i++)
		if (s[i] == ' ' ? tok_buf_add(to, st->repl, st->repl_n) : tok_buf_add(to, s + i, 1))
			return -1;
	if (!st->split)
		return tok_pieces_add(out, (struct tok_piece){ start, to->n - start, TOK_NONE, in.first });
	/* MergedWithNext at each replacement character: of a run only the last joins what follows, so every
	 * replacement character begins a piece */
	cut = start;
	for (size_t i = start + 1; i + st->repl_n <= to->n; i++) {
		if (memcmp(to->p + i, st->repl, st->repl_n))
			continue;
		if (tok_pieces_add(out, (struct tok_piece){ cut, i - cut, TOK_NONE, in.first && cut == start }))
			return -1;
		cut = i;
		i += st->repl_n - 1;
	}
	if (cut < to->n)
		return tok_pieces_add(out, (struct tok_piece){ cut, to->n - cut, TOK_NONE, in.first && cut == start });
	return 0;
}

static int metaspace(const struct tok_stage *st, struct tok_buf *text, struct tok_buf *tmp, const struct tok_pieces *in,
		     struct tok_pieces *out)
{
	tmp->n = 0;
	for (size_t i = 0; i < in->n; i++) {
		struct tok_piece q = in->p[i];

		if (q.id != TOK_NONE) {
			if (tok_pieces_add(out, q))
				return -1;
		} else if (metaspace_piece(st, text->p + q.off, q, tmp, out)) {
			return -1;
		}
	}
	struct tok_buf x = *text;
	*text = *tmp;
	*tmp = x;
	return 0;
}

int tok_stage_run(const struct tok_stage *st, pcre2_match_data *md, struct tok_buf *text, struct tok_buf *tmp,
		  const struct tok_pieces *in, struct tok_pieces *out, struct io_error *err)
{
	int rc = 0;

	out->n = 0;
	if (st->kind == TOK_PREFIX_SPACE)
		rc = prefix_space(text, tmp, in, out);
	else if (st->kind == TOK_METASPACE)
		rc = metaspace(st, text, tmp, in, out);
	else
		for (size_t i = 0; i < in->n; i++) {
			if (in->p[i].id == TOK_NONE) {
				if (split_piece(st, md, text->p, in->p[i], out, err))
					return -1;
			} else if (tok_pieces_add(out, in->p[i])) {
				rc = -1;
				break;
			}
		}
	return rc ? io_errorf(err, ENOMEM, "no memory while splitting text") : 0;
}
