/* SPDX-License-Identifier: Apache-2.0 */
/* Text clean-up of the tokenizer: UTF-8, Unicode normal forms (utf8proc), replacements. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "io/io_tok_priv.h"

int tok_utf8_at(const char *s, size_t n, uint32_t *c)
{
	const unsigned char *p = (const unsigned char *)s;

	if (p[0] < 0x80 || n < 2) {
		*c = p[0];
		return 1;
	}
	if (p[0] < 0xe0 || n < 3) {
		*c = (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
		return 2;
	}
	if (p[0] < 0xf0 || n < 4) {
		*c = (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
		return 3;
	}
	*c = (uint32_t)(p[0] & 7) << 18 | (uint32_t)(p[1] & 0x3f) << 12 | (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
	return 4;
}

/* Length of the well-formed sequence at p, or minus the length of the maximal subpart of an ill-formed one (Unicode 3.9,
 * table 3-7). */
static int utf8_step(const unsigned char *p, size_t n)
{
	unsigned char lo = 0x80, hi = 0xbf;
	int need;

	if (p[0] < 0x80)
		return 1;
	if (p[0] >= 0xc2 && p[0] <= 0xdf) {
		need = 1;
	} else if (p[0] >= 0xe0 && p[0] <= 0xef) {
		need = 2;
		lo = p[0] == 0xe0 ? 0xa0 : 0x80;
		hi = p[0] == 0xed ? 0x9f : 0xbf;
	} else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
		need = 3;
		lo = p[0] == 0xf0 ? 0x90 : 0x80;
		hi = p[0] == 0xf4 ? 0x8f : 0xbf;
	} else {
		return -1;
	}
	for (int i = 1; i <= need; i++) {
		if ((size_t)i >= n || p[i] < lo || p[i] > hi)
			return -i;
		lo = 0x80;
		hi = 0xbf;
	}
	return need + 1;
}

int tok_utf8_lossy(const char *s, size_t n, struct tok_buf *out)
{
	size_t i = 0, from = 0;

	while (i < n) {
		int k;

		if ((unsigned char)s[i] < 0x80) {
			i++;
			continue;
		}
		k = utf8_step((const unsigned char *)s + i, n - i);
		if (k > 0) {
			i += (size_t)k;
			continue;
		}
		if (tok_buf_add(out, s + from, i - from) || tok_buf_add(out, "\xef\xbf\xbd", 3))
			return -1;
		i += (size_t)-k;
		from = i;
	}
	return tok_buf_add(out, s + from, n - from);
}

int tok_is_space(uint32_t c)
{
	return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
	       c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

int tok_is_word(uint32_t c)
{
	switch (utf8proc_category((utf8proc_int32_t)c)) {
	case UTF8PROC_CATEGORY_LU:
	case UTF8PROC_CATEGORY_LL:
	case UTF8PROC_CATEGORY_LT:
	case UTF8PROC_CATEGORY_LM:
	case UTF8PROC_CATEGORY_LO:
	case UTF8PROC_CATEGORY_MN:
	case UTF8PROC_CATEGORY_MC:
	case UTF8PROC_CATEGORY_ME:
	case UTF8PROC_CATEGORY_ND:
	case UTF8PROC_CATEGORY_NL:
	case UTF8PROC_CATEGORY_PC:
		return 1;
	default:
		return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9); /* joiners, circled letters */
	}
}

