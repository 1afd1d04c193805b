/* SPDX-License-Identifier: Apache-2.0 */
/* The normalizer and pre-tokenizer of tokenizer.json as lists of steps. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "io/io_tok_load.h"

#define MAX_STEPS 32
#define MAX_DEPTH 4

/* GPT-2's word pattern, as ByteLevel applies it with use_regex. */
static const char GPT2_WORDS[] =
	"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* A pattern that matches the text itself. */
static int literal(const char *s, size_t n, struct tok_buf *out)
{
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)s[i];
		int plain = c >= 0x80 || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');

		if ((!plain && tok_buf_add(out, "\\", 1)) || tok_buf_add(out, s + i, 1))
			return -1;
	}
	return 0;
}

/* {"Regex": r} or {"String": s} */
static int load_pattern(json_t *o, struct tok_regex *re, struct io_error *err)
{
	json_t *p = json_object_get(o, "pattern"), *r = json_object_get(p, "Regex"), *s = json_object_get(p, "String");
	struct tok_buf b = { 0 };
	int rc;

	if (json_is_string(r))
		return tok_regex_compile(re, json_string_value(r), json_string_length(r), err);
	if (!json_is_string(s) || !json_string_length(s))
		return io_errorf(err, EBADMSG, "a pattern is neither {\"Regex\": ...} nor {\"String\": ...} (not empty)");
	rc = literal(json_string_value(s), json_string_length(s), &b) ? io_errorf(err, ENOMEM, "no memory for a pattern") :
									tok_regex_compile(re, b.p, b.n, err);
	free(b.p);
	return rc;
}

/* ---- normalizer ------------------------------------------------------------------------------------------------------ */

static struct tok_norm *new_norm(struct io_tokenizer *t, enum tok_norm_kind kind, struct io_error *err)
{
	struct tok_norm *q;

	if (t->nnorms >= MAX_STEPS) {
		io_errorf(err, EINVAL, "normalizer: more than %d steps", MAX_STEPS);
		return NULL;
	}
	q = realloc(t->norms, (size_t)(t->nnorms + 1) * sizeof(*q));
	if (!q) {
		io_errorf(err, ENOMEM, "no memory for the normalizer");
		return NULL;
	}
	t->norms = q;
	q += t->nnorms++;
	memset(q, 0, sizeof(*q));
	q->kind = kind;
	return q;
}

static int norm_text(struct tok_norm *nm, json_t *o, const char *key, struct io_error *err)
{
	json_t *v = json_object_get(o, key);

	if (!json_is_string(v))
		return io_errorf(err, EBADMSG, "normalizer: \"%s\" is not a string", key);
	nm->text_n = json_string_length(v);
	nm->text = malloc(nm->text_n + 1);
	if (!nm->text)
		return io_errorf(err, ENOMEM, "no memory for the normalizer");
	memcpy(nm->text, json_string_value(v), nm->text_n + 1);
	return 0;
}

int tok_load_norms(struct io_tokenizer *t, json_t *o, int depth, struct io_error *err)
{
	static const struct {
		const char *name;
		enum tok_norm_kind kind;
	} known[] = { { "NFC", TOK_NFC },	  { "NFD", TOK_NFD },	      { "NFKC", TOK_NFKC },
		      { "NFKD", TOK_NFKD },	  { "Prepend", TOK_PREPEND }, { "Replace", TOK_REPLACE },
		      { "Lowercase", TOK_LOWER }, { "Strip", TOK_STRIP } };
	const char *type = json_string_value(json_object_get(o, "type"));
	struct tok_norm *nm;
	json_t *sub;
	size_t i;

	if (!o || json_is_null(o))
		return 0;
	if (!type || depth > MAX_DEPTH)
		return io_errorf(err, EBADMSG, "normalizer has no type, or nests too deep");
	if (!strcmp(type, "Sequence")) {
		json_array_foreach (json_object_get(o, "normalizers"), i, sub)
			if (tok_load_norms(t, sub, depth + 1, err))
				return -1;
		return 0;
	}
	for (i = 0; i < sizeof(known) / sizeof(*known) && strcmp(type, known[i].name); i++)
		;
	if (i == sizeof(known) / sizeof(*known))
		return io_errorf(err, EINVAL, "normalizer \"%.40s\" is not supported", type);
	nm = new_norm(t, known[i].kind, err);
	if (!nm)
		return -1;
	if (nm->kind == TOK_PREPEND)
		return norm_text(nm, o, "prepend", err);
	if (nm->kind == TOK_REPLACE)
		return load_pattern(o, &nm->re, err) || norm_text(nm, o, "content", err) ? -1 : 0;
	nm->left = json_is_true(json_object_get(o, "strip_left"));
	nm->right = json_is_true(json_object_get(o, "strip_right"));
	return 0;
}

/* ---- pre-tokenizer ------------------------------------------------------------------------------------------------------ */

static struct tok_stage *new_stage(struct io_tokenizer *t, enum tok_stage_kind kind, struct io_error *err)
{
	struct tok_stage *q;

