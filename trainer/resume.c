/* SPDX-License-Identifier: Apache-2.0 */
/* Which checkpoint to continue from: the lead lists and decides, all ranks check and vote, then all load. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "io/io_ckpt.h"
#include "trainer/save.h"
#include "trainer/state.h"

#define CHUNK (1 << 20) /* elements read at once */

/* What the checkpoint root holds. */
struct found {
	int64_t *steps; /* newest first */
	int n, cap;
	int bad; /* step-N.bad-k: set aside earlier */
};

static int newest_first(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x < y) - (x > y);
}

static int add_step(struct found *f, int64_t step)
{
	for (int i = 0; i < f->n; i++)
		if (f->steps[i] == step)
			return 0;
	if (f->n == f->cap) {
		int cap = f->cap ? 2 * f->cap : 16;
		int64_t *p = realloc(f->steps, (size_t)cap * sizeof *p);
		if (!p)
			return -1;
		f->steps = p;
		f->cap = cap;
	}
	f->steps[f->n++] = step;
	return 0;
}

/* The store lists complete checkpoints only. A folder of a step that lacks its manifest is damage to be named, not to be passed
 * over in silence. */
static int add_folder(struct found *f, const char *name)
{
	char *end;
	int64_t step;

	if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9')
		return 0;
	step = strtoll(name + 5, &end, 10);
	f->bad += !strncmp(end, ".bad-", 5);
	return *end ? 0 : add_step(f, step);
}

static int add_folders(const char *root, struct found *f, struct tr_error *err)
{
	DIR *d = opendir(root);
	struct dirent *e;
	int rc = 0;

	if (!d && errno == ENOENT)
		return 0;
	if (!d)
		return tr_errorf(err, TR_EXIT_CHECKPOINT, "cannot read %.700s: %s", root, strerror(errno));
	for (errno = 0; !rc && (e = readdir(d)); errno = 0)
		rc = add_folder(f, e->d_name);
	if (rc || errno)
		rc = tr_errorf(err, TR_EXIT_CHECKPOINT, "cannot list %.700s: %s", root, strerror(rc ? ENOMEM : errno));
	closedir(d);
	return rc;
}

static int scan(const char *root, struct found *f, struct tr_error *err)
{
	struct io_error ioe = {0};
	int64_t *steps, n;
	int rc = 0;

	if (io_ckpt_list(root, &steps, &n, &ioe))
		return tr_error_io(err, TR_EXIT_CHECKPOINT, &ioe);
	for (int64_t i = 0; i < n && !rc; i++)
		rc = add_step(f, steps[i]);
	free(steps);
	if (rc)
		return tr_errorf(err, TR_EXIT_FAIL, "out of memory");
	if (add_folders(root, f, err))
		return -1;
	if (f->n)
		qsort(f->steps, (size_t)f->n, sizeof *f->steps, newest_first);
	return 0;
}

/* Damage is what another start would find again; anything else (no permission, an I/O error) may pass. */
static int damaged(const struct io_error *e) { return e->code == EBADMSG || e->code == ENOENT; }

/* All ranks open, then share the checking of hashes. 0 good, 1 damaged (text in err), -1 anything else; equal on all ranks. */
static int open_checked(struct tr_rank *r, int64_t step, struct io_ckpt **out, struct tr_error *err)
{
	struct io_error ioe = {0};
	struct sp_error se = {0};
	int64_t kind;
	int rc;

	rc = io_ckpt_open(r->ckpt_root, step, out, &ioe);
	for (int i = r->slot; !rc && i < io_ckpt_nfiles(*out); i += r->info.world)
		rc = io_ckpt_verify_file(*out, i, &ioe);
	kind = !rc ? 0 : damaged(&ioe) ? 1 : 2;
	if (rc)
		tr_error_io(err, TR_EXIT_CHECKPOINT, &ioe);
	if (sp_comm_host_max(r->world, &kind, 1, &se)) {
		*err = (struct tr_error){0};
		return tr_error_sp(err, &se);
	}
	if (!kind)
		return 0;
	tr_vote(r, rc, err);
	if (!r->agreed) /* the vote itself failed */
		return -1;
	r->agreed = kind == 2;
	return kind == 2 ? -1 : 1;
}

