/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_METRICS_H
#define TRAINER_METRICS_H
/*
 * metrics.jsonl, one object a logged step:
 *
 *   {"step":1,"loss":5.55,"grad_norm":3.1,"learning_rate":5e-05,"epoch":0.001,"tokens":4096,"targets":4080,"tokens_seen":4096,
 *    "time":{"unix":1700000000.123,"step_seconds":0.21,"tokens_per_second":19500.0,"gemm":0.1,...}}
 *
 * Everything but "time" is a function of configuration, dataset and mesh and is written with the digits that give the same bits
 * back; two runs are compared by dropping that key. A line is one write to a file opened for appending. A run that resumes at step S cuts
 * the file after S first, so that a killed and resumed run leaves what an uninterrupted one leaves.
 */
#include <stdint.h>
#include "trainer/model.h"
#include "trainer/tr_err.h"

struct tr_metrics;
struct tr_metrics_line {
	int64_t step; /* 1-based */
	double loss, grad_norm, learning_rate, epoch;
	int64_t tokens, targets, tokens_seen;
	double step_seconds, tokens_per_second;
	struct tr_model_times times;
};

/* Opens, keeping lines of steps 1 .. keep_step. */
int tr_metrics_open(const char *path, int64_t keep_step, struct tr_metrics **out, struct tr_error *err);
int tr_metrics_write(struct tr_metrics *m, const struct tr_metrics_line *l, struct tr_error *err);
int tr_metrics_sync(struct tr_metrics *m, struct tr_error *err);
void tr_metrics_close(struct tr_metrics *m); /* NULL is fine */
/* First and last loss in the file, NaN when there is none; step of its last line, 0 when empty. */
void tr_metrics_summary(const struct tr_metrics *m, double *first, double *last, int64_t *last_step);

/* The line of the terminal, about once a second. */
struct tr_progress {
	int64_t first_step, total; /* steps done before this process began; steps in all */
	double begin, shown;       /* seconds, monotonic */
	int64_t tokens;            /* since shown */
};
double tr_clock(void); /* monotonic seconds */
void tr_progress_begin(struct tr_progress *p, int64_t first_step, int64_t total);
/* Counts a step; when a line is due fills buf and returns 1. */
int tr_progress_step(struct tr_progress *p, const struct tr_metrics_line *l, char *buf, size_t len);

#endif
