/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_TEXT_H
#define IO_IO_TEXT_H
/* Private to io: a growing string for the JSON files written here. Running out of memory is remembered and
 * reported once at the end (oom), so that callers need not check every piece. */
#include <stddef.h>

struct io__text {
	char *p; /* NUL-terminated once anything was added */
	size_t n, cap;
	int oom;
};
void io__text_add(struct io__text *t, const char *s, size_t n);
void io__text_str(struct io__text *t, const char *s);
void io__text_addf(struct io__text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* s as a JSON string with quotes; returns -1 when s is not valid UTF-8 (or memory is short, then oom is set too).
 */
int io__text_json(struct io__text *t, const char *s);
void io__text_free(struct io__text *t);

#endif
