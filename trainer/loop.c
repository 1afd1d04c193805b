/* SPDX-License-Identifier: Apache-2.0 */
/* The training loop. Follow one step: batch -> vote -> rows forward and backward -> loss -> optimizer -> metrics -> checkpoint. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include "trainer/run.h"
#include "trainer/save.h"
#include "trainer/schedule.h"
#include "trainer/signals.h"

struct loop {
	struct tr_rank *r;
	struct io_loader *loader;
	struct tr_schedule schedule;
	struct tr_progress progress;
	struct tr_error pending; /* a failure of this rank that waits for the next vote */
};

/* The share of a row's tokens that this rank of the sp group holds. */
static void slice(void *arg, int64_t total, int64_t *t0, int64_t *t1)
{
	const struct tr_rank *r = arg;

	sp_split(total, r->info.sizes.sp, r->info.coord.sp, t0, t1);
}

static int open_loader(struct loop *lp, struct tr_error *err)
{
	struct tr_rank *r = lp->r;
	const struct tr_config *c = &r->cfg;
	struct io_error ioe = {0};
	struct io_loader_opts o = {
		.seed = (uint64_t)c->data_seed,
		.shuffle = c->shuffle,
		.global_batch = c->global_batch,
		.micro_batch = c->per_device_batch,
		.dp_rank = r->info.coord.dp_replicate * r->info.sizes.dp_shard + r->info.coord.dp_shard,
		.dp_size = (int)c->dp_size,
		.slice = slice,
		.slice_arg = r,
		.first_step = r->step,
		.prefetch = 4,
	};

	return io_loader_create(r->ds, &o, &lp->loader, &ioe) ? tr_error_io(err, TR_EXIT_DATA, &ioe) : 0;
}

static int next_batch(struct loop *lp, const struct io_batch **b, struct tr_error *err)
{
	struct io_error ioe = {0};

	return io_loader_next(lp->loader, b, &ioe) ? tr_error_io(err, TR_EXIT_DATA, &ioe) : 0;
}

/* All ranks agree whether to go on: *sig becomes the signal that asks to stop, and a failure of one is a failure of all. One small
 * message a step, so that nobody is left waiting in a collective. */
static int step_vote(struct loop *lp, int *sig, struct tr_error *err)
{
	struct tr_rank *r = lp->r;
	int64_t v[2] = {tr_signals_pending(), lp->pending.text[0] != 0};
	struct sp_error se = {0};

	if (sp_comm_host_max(r->world, v, 2, &se))
		return tr_error_sp(err, &se);
	*sig = (int)v[0];
	if (!v[1])
		return 0;
	if (lp->pending.text[0])
		*err = lp->pending;
	return tr_vote(r, lp->pending.text[0] ? -1 : 0, err);
}

static int backward(struct loop *lp, const struct io_batch *b, double *loss, struct tr_error *err)
{
	struct tr_rank *r = lp->r;
	double scale = b->step_targets ? 1.0 / (double)b->step_targets : 0.0, sum = 0;
	int64_t rows = r->cfg.global_batch / (r->cfg.per_device_batch * r->cfg.dp_size), targets = b->step_targets;
	struct sp_error se = {0};

	if (r->ops->zero(r->ctx, tr_model_grads(r->model), (size_t)tr_model_total(r->model) * sizeof(float)))
		return tr_errorf(err, TR_EXIT_FAIL, "%s: %s", r->ops->name, r->ops->strerror(r->ctx));
	for (int64_t m = 0; m < rows; m++) {
		if (m && next_batch(lp, &b, err))
			return -1;
		if (tr_model_row(r->model, b, 1, scale, &sum, NULL, err))
			return -1;
	}
	if (sp_comm_host_sum(r->world, &sum, 1, &se))
		return tr_error_sp(err, &se);
	*loss = targets ? sum / (double)targets : 0.0;
	if (isfinite(*loss))
		return 0;
	r->agreed = 1; /* the sum has the same bits everywhere */
	return tr_errorf(err, TR_EXIT_NUMBERS, "the loss of step %" PRId64 " is %s: stopped, nothing was saved after step %" PRId64
			 "; a smaller learning_rate or warmup_steps may help", r->step + 1,
			 isnan(*loss) ? "not a number" : "infinite",
			 r->saved_step > 0 ? r->saved_step : 0);
}

