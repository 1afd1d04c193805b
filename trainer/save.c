/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/save.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include "io/io_ckpt.h"
#include "trainer/hf_model.h"
#include "trainer/state.h"

/* What one rank writes: its range of the flat space, cut at parameters, three times (master, two moments). */
struct part {
	struct io_ckpt_slice *slices;
	char (*names)[128];
	int64_t n;
	float *host; /* copies when the backend's memory is not the host's, else NULL */
};

static void part_free(struct part *p)
{
	free(p->slices);
	free(p->names);
	free(p->host);
}

/* Host pointers to [begin, end) of weights, exp_avg and exp_avg_sq. */
static int to_host(struct tr_rank *r, struct part *p, const float *src[3], int64_t count, struct tr_error *err)
{
	size_t bytes = (size_t)count * sizeof(float);

	if (r->cfg.device != TR_DEVICE_CUDA)
		return 0;
	p->host = malloc(3 * bytes + 1);
	if (!p->host)
		return tr_errorf(err, TR_EXIT_CHECKPOINT, "no memory for a copy of %zu bytes to save", 3 * bytes);
	for (int k = 0; k < 3; k++) {
		float *dst = p->host + (size_t)k * (size_t)count;
		if (r->ops->copy(r->ctx, dst, src[k], bytes, KN_D2H) || r->ops->sync(r->ctx))
			return tr_errorf(err, TR_EXIT_CHECKPOINT, "%s: %s", r->ops->name, r->ops->strerror(r->ctx));
		src[k] = dst;
	}
	return 0;
}

static int part_fill(struct tr_rank *r, struct part *p, struct tr_error *err)
{
	static const char *const prefix[3] = {"", "exp_avg.", "exp_avg_sq."};
	int64_t np, begin, end;
	const struct tr_param *params = tr_model_params(r->model, &np);
	const float *src[3];
	float *m, *v;

	tr_optim_state(r->optim, &begin, &end, &m, &v);
	src[0] = tr_model_weights(r->model) + begin;
	src[1] = m;
	src[2] = v;
	if (to_host(r, p, src, end - begin, err))
		return -1;
	p->slices = calloc((size_t)np * 3 + 1, sizeof *p->slices);
	p->names = calloc((size_t)np * 3 + 1, sizeof *p->names);
	if (!p->slices || !p->names)
		return tr_errorf(err, TR_EXIT_CHECKPOINT, "no memory to list %" PRId64 " tensors", np);
	for (int k = 0; k < 3; k++)
		for (int64_t i = 0; i < np; i++) {
			const struct tr_param *q = &params[i];
			int64_t lo = q->offset > begin ? q->offset : begin;
			int64_t hi = q->offset + q->count < end ? q->offset + q->count : end;
			if (lo >= hi)
				continue;
			snprintf(p->names[p->n], sizeof p->names[0], "%s%s", prefix[k], q->name);
			p->slices[p->n] = (struct io_ckpt_slice){.tensor = p->names[p->n],
								 .dtype = IO_F32,
								 .ndim = q->ndim,
								 .begin = lo - q->offset,
								 .end = hi - q->offset,
								 .data = src[k] + (lo - begin)};
			memcpy(p->slices[p->n].dims, q->dims, sizeof q->dims);
			p->n++;
		}
	return 0;
}

/* The same token on every rank; names the temporary folder, never part of results. */
static int make_token(struct tr_rank *r, char token[17], struct tr_error *err)
{
	struct sp_error se = {0};
	uint64_t x = 0;

	if (r->lead && getrandom(&x, sizeof x, 0) != sizeof x)
		x = (uint64_t)getpid();
	if (sp_comm_host_bcast(r->world, &x, sizeof x, 0, &se))
		return tr_error_sp(err, &se);
	snprintf(token, 17, "%016" PRIx64, x);
	return 0;
}

static int begin(struct tr_rank *r, const char *token, struct tr_error *err)
{
	struct io_error ioe = {0};
	int64_t n, need;

	tr_model_params(r->model, &n);
	need = 12 * tr_model_total(r->model) + 2048 * n + 65536;
	/* metrics first: a checkpoint must never be newer than the lines it stands for */
	if (tr_metrics_sync(r->metrics, err))
		return -1;
	return io_ckpt_begin(r->ckpt_root, r->step, token, need, &ioe) ? tr_error_io(err, TR_EXIT_CHECKPOINT, &ioe) : 0;
}