static int map_unicode(const struct tok_norm *nm, const char *s, size_t n, struct tok_buf *out, struct io_error *err)
{
	static const int opts[] = {
		[TOK_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
		[TOK_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
		[TOK_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
		[TOK_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
	};
	size_t i = 0;
	utf8proc_uint8_t *p = NULL;
	utf8proc_ssize_t r;

	/* Nothing below U+00A0 changes in any form, nothing below U+0300 in NFC: most text needs no pass. */
	while (i < n && ((unsigned char)s[i] < 0x80 || (nm->kind == TOK_NFC && (unsigned char)s[i] < 0xcc)))
		i++;
	if (i == n)
		return tok_buf_add(out, s, n) ? io_errorf(err, ENOMEM, "no memory while normalizing text") : 0;
	r = utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &p, (utf8proc_option_t)opts[nm->kind]);
	if (r < 0)
		return io_errorf(err, ENOMEM, "text cannot be normalized: %s", utf8proc_errmsg(r));
	int bad = tok_buf_add(out, p, (size_t)r);

	free(p);
	return bad ? io_errorf(err, ENOMEM, "no memory while normalizing text") : 0;
}

static int replace_all(const struct tok_norm *nm, pcre2_match_data *md, const char *s, size_t n, struct tok_buf *out,
		       struct io_error *err)
{
	size_t at = 0, prev = 0;
	PCRE2_SIZE *ov = pcre2_get_ovector_pointer(md);

	while (at < n) {
		int r = pcre2_match(nm->re.code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK, md, NULL);

		if (r == PCRE2_ERROR_NOMATCH)
			break;
		if (r < 0)
			return io_errorf(err, EINVAL, "a normalizer pattern cannot be matched (PCRE2 error %d)", r);
		if (tok_buf_add(out, s + prev, ov[0] - prev) || tok_buf_add(out, nm->text, nm->text_n))
			return io_errorf(err, ENOMEM, "no memory while normalizing text");
		prev = at = ov[1];
		if (ov[0] == ov[1]) {
			uint32_t c;

			if (at >= n)
				break;
			at += (size_t)tok_utf8_at(s + at, n - at, &c);
		}
	}
	return tok_buf_add(out, s + prev, n - prev) ? io_errorf(err, ENOMEM, "no memory while normalizing text") : 0;
}

static int lower(const char *s, size_t n, struct tok_buf *out)
{
	for (size_t i = 0; i < n;) {
		uint32_t c;
		utf8proc_uint8_t b[4];
		int k = tok_utf8_at(s + i, n - i, &c);
		/* U+0130 is the one character whose full lower case is two characters */
		int bad = c == 0x130 ? tok_buf_add(out, "i\xcc\x87", 3) :
				       tok_buf_add(out, b, (size_t)utf8proc_encode_char(utf8proc_tolower((int32_t)c), b));

		if (bad)
			return -1;
		i += (size_t)k;
	}
	return 0;
}

static int strip(const struct tok_norm *nm, const char *s, size_t n, struct tok_buf *out)
{
	size_t a = 0;
	uint32_t c;

	while (nm->left && a < n) {
		int k = tok_utf8_at(s + a, n - a, &c);

		if (!tok_is_space(c))
			break;
		a += (size_t)k;
	}
	while (nm->right && n > a) {
		size_t b = n;

		do
			b--;
		while (b > a && ((unsigned char)s[b] & 0xc0) == 0x80);
		tok_utf8_at(s + b, n - b, &c);
		if (!tok_is_space(c))
			break;
		n = b;
	}
	return tok_buf_add(out, s + a, n - a);
}

int tok_normalize(const struct tok_norm *norms, int count, pcre2_match_data *md, const char *s, size_t len,
		  struct tok_buf *out, struct tok_buf *tmp, struct io_error *err)
{
	out->n = 0;
	if (tok_buf_add(out, s, len))
		return io_errorf(err, ENOMEM, "no memory while normalizing text");
	for (int i = 0; i < count; i++) {
		const struct tok_norm *nm = &norms[i];
		struct tok_buf x = *out;
		int rc = 0;

		tmp->n = 0;
		switch (nm->kind) {
		case TOK_NFC:
		case TOK_NFD:
		case TOK_NFKC:
		case TOK_NFKD:
			if (map_unicode(nm, out->p, out->n, tmp, err))
				return -1;
			break;
		case TOK_PREPEND:
			rc = (out->n && tok_buf_add(tmp, nm->text, nm->text_n)) || tok_buf_add(tmp, out->p, out->n);
			break;
		case TOK_REPLACE:
			if (replace_all(nm, md, out->p, out->n, tmp, err))
				return -1;
			break;
		case TOK_LOWER:
			rc = lower(out->p, out->n, tmp);
			break;
		case TOK_STRIP:
			rc = strip(nm, out->p, out->n, tmp);
			break;
		}
		if (rc)
			return io_errorf(err, ENOMEM, "no memory while normalizing text");
		*out = *tmp;
		*tmp = x;
	}
	return 0;
}
