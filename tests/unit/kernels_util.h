/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_KERNELS_UTIL_H
#define TESTS_UNIT_KERNELS_UTIL_H
/* Shared by test_kernels_*.c: seeded numbers, guarded buffers, comparison with an error report. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

/* xorshift64*: the same numbers everywhere */
static inline float tk_rand(uint64_t *s)
{
	*s ^= *s >> 12;
	*s ^= *s << 25;
	*s ^= *s >> 27;
	return (float)((double)((*s * 2685821657736338717ull) >> 40) / (1 << 23) - 1.0);
}

/* n numbers in [-a, a); exactly n floats on the heap, so that ASan sees any access past them. */
static inline float *tk_new(int64_t n, float a, uint64_t seed)
{
	float *p = malloc((size_t)(n ? n : 1) * sizeof(*p));
	uint64_t s = seed * 0x9e3779b97f4a7c15ull + 1;

	assert_non_null(p);
	for (int i = 0; i < 8; i++)
		tk_rand(&s);
	for (int64_t i = 0; i < n; i++)
		p[i] = a * tk_rand(&s);
	return p;
}

static inline float *tk_copy(const float *x, int64_t n)
{
	float *p = malloc((size_t)(n ? n : 1) * sizeof(*p));

	assert_non_null(p);
	memcpy(p, x, (size_t)n * sizeof(*p));
	return p;
}

/* max |x - y| <= tol * max(|y|max, floor); a NaN on either side fails. */
static inline void tk_close_(const char *what, const float *x, const float *y, int64_t n, double tol, double floor_,
			     const char *file, int line)
{
	double big = floor_, worst = 0;
	int64_t at = 0;

	for (int64_t i = 0; i < n; i++)
		big = fmax(big, fabs((double)y[i]));
	for (int64_t i = 0; i < n; i++) {
		double e = fabs((double)x[i] - y[i]);

		if (!(e <= worst)) {
			worst = e;
			at = i;
			if (isnan(e))
				break;
		}
	}
	if (worst <= tol * big)
		return;
	print_error("%s: element %lld of %lld: %.9g, expected %.9g; error %.3g of the largest, allowed %.3g\n", what,
		    (long long)at, (long long)n, (double)x[at], (double)y[at], worst / big, tol);
	_fail(file, line);
}
#define tk_close(what, x, y, n, tol) tk_close_(what, x, y, n, tol, 1e-30, __FILE__, __LINE__)

static inline struct kn_ctx *tk_open(const struct kn_ops *ops, int threads)
{
	struct kn_open_args args = {.threads = threads};
	struct kn_ctx *c = NULL;

	assert_int_equal(ops->open(&args, &c), 0);
	assert_non_null(c);
	return c;
}

/* The call is refused with -EINVAL and a text that contains `part`. */
#define tk_refused(ops, ctx, call, part)                                                                           \
	do {                                                                                                       \
		assert_int_equal(call, -EINVAL);                                                                   \
		if (!strstr((ops)->strerror(ctx), part))                                                           \
			fail_msg("error text \"%s\" lacks \"%s\"", (ops)->strerror(ctx), part);                    \
	} while (0)

#endif
