/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_LOOP_UTIL_H
#define TESTS_UNIT_LOOP_UTIL_H
/* Runs one function on P virtual ranks, each in its own thread with its own kernels context. cmocka's checks must not be
 * used in it (they jump): it returns 0, or says what is wrong in v->err. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "libsp/sp.h"

struct vrank {
	struct sp_mesh *mesh;
	const struct kn_ops *ops;
	struct kn_ctx *ctx;
	void *arg;
	int (*fn)(struct vrank *v);
	int rank, rc;
	struct sp_error err;
};

static inline void *vrank_main(void *p)
{
	struct vrank *v = p;
	struct kn_open_args open = {.threads = 1};

	v->rc = -1;
	if (v->ops->open(&open, &v->ctx))
		return NULL;
	if (!sp_mesh_attach(v->mesh, v->ops, v->ctx, &v->err))
		v->rc = v->fn(v);
	if (v->rc)
		sp_mesh_abort(v->mesh, 1, v->err.text);
	sp_mesh_close(v->mesh);
	v->ops->close(v->ctx);
	return NULL;
}

/* Returns the number of ranks whose function failed, having printed why; -1 when the loop did not start (*err). */
static inline int run_loop(const struct sp_boot_opts *o, int world, int nnodes, const struct kn_ops *ops,
			   int (*fn)(struct vrank *v), void *arg, struct sp_error *err)
{
	struct sp_mesh **mesh = calloc((size_t)world, sizeof(*mesh));
	struct vrank *v = calloc((size_t)world, sizeof(*v));
	pthread_t *th = calloc((size_t)world, sizeof(*th));
	int bad = -1;

	if (!mesh || !v || !th || sp_boot_loop(o, world, nnodes, mesh, err))
		goto out;
	bad = 0;
	for (int r = 0; r < world; r++) {
		v[r] = (struct vrank){.mesh = mesh[r], .ops = ops, .arg = arg, .fn = fn, .rank = r};
		if (pthread_create(&th[r], NULL, vrank_main, &v[r]))
			abort();
	}
	for (int r = 0; r < world; r++) {
		pthread_join(th[r], NULL);
		if (v[r].rc) {
			bad++;
			fprintf(stderr, "rank %d: %s\n", r, v[r].err.text);
		}
	}
out:
	free(mesh);
	free(v);
	free(th);
	return bad;
}

/* xorshift64*, seeded: the same numbers everywhere */
static inline uint64_t rnd(uint64_t *s)
{
	*s ^= *s >> 12;
	*s ^= *s << 25;
	*s ^= *s >> 27;
	return *s * 2685821657736338717ull;
}

static inline int rnd_in(uint64_t *s, int lo, int hi)
{
	return lo + (int)(rnd(s) % (uint64_t)(hi - lo + 1));
}

static inline float rnd_f(uint64_t *s)
{
	return (float)((double)(rnd(s) >> 11) / 4503599627370496.0 - 1.0);
}

#endif
