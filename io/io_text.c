/* SPDX-License-Identifier: Apache-2.0 */
#include "io/io_text.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void io__text_add(struct io__text *t, const char *s, size_t n)
{
	if (t->oom)
		return;
	if (n >= t->cap - t->n) {
		size_t cap = t->cap ? t->cap : 256;
		char *p;

		while (cap - t->n <= n) {
			if (cap > SIZE_MAX / 2) {
				t->oom = 1;
				return;
			}
			cap *= 2;
		}
		p = realloc(t->p, cap);
		if (!p) {
			t->oom = 1;
			return;
		}
		t->p = p;
		t->cap = cap;
	}
	memcpy(t->p + t->n, s, n);
	t->n += n;
	t->p[t->n] = '\0';
}

void io__text_str(struct io__text *t, const char *s)
{
	io__text_add(t, s, strlen(s));
}

void io__text_addf(struct io__text *t, const char *fmt, ...)
{
	char line[256], *big = NULL;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < sizeof(line)) {
		io__text_add(t, line, (size_t)n);
		return;
	}
	va_start(ap, fmt);
	n = vasprintf(&big, fmt, ap);
	va_end(ap);
	if (n < 0) {
		t->oom = 1;
		return;
	}
	io__text_add(t, big, (size_t)n);
	free(big);
}

int io__text_json(struct io__text *t, const char *s)
{
	json_t *j = json_string(s);
	char *d;

	if (!j)
		return -1;
	d = json_dumps(j, JSON_ENCODE_ANY);
	json_decref(j);
	if (!d) {
		t->oom = 1;
		return -1;
	}
	io__text_str(t, d);
	free(d);
	return 0;
}

void io__text_free(struct io__text *t)
{
	free(t->p);
	memset(t, 0, sizeof(*t));
}
