/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/schedule.h"
#include <math.h>

static double at_least_one(int64_t n) { return n > 1 ? (double)n : 1.0; }

double tr_schedule_factor(const struct tr_schedule *s, int64_t k)
{
	double w = at_least_one(s->warmup), rest = at_least_one(s->total - s->warmup), cosine;

	if (s->type == TR_LR_CONSTANT)
		return 1.0;
	if (k < s->warmup)
		return (double)k / w;
	switch (s->type) {
	case TR_LR_LINEAR:
		return fmax(0.0, (double)(s->total - k) / rest);
	case TR_LR_COSINE:
	case TR_LR_COSINE_MIN:
		cosine = 0.5 * (1.0 + cos(M_PI * 0.5 * 2.0 * ((double)(k - s->warmup) / rest)));
		if (s->type == TR_LR_COSINE_MIN)
			cosine = cosine * (1.0 - s->min_lr_rate) + s->min_lr_rate;
		return fmax(0.0, cosine);
	case TR_LR_CONSTANT:
	case TR_LR_CONSTANT_WARMUP:
		break;
	}
	return 1.0;
}

double tr_schedule_lr(const struct tr_schedule *s, int64_t k)
{
	return s->learning_rate * tr_schedule_factor(s, k);
}