static int read_into(struct tr_rank *r, const struct io_ckpt *c, const char *name, int64_t begin, int64_t end, float *dst,
		     float *staging, struct tr_error *err)
{
	struct io_error ioe = {0};

	for (int64_t at = begin; at < end; at += CHUNK) {
		int64_t stop = end - at > CHUNK ? at + CHUNK : end;
		if (io_ckpt_read(c, name, at, stop, staging, &ioe))
			return tr_error_io(err, TR_EXIT_CHECKPOINT, &ioe);
		if (r->ops->copy(r->ctx, dst + (at - begin), staging, (size_t)(stop - at) * sizeof(float), KN_H2D) ||
		    r->ops->sync(r->ctx))
			return tr_errorf(err, TR_EXIT_FAIL, "%s: %s", r->ops->name, r->ops->strerror(r->ctx));
	}
	return 0;
}

static int check_tensor(const struct io_ckpt *c, const char *name, const struct tr_param *p, struct tr_error *err)
{
	const struct io_tensor *t = io_ckpt_find(c, name);

	if (!t)
		return tr_errorf(err, TR_EXIT_CHECKPOINT, "%.500s has no tensor %s", io_ckpt_path(c), name);
	if (t->dtype != IO_F32 || t->count != p->count || t->ndim != p->ndim || t->dims[0] != p->dims[0])
		return tr_errorf(err, TR_EXIT_CHECKPOINT, "%.500s: tensor %s has %" PRId64 " elements of %s in %d dimensions, the "
				 "model needs %" PRId64 " of F32 in %d", io_ckpt_path(c), name, t->count,
				 io_dtype_name(t->dtype), t->ndim, p->count, p->ndim);
	return 0;
}

/* The whole of a parameter, and of its moments what the optimizer keeps here: [begin, end) of the flat space. */
static int load_param(struct tr_rank *r, const struct io_ckpt *c, const struct tr_param *p, float *staging,
		      struct tr_error *err)
{
	static const char *const prefix[2] = {"exp_avg.", "exp_avg_sq."};
	int64_t begin, end, lo, hi;
	float *moments[2];
	char name[128];

	if (check_tensor(c, p->name, p, err) ||
	    read_into(r, c, p->name, 0, p->count, tr_model_weights(r->model) + p->offset, staging, err))
		return -1;
	tr_optim_state(r->optim, &begin, &end, &moments[0], &moments[1]);
	lo = p->offset > begin ? p->offset : begin;
	hi = p->offset + p->count < end ? p->offset + p->count : end;
	for (int k = 0; k < 2; k++) {
		snprintf(name, sizeof name, "%s%s", prefix[k], p->name);
		if (check_tensor(c, name, p, err))
			return -1;
		if (lo < hi && read_into(r, c, name, lo - p->offset, hi - p->offset, moments[k] + (lo - begin), staging, err))
			return -1;
	}
	return 0;
}

static int load(struct tr_rank *r, const struct io_ckpt *c, struct tr_error *err)
{
	int64_t n;
	const struct tr_param *params = tr_model_params(r->model, &n);
	float *staging = malloc(CHUNK * sizeof(float));
	int rc = 0;

	if (!staging)
		return tr_errorf(err, TR_EXIT_FAIL, "no memory to load a checkpoint");
	if (io_ckpt_ntensors(c) != 3 * n)
		rc = tr_errorf(err, TR_EXIT_CHECKPOINT, "%.500s holds %" PRId64 " tensors, the model and its moments have %" PRId64,
			       io_ckpt_path(c), io_ckpt_ntensors(c), 3 * n);
	for (int64_t i = 0; i < n && !rc; i++)
		rc = load_param(r, c, &params[i], staging, err);
	free(staging);
	return rc;
}