static int update(struct loop *lp, struct tr_metrics_line *l, struct tr_error *err)
{
	struct tr_rank *r = lp->r;
	struct tr_error e = {0};

	if (!tr_optim_step(r->optim, r->step + 1, l->learning_rate, &l->grad_norm, &e))
		return 0;
	if (e.exit_code != TR_EXIT_NUMBERS) {
		*err = e;
		return -1;
	}
	r->agreed = 1;
	return tr_errorf(err, TR_EXIT_NUMBERS, "%.700s (stopped, nothing was saved after step %" PRId64 ")", e.text,
			 r->saved_step > 0 ? r->saved_step : 0);
}

static void log_step(struct loop *lp, struct tr_metrics_line *l)
{
	struct tr_rank *r = lp->r;
	char line[256];

	tr_model_times(r->model, &l->times);
	if (!r->lead)
		return;
	if ((l->step % r->cfg.logging_steps == 0 || l->step == r->cfg.total_steps) && !lp->pending.text[0])
		tr_metrics_write(r->metrics, l, &lp->pending); /* a failure is put to the next vote */
	if (tr_progress_step(&lp->progress, l, line, sizeof line))
		tr_say(r, "%s", line);
}

static int one_step(struct loop *lp, const struct io_batch *b, struct tr_error *err)
{
	struct tr_rank *r = lp->r;
	double begin = tr_clock();
	struct tr_metrics_line l = {
		.step = r->step + 1,
		.learning_rate = tr_schedule_lr(&lp->schedule, r->step),
		.epoch = b->epoch,
		.tokens = b->step_tokens,
		.targets = b->step_targets,
		.tokens_seen = r->tokens_seen + b->step_tokens,
	};

	sp_mesh_set_step(r->mesh, l.step);
	if (backward(lp, b, &l.loss, err) || update(lp, &l, err))
		return -1;
	r->step = l.step;
	r->tokens_seen = l.tokens_seen;
	l.step_seconds = tr_clock() - begin;
	l.tokens_per_second = l.step_seconds > 0 ? (double)l.tokens / l.step_seconds : 0;
	log_step(lp, &l);
	return 0;
}

static int stop_for_signal(struct loop *lp, int sig, struct tr_error *err)
{
	struct tr_rank *r = lp->r;

	tr_say(r, "%s: saving step %" PRId64 " and stopping", tr_signals_name(sig), r->step);
	if (r->step > 0 && r->saved_step != r->step && tr_save(r, err))
		return -1;
	r->agreed = 1;
	return tr_errorf(err, TR_EXIT_PREEMPTED, "stopped by %s after step %" PRId64 "/%" PRId64
			 "; the same command continues from there", tr_signals_name(sig), r->step, r->cfg.total_steps);
}

static int steps(struct loop *lp, struct tr_error *err)
{
	struct tr_rank *r = lp->r;
	const struct tr_config *c = &r->cfg;

	while (r->step < c->total_steps) {
		const struct io_batch *b = NULL;
		int sig = 0;

		next_batch(lp, &b, &lp->pending);
		if (step_vote(lp, &sig, err))
			return -1;
		if (sig)
			return stop_for_signal(lp, sig, err);
		if (one_step(lp, b, err))
			return -1;
		if (c->save_steps && r->step % c->save_steps == 0 && r->step < c->total_steps && tr_save(r, err))
			return -1;
	}
	/* a failure to write the last line of the metrics is found here */
	if (step_vote(lp, &(int){0}, err))
		return -1;
	return r->saved_step == r->step ? 0 : tr_save(r, err);
}

int tr_loop(struct tr_rank *r, struct tr_error *err)
{
	const struct tr_config *c = &r->cfg;
	struct loop lp = {.r = r,
			  .schedule = {.type = (enum tr_lr_type)c->lr_type,
				       .learning_rate = c->learning_rate,
				       .min_lr_rate = c->min_lr_rate,
				       .warmup = c->warmup,
				       .total = c->total_steps}};
	int rc;

	if (tr_vote(r, open_loader(&lp, err), err)) {
		io_loader_destroy(lp.loader);
		return -1;
	}
	tr_progress_begin(&lp.progress, r->step, c->total_steps);
	rc = steps(&lp, err);
	io_loader_destroy(lp.loader);
	return rc;
}