static int write_part(struct tr_rank *r, const char *token, struct tr_error *err)
{
	struct io_error ioe = {0};
	struct part p = {0};
	int rc;

	if (r->info.coord.dp_replicate) /* copies of what replica 0 writes */
		return 0;
	rc = part_fill(r, &p, err);
	if (!rc && io_ckpt_write_part(r->ckpt_root, r->step, token, sp_comm_rank(sp_mesh_comm(r->mesh, SP_GROUP_SHARD)),
				      p.slices, p.n, &ioe))
		rc = tr_error_io(err, TR_EXIT_CHECKPOINT, &ioe);
	part_free(&p);
	return rc;
}

static int publish(struct tr_rank *r, const char *token, struct tr_error *err)
{
	struct tr_state s = {.step = r->step, .tokens_seen = r->tokens_seen};
	char *state = tr_state_format(&r->cfg, &r->data, &s);
	struct io_error ioe = {0};
	int rc;

	if (!state)
		return tr_errorf(err, TR_EXIT_CHECKPOINT, "no memory for trainer_state.json");
	rc = io_ckpt_publish(r->ckpt_root, r->step, token, sp_comm_size(sp_mesh_comm(r->mesh, SP_GROUP_SHARD)), state, &ioe);
	free(state);
	return rc ? tr_error_io(err, TR_EXIT_CHECKPOINT, &ioe) : 0;
}

/* Adds what a reader of the message needs: that the run is over and what is left. */
static int save_failed(struct tr_rank *r, const char *token, struct tr_error *err)
{
	char why[sizeof err->text], left[96] = "there is no earlier checkpoint";

	if (!r->agreed)
		return -1; /* a rank is lost; the next start sweeps the temporary folder */
	if (r->lead)
		io_ckpt_discard(r->ckpt_root, r->step, token);
	if (r->saved_step > 0)
		snprintf(left, sizeof left, "the checkpoint of step %" PRId64 " is complete", r->saved_step);
	memcpy(why, err->text, sizeof why);
	snprintf(err->text, sizeof err->text, "cannot save step %" PRId64 ": %.800s; training stopped, %s", r->step, why, left);
	return -1;
}

int tr_save(struct tr_rank *r, struct tr_error *err)
{
	struct io_error ioe = {0};
	char token[17];

	if (make_token(r, token, err))
		return -1;
	if (tr_vote(r, r->lead ? begin(r, token, err) : 0, err) || tr_vote(r, write_part(r, token, err), err) ||
	    tr_vote(r, r->lead ? publish(r, token, err) : 0, err))
		return save_failed(r, token, err);
	r->saved_step = r->step;
	if (r->lead && r->cfg.save_total_limit &&
	    io_ckpt_retain(r->ckpt_root, (int)r->cfg.save_total_limit, 0, &ioe)) /* costs space, not safety */
		tr_say(r, "note: an old checkpoint was not removed: %s", ioe.text);
	return 0;
}

static int export_model(struct tr_rank *r, int only_missing, struct tr_error *err)
{
	char dir[PATH_MAX + 16], probe[PATH_MAX + 32];
	int64_t n;
	const struct tr_param *params = tr_model_params(r->model, &n);

	snprintf(dir, sizeof dir, "%s/model", r->cfg.output_dir);
	snprintf(probe, sizeof probe, "%s/config.json", dir);
	if (only_missing && !access(probe, F_OK))
		return 0;
	return tr_hf_export(dir, &r->cfg.model, r->cfg.dataset, n, params, tr_hf_get_model, r->model, err);
}

int tr_export(struct tr_rank *r, int only_missing, struct tr_error *err)
{
	char why[sizeof err->text];

	if (!tr_vote(r, r->lead ? export_model(r, only_missing, err) : 0, err))
		return 0;
	if (r->agreed) {
		memcpy(why, err->text, sizeof why);
		snprintf(err->text, sizeof err->text, "cannot write the model directory: %.800s; the checkpoint of step %" PRId64
			 " is complete, the same command tries again", why, r->saved_step);
	}
	return -1;
}