	if (t->byte_level) {
		io_errorf(err, EINVAL, "pre_tokenizer: a step after ByteLevel is not supported");
		return NULL;
	}
	if (t->nstages >= MAX_STEPS) {
		io_errorf(err, EINVAL, "pre_tokenizer: more than %d steps", MAX_STEPS);
		return NULL;
	}
	q = realloc(t->stages, (size_t)(t->nstages + 1) * sizeof(*q));
	if (!q) {
		io_errorf(err, ENOMEM, "no memory for the pre-tokenizer");
		return NULL;
	}
	t->stages = q;
	q += t->nstages++;
	memset(q, 0, sizeof(*q));
	q->kind = kind;
	return q;
}

static int regex_stage(struct io_tokenizer *t, const char *pattern, enum tok_behavior b, int invert, struct io_error *err)
{
	struct tok_stage *st = new_stage(t, TOK_SPLIT, err);

	if (!st)
		return -1;
	st->behavior = b;
	st->invert = invert;
	return tok_regex_compile(&st->re, pattern, strlen(pattern), err);
}

static int load_split(struct io_tokenizer *t, json_t *o, struct io_error *err)
{
	static const char *const names[] = { "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous" };
	const char *b = json_string_value(json_object_get(o, "behavior"));
	struct tok_stage *st = new_stage(t, TOK_SPLIT, err);
	int k = 0;

	if (!st)
		return -1;
	while (k < 5 && (!b || strcmp(b, names[k])))
		k++;
	if (k == 5)
		return io_errorf(err, EINVAL, "pre_tokenizer Split: behavior \"%.40s\" is not known", b ? b : "");
	st->behavior = (enum tok_behavior)k;
	st->invert = json_is_true(json_object_get(o, "invert"));
	return load_pattern(o, &st->re, err);
}

static int load_metaspace(struct io_tokenizer *t, json_t *o, struct io_error *err)
{
	json_t *r = json_object_get(o, "replacement");
	const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
	struct tok_stage *st = new_stage(t, TOK_METASPACE, err);
	uint32_t c;

	if (!st)
		return -1;
	st->repl_n = json_string_length(r);
	if (!st->repl_n || st->repl_n > 4 || (size_t)tok_utf8_at(json_string_value(r), st->repl_n, &c) != st->repl_n)
		return io_errorf(err, EBADMSG, "pre_tokenizer Metaspace: replacement is not one character");
	memcpy(st->repl, json_string_value(r), st->repl_n);
	st->split = !json_is_false(json_object_get(o, "split"));
	if (json_is_false(json_object_get(o, "add_prefix_space")) || (scheme && !strcmp(scheme, "never")))
		st->scheme = TOK_NEVER;
	else if (scheme && !strcmp(scheme, "first"))
		st->scheme = TOK_FIRST;
	else if (scheme && strcmp(scheme, "always"))
		return io_errorf(err, EINVAL, "pre_tokenizer Metaspace: prepend_scheme \"%.40s\" is not known", scheme);
	return 0;
}

static int load_byte_level(struct io_tokenizer *t, json_t *o, struct io_error *err)
{
	if (json_is_true(json_object_get(o, "add_prefix_space")) && !new_stage(t, TOK_PREFIX_SPACE, err))
		return -1;
	if (!json_is_false(json_object_get(o, "use_regex")) && regex_stage(t, GPT2_WORDS, TOK_ISOLATED, 0, err))
		return -1;
	if (t->byte_level)
		return io_errorf(err, EINVAL, "pre_tokenizer: ByteLevel twice is not supported");
	t->byte_level = 1;
	return 0;
}

int tok_load_stages(struct io_tokenizer *t, json_t *o, int depth, struct io_error *err)
{
	const char *type = json_string_value(json_object_get(o, "type"));
	json_t *sub;
	size_t i;

	if (!o || json_is_null(o))
		return 0;
	if (!type || depth > MAX_DEPTH)
		return io_errorf(err, EBADMSG, "pre_tokenizer has no type, or nests too deep");
	if (!strcmp(type, "Sequence")) {
		json_array_foreach (json_object_get(o, "pretokenizers"), i, sub)
			if (tok_load_stages(t, sub, depth + 1, err))
				return -1;
		return 0;
	}
	if (!strcmp(type, "Split"))
		return load_split(t, o, err);
	if (!strcmp(type, "ByteLevel"))
		return load_byte_level(t, o, err);
	if (!strcmp(type, "Metaspace"))
		return load_metaspace(t, o, err);
	if (!strcmp(type, "Digits"))
		return regex_stage(t, "\\p{N}", json_is_true(json_object_get(o, "individual_digits")) ? TOK_ISOLATED : TOK_CONTIGUOUS,
				   0, err);
	if (!strcmp(type, "Whitespace"))
		return regex_stage(t, "\\w+|[^\\w\\s]+", TOK_REMOVED, 1, err);
	if (!strcmp(type, "WhitespaceSplit"))
		return regex_stage(t, "\\s", TOK_REMOVED, 0, err);
	return io_errorf(err, EINVAL, "pre-tokenizer \"%.40s\" is not supported", type);
}
