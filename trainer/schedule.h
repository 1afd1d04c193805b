/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_SCHEDULE_H
#define TRAINER_SCHEDULE_H
/*
 * Learning-rate schedules, exactly as Hugging Face's get_scheduler computes them: optimizer step k (counted from 0) uses
 * learning_rate * lambda(k). With w warm-up and n total steps, in double precision and this order of operations:
 *
 *   k < w (all but constant)  k / max(1, w)
 *   linear                    max(0, (n - k) / max(1, n - w))
 *   cosine                    max(0, 0.5 (1 + cos(2 pi 0.5 p))),  p = (k - w) / max(1, n - w)
 *   cosine_with_min_lr        max(0, 0.5 (1 + cos(2 pi 0.5 p)) (1 - r) + r),  r = min_lr_rate
 *   constant, constant_with_warmup   1
 */
#include <stdint.h>
#include "trainer/config.h"

struct tr_schedule {
	enum tr_lr_type type;
	double learning_rate, min_lr_rate;
	int64_t warmup, total;
};
/* lambda(k) */
double tr_schedule_factor(const struct tr_schedule *s, int64_t k);
double tr_schedule_lr(const struct tr_schedule *s, int64_t k);

#endif
