/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_MODEL_UTIL_H
#define TESTS_UNIT_MODEL_UTIL_H
/*
 * Shared by test_model*.c, test_loss.c, test_optim.c and bench_step.c: weights and tokens by formula (the same one as
 * tests/golden/make_llama_golden.py), packed rows, and models on virtual ranks.
 *
 * Ranks run as threads, where cmocka must not jump out: their functions return -1 with an error text, and mu_run returns it
 * to the test's own thread.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libsp/sp.h"
#include "trainer/model.h"
#include "trainer/optim.h"
#include "trainer/params.h"

/* ---- numbers by formula ------------------------------------------------------------------------------------------ */

static inline uint64_t mu_fnv(const char *s)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (; *s; s++)
		h = (h ^ (unsigned char)*s) * 0x100000001b3u;
	return h;
}

static inline uint64_t mu_stream(const char *name, int64_t i)
{
	uint64_t z = mu_fnv(name) + (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u;

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

static inline float mu_weight(const struct tr_param *p, int64_t i)
{
	double u = (double)((int64_t)(mu_stream(p->name, i) >> 40) - (1 << 23));

	if (strstr(p->name, "embed_tokens"))
		return (float)(u * 0x1p-23);
	if (strstr(p->name, ".bias"))
		return (float)(u * 0x1p-26);
	return p->ndim == 1 ? (float)(1 + u * 0x1p-25) : (float)(u * 0x1p-25);
}

static inline void mu_fill_weights(struct tr_model *m) /* host backends */
{
	int64_t n;
	const struct tr_param *p = tr_model_params(m, &n);

	for (int64_t k = 0; k < n; k++)
		for (int64_t i = 0; i < p[k].count; i++)
			tr_model_weights(m)[p[k].offset + i] = mu_weight(&p[k], i);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

struct mu_row {
	int64_t tokens, ndoc, targets;
	int64_t *cu;
	uint32_t *ids;
	int32_t *labels;
	int64_t *pos;
};

/* Labels of a row from its ids: next token of the document, else ignored. */
static inline void mu_row_label(struct mu_row *r)
{
	r->targets = 0;
	for (int64_t d = 0; d < r->ndoc; d++)
		for (int64_t t = r->cu[d]; t < r->cu[d + 1]; t++) {
			int last = t + 1 == r->cu[d + 1];

			r->labels[t] = last ? IO_LABEL_IGNORE : (int32_t)r->ids[t + 1];
			r->pos[t] = t - r->cu[d];
			r->targets += !last;
		}
}

/* Row `index` of documents of the given lengths. */
static inline struct mu_row *mu_row_new(int index, const int64_t *lens, int64_t ndoc, int64_t vocab)
{
	struct mu_row *r = calloc(1, sizeof(*r));
	char name[32];

	if (!r)
		abort();
	r->ndoc = ndoc;
	r->cu = calloc((size_t)ndoc + 1, sizeof(*r->cu));
	for (int64_t i = 0; i < ndoc; i++)
		r->cu[i + 1] = r->cu[i] + lens[i];
	r->tokens = r->cu[ndoc];
	r->ids = malloc((size_t)r->tokens * sizeof(*r->ids));
	r->labels = malloc((size_t)r->tokens * sizeof(*r->labels));
	r->pos = malloc((size_t)r->tokens * sizeof(*r->pos));
	snprintf(name, sizeof(name), "tokens.%d", index);
	for (int64_t t = 0; t < r->tokens; t++)
		r->ids[t] = (uint32_t)((mu_stream(name, t) >> 33) % (uint64_t)vocab);
	mu_row_label(r);
	return r;
}

static inline void mu_row_free(struct mu_row *r)
{
	free(r->cu);
	free(r->ids);
	free(r->labels);
	free(r->pos);
	free(r);
}

/* The part of rank `rank` of p; points into r. */
static inline struct io_batch mu_batch(const struct mu_row *r, int p, int rank)
{
	struct io_batch b = { .tokens = r->tokens, .ndoc = r->ndoc, .cu = r->cu, .row_targets = r->targets,
			      .step_targets = r->targets, .step_tokens = r->tokens };

	sp_split(r->tokens, p, rank, &b.t0, &b.t1);
	b.ids = r->ids + b.t0;
	b.labels = r->labels + b.t0;
	b.positions = r->pos + b.t0;
	return b;
}

/* ---- models on virtual ranks ---------------------------------------------------------------------------------------- */

struct mu_rank {
	struct sp_mesh *mesh;
	struct sp_mesh_info info;
	const struct kn_ops *ops;
	struct kn_ctx *ctx;
	struct tr_model *m;
	struct tr_error err;
};
/* 0, or -1 with r->err set. */
typedef int (*mu_fn)(struct mu_rank *r, void *arg);

struct mu_job {
	const struct tr_model_config *config;
	const struct kn_ops *ops;
	int64_t tile;
	int threads;
	mu_fn fn;
	void *arg;
};
struct mu_thread {
	pthread_t id;
	const struct mu_job *job;
	struct mu_rank r;
	int rc;
};

static inline int mu_rank_body(struct mu_rank *r, const struct mu_job *job)
{
	struct kn_open_args ka = { .threads = job->threads };
	struct sp_error se = { 0 };
	struct tr_model_opts o = { .config = *job->config, .ops = job->ops, .loss_tile_tokens = job->tile };
	int rc = -1;

	r->ops = job->ops;
	if (job->ops->open(&ka, &r->ctx))
		return tr_errorf(&r->err, TR_EXIT_FAIL, "cannot open a kernels context");
	if (sp_mesh_attach(r->mesh, job->ops, r->ctx, &se))
		return tr_error_sp(&r->err, &se);
	sp_mesh_info(r->mesh, &r->info);
	o.ctx = r->ctx;
	o.sp = sp_mesh_comm(r->mesh, SP_GROUP_SP);
	if (tr_model_create(&o, &r->m, &r->err) == 0) {
		mu_fill_weights(r->m);
		rc = job->fn(r, job->arg);
	}
	return rc;
}

static inline void *mu_thread_main(void *arg)
{
	struct mu_thread *t = arg;

	t->rc = mu_rank_body(&t->r, t->job);
	if (t->rc)
		sp_mesh_abort(t->r.mesh, 1, t->r.err.text);
	tr_model_destroy(t->r.m);
	sp_mesh_close(t->r.mesh);
	if (t->r.ctx)
		t->job->ops->close(t->r.ctx);
	return NULL;
}

/* Runs job->fn on every rank of a mesh of the given sizes; weights are the formula's. Returns 0, or -1 with the text and code of
 * the first rank that failed by itself in *err. */
static inline int mu_run(const struct mu_job *job, struct sp_sizes sizes, struct tr_error *err)
{
	int world = sizes.sp * sizes.dp_shard * sizes.dp_replicate, rc = 0;
	struct sp_boot_opts bo = { .sizes = sizes, .timeout_s = 60 };
	struct mu_thread *t = calloc((size_t)world, sizeof(*t));
	struct sp_mesh **mesh = calloc((size_t)world, sizeof(*mesh));
	struct sp_error se = { 0 };

	if (sp_boot_loop(&bo, world, 1, mesh, &se)) {
		rc = tr_error_sp(err, &se);
		goto out;
	}
	for (int i = 0; i < world; i++) {
		t[i].job = job;
		t[i].r.mesh = mesh[i];
		if (pthread_create(&t[i].id, NULL, mu_thread_main, &t[i]))
			abort();
	}
	for (int i = 0; i < world; i++)
		pthread_join(t[i].id, NULL);
	for (int pass = 0; pass < 2; pass++) /* who failed by itself speaks before those who lost a peer */
		for (int i = 0; i < world; i++)
			if (t[i].rc && (pass || t[i].r.err.exit_code != TR_EXIT_PEER)) {
				rc = -1;
				tr_errorf(err, t[i].r.err.exit_code, "%s", t[i].r.err.text);
			}
out:
	free(t);
	free(mesh);
	return rc;
}

/* mu_run that must succeed. */
static inline void mu_run_ok(const struct mu_job *job, struct sp_sizes sizes)
{
	struct tr_error err = { 0 };

	if (mu_run(job, sizes, &err))
		fail_msg("sp %d dp_shard %d dp_replicate %d on %s: %s", sizes.sp, sizes.dp_shard, sizes.dp_replicate,
			 job->ops->name, err.text);
}

/* ---- comparisons ------------------------------------------------------------------------------------------------------ */

/* |x - y| / |y| in the 2-norm; |x| when y is all zero; infinite when any element is not finite. */
static inline double mu_distance(const float *x, const float *y, int64_t n)
{
	double d = 0, s = 0;

	for (int64_t i = 0; i < n; i++) {
		if (!isfinite(x[i]))
			return INFINITY;
		d += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
		s += (double)y[i] * y[i];
	}
	return sqrt(s > 0 ? d / s : d);
}

static inline void mu_near(const char *what, double x, double y, double tol)
{
	if (!(fabs(x - y) <= tol * fabs(y)))
		fail_msg("%s: %.12g, expected %.12g; relative error %.3g, allowed %.3g", what, x, y, fabs(x - y) / fabs(y), tol);
}

/* Every tensor of two flat spaces within tol of its own norm. */
static inline void mu_near_tensors(const char *what, const struct tr_param *p, int64_t n, const float *x, const float *y,
				   double tol)
{
	for (int64_t k = 0; k < n; k++) {
		double d = mu_distance(x + p[k].offset, y + p[k].offset, p[k].count);

		if (!(d <= tol))
			fail_msg("%s: %s differs by %.3g of its norm, allowed %.3g", what, p[k].name, d, tol);
	}
}

#endif