/* Takes an opened checkpoint over. Equal on all ranks. */
static int take(struct tr_rank *r, const struct io_ckpt *c, struct tr_error *err)
{
	char notes[1024], *line, *save = NULL, why[sizeof err->text];
	struct tr_state s;

	if (tr_vote(r, tr_state_parse(io_ckpt_state(c), &r->cfg, &r->data, &s, notes, sizeof notes, err), err)) {
		memcpy(why, err->text, sizeof why);
		snprintf(err->text, sizeof err->text, "%.300s belongs to another run: %.500s; change the configuration back, or "
			 "choose another output_dir", io_ckpt_path(c), why);
		return -1;
	}
	if (tr_vote(r, load(r, c, err), err))
		return -1;
	r->step = r->saved_step = s.step;
	r->tokens_seen = s.tokens_seen;
	for (line = strtok_r(notes, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		tr_say(r, "note: %s", line);
	tr_say(r, "resuming from %s", io_ckpt_path(c));
	return 0;
}

/* The lead's answer to "which one next?" */
struct decision {
	int64_t step; /* -1: none left */
	int64_t count, bad;
};

static int set_aside(struct tr_rank *r, int64_t step, struct tr_error *err)
{
	struct io_error ioe = {0};

	if (!r->lead)
		return 0;
	return io_ckpt_quarantine(r->ckpt_root, step, &ioe) ? tr_error_io(err, TR_EXIT_CHECKPOINT, &ioe) : 0;
}

static int nothing_found(struct tr_rank *r, const struct decision *d, struct tr_error *err)
{
	r->agreed = 1;
	if (d->count || d->bad)
		return tr_errorf(err, TR_EXIT_CHECKPOINT, "%.600s holds damaged checkpoints only (set aside as step-*.bad-*): "
				 "restore one, or move the folder away to start from the beginning", r->ckpt_root);
	if (r->cfg.resume == TR_RESUME_MUST)
		return tr_errorf(err, TR_EXIT_CHECKPOINT, "resume: must, but %.600s holds no checkpoint", r->ckpt_root);
	r->agreed = 0;
	return 0;
}

static int try_each(struct tr_rank *r, const struct found *f, struct tr_error *err)
{
	struct decision d = {0};

	for (int i = 0;; i++) {
		struct io_ckpt *c = NULL;
		struct sp_error se = {0};
		struct tr_error why = {0};
		int rc;

		if (r->lead)
			d = (struct decision){.step = i < f->n ? f->steps[i] : -1, .count = f->n, .bad = f->bad};
		if (sp_comm_host_bcast(r->world, &d, sizeof d, 0, &se))
			return tr_error_sp(err, &se);
		if (d.step < 0)
			return nothing_found(r, &d, err);
		if (r->cfg.resume == TR_RESUME_NEVER) {
			r->agreed = 1;
			return tr_errorf(err, TR_EXIT_CHECKPOINT, "resume: never, but %.500s holds checkpoints (step %" PRId64
					 "): choose another output_dir, or move that folder away", r->ckpt_root, d.step);
		}
		rc = open_checked(r, d.step, &c, &why);
		if (!rc)
			rc = take(r, c, &why);
		io_ckpt_close(c);
		if (rc <= 0) {
			*err = why;
			return rc;
		}
		tr_say(r, "note: the checkpoint of step %" PRId64 " is damaged and set aside: %s", d.step, why.text);
		if (tr_vote(r, set_aside(r, d.step, err), err))
			return -1;
	}
}

int tr_resume(struct tr_rank *r, struct tr_error *err)
{
	struct found f = {0};
	int rc = tr_vote(r, r->lead ? scan(r->ckpt_root, &f, err) : 0, err);

	if (!rc)
		rc = try_each(r, &f, err);
	free(f.steps);
	return rc;
}
