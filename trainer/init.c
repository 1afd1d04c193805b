/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/model_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/*
 * Philox4x32-10 (Salmon et al., SC'11): a keyed bijection of a 128-bit counter, so an element's value needs no state and no
 * order. Counter = (pair index, hash of the tensor's name), key = seed; one counter gives two uniforms of 53 bits and by
 * Box-Muller two normals, elements 2j and 2j + 1. Computed in double with the C library's log, cos and sin, then rounded
 * to fp32 once: a last-bit difference between C libraries survives rounding about once in 2^29 elements.
 */
void tr_philox(uint64_t seed, uint64_t hi, uint64_t lo, uint32_t out[4])
{
	uint32_t x[4] = { (uint32_t)lo, (uint32_t)(lo >> 32), (uint32_t)hi, (uint32_t)(hi >> 32) };
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)0xD2511F53u * x[0], p1 = (uint64_t)0xCD9E8D57u * x[2];
		uint32_t y0 = (uint32_t)(p1 >> 32) ^ x[1] ^ k0, y2 = (uint32_t)(p0 >> 32) ^ x[3] ^ k1;

		x[0] = y0;
		x[1] = (uint32_t)p1;
		x[2] = y2;
		x[3] = (uint32_t)p0;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	memcpy(out, x, sizeof(x));
}

static uint64_t name_hash(const char *name) /* FNV-1a */
{
	uint64_t h = 0xcbf29ce484222325u;

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * 0x100000001b3u;
	return h;
}

static double uniform53(uint32_t hi, uint32_t lo) /* (0, 1) */
{
	return ((double)((((uint64_t)hi << 32) | lo) >> 11) + 0.5) * 0x1p-53;
}

void tr_init_normal(uint64_t seed, const char *name, double std, int64_t first, int64_t n, float *out)
{
	uint64_t h = name_hash(name);
	int64_t i = 0;

	while (i < n) {
		int64_t at = first + i;
		uint32_t x[4];
		double r, a;

		tr_philox(seed, h, (uint64_t)(at / 2), x);
		r = std * sqrt(-2.0 * log(uniform53(x[0], x[1])));
		a = 2.0 * M_PI * uniform53(x[2], x[3]);
		if (at % 2 == 0)
			out[i++] = (float)(r * cos(a));
		if (i < n && (first + i) % 2 == 1)
			out[i++] = (float)(r * sin(a));
	}
}

static int is_suffix(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);

	return n >= k && !strcmp(s + n - k, end);
}

int tr_model_init(struct tr_model *m, uint64_t seed, struct tr_error *err)
{
	enum { CHUNK = 1 << 18 };
	float *buf = malloc(CHUNK * sizeof(*buf));
	int rc = -1;

	if (!buf)
		return tr_errorf(err, TR_EXIT_FAIL, "out of memory initialising the model");
	for (int64_t k = 0; k < m->nparams; k++) {
		const struct tr_param *p = &m->params[k];
		int bias = is_suffix(p->name, ".bias"), norm = !bias && p->ndim == 1;

		for (int64_t i = 0; i < p->count; i += CHUNK) {
			int64_t n = p->count - i < CHUNK ? p->count - i : CHUNK;

			if (bias || norm)
				for (int64_t j = 0; j < n; j++)
					buf[j] = norm ? 1.0f : 0.0f;
			else
				tr_init_normal(seed, p->name, m->config.initializer_range, i, n, buf);
			if (tr_k(m, err, "initialisation",
				 m->ops->copy(m->ctx, m->weights + p->offset + i, buf, (size_t)n * sizeof(*buf), KN_H2D)))
				goto out;
			/* buf is written again in the next round */
			if (tr_k(m, err, "initialisation", m->ops->sync(m->ctx)))
				goto out;
		}
	}
	rc = 0;
out:
	free(buf);
	return rc;
}
