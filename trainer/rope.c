/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/model_priv.h"

#include <math.h>
#include <stdlib.h>

/*
 * The angles of Transformers' LlamaRotaryEmbedding, step for step, each step rounded to fp32 as there:
 *
 *   inv_freq[i] = 1 / base ** (2i / d)      exponent, power and reciprocal fp32
 *   angle       = pos * inv_freq[i]         one fp32 product
 *   cos, sin    of the fp32 angle           fp32 results
 *
 * Power, cosine and sine are taken in double and rounded once, i.e. correctly rounded in all but about one case in 2^29;
 * PyTorch's vector versions are within 1 ulp of that. Rounding the angle to fp32 is part of the model: it is what published
 * weights were trained with, and at position 2^20 it moves an angle by up to 2^-5.
 */
void tr_rope_table(double theta, int64_t d, int64_t first, int64_t n, float *cos_t, float *sin_t)
{
	for (int64_t i = 0; i < d / 2; i++) {
		float e = (float)(2 * i) / (float)d;
		float inv = 1.0f / (float)pow((double)(float)theta, (double)e);

		for (int64_t p = 0; p < n; p++) {
			float angle = (float)(first + p) * inv;

			cos_t[p * (d / 2) + i] = (float)cos((double)angle);
			sin_t[p * (d / 2) + i] = (float)sin((double)angle);
		}
	}
}

/* Tables for positions below `need`, grown to the next power of two (at most max_position_embeddings). */
int tr_rope_reserve(struct tr_model *m, int64_t need, struct tr_error *err)
{
	int64_t max = m->config.max_position_embeddings, half = m->config.head_dim / 2, rows = 256;
	float *host = NULL;
	size_t bytes;
	int rc = -1;

	if (need <= m->rope_rows)
		return 0;
	while (rows < need)
		rows *= 2;
	rows = rows < max ? rows : max;
	bytes = (size_t)(rows * half) * sizeof(float);
	host = malloc(2 * bytes);
	if (!host)
		return tr_errorf(err, TR_EXIT_FAIL, "out of memory for rotary tables of %lld positions", (long long)rows);
	tr_rope_table(m->config.rope_theta, m->config.head_dim, 0, rows, host, host + rows * half);
	m->ops->free(m->ctx, m->rope_cos);
	m->rope_cos = m->rope_sin = NULL;
	m->rope_rows = 0;
	if (tr_alloc(m, 2 * bytes, (void **)&m->rope_cos, "rotary tables", err))
		goto out;
	if (tr_k(m, err, "rotary tables", m->ops->copy(m->ctx, m->rope_cos, host, 2 * bytes, KN_H2D)) ||
	    tr_k(m, err, "rotary tables", m->ops->sync(m->ctx)))
		goto out;
	m->rope_sin = m->rope_cos + rows * half;
	m->rope_rows = rows;
	rc = 0;
out:
	free(host);
	return rc;
}
