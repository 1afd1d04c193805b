/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_IO_TEST_H
#define TESTS_UNIT_IO_TEST_H
/* What the tests of io share: a fresh folder, small files, a generator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "io/io_file.h"

/* cmocka setup and teardown: *state is the path of an empty folder */
static inline int tmp_setup(void **state)
{
	const char *base = getenv("TMPDIR");
	char *dir = NULL;

	if (asprintf(&dir, "%s/io-test-XXXXXX", base ? base : "/tmp") < 0 || !mkdtemp(dir))
		return -1;
	*state = dir;
	return 0;
}

static inline int tmp_teardown(void **state)
{
	struct io_error err;
	int rc = io_remove_tree(*state, &err);

	free(*state);
	return rc;
}

/* dir/name; valid until eight more calls */
static inline const char *in(const char *dir, const char *name)
{
	static char *slot[8];
	static unsigned k;
	char *s = NULL;

	if (asprintf(&s, "%s/%s", dir, name) < 0)
		fail_msg("no memory");
	k = (k + 1) % 8;
	free(slot[k]);
	return slot[k] = s;
}

static inline void put_file(const char *path, const void *data, size_t n)
{
	FILE *f = fopen(path, "wb");

	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

static inline char *get_file(const char *path, size_t *n)
{
	struct io_error err;
	char *data;

	if (io_read_file(path, (size_t)1 << 30, &data, n, &err) != 0)
		fail_msg("%s", err.text);
	return data;
}

static inline uint64_t next_random(uint64_t *s)
{
	uint64_t z = (*s += 0x9e3779b97f4a7c15u);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* The call succeeded; its error text otherwise. */
#define ok(call)                                                                                                  \
	do {                                                                                                      \
		if ((call) != 0)                                                                                  \
			fail_msg("%s: %s", #call, err.text);                                                      \
	} while (0)

/* The call failed and its text contains `part`. */
#define refused(call, part)                                                                                       \
	do {                                                                                                      \
		memset(&err, 0, sizeof(err));                                                                     \
		assert_int_equal((call), -1);                                                                     \
		if (!strstr(err.text, part))                                                                      \
			fail_msg("%s: text \"%s\" lacks \"%s\"", #call, err.text, part);                          \
		assert_int_not_equal(err.code, 0);                                                                \
	} while (0)

#endif
