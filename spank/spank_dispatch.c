/* SPDX-License-Identifier: Apache-2.0 */
/* The hooks Slurm calls. Each only chooses the code of the process it runs in. */
#include <time.h>

#include <slurm/spank.h>

#include "spank/spank_hooks.h"
#include "spank/spank_opts.h"

#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(20, 11, 0)
#error "Slurm 20.11 or newer is required"
#endif

/* Slurm finds everything below by name; the build hides all other symbols (spank_sp.lds). */
#define EXPORT __attribute__((visibility("default")))
#pragma GCC visibility push(default)
SPANK_PLUGIN(sp, 1)
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 5, 0)
/* An error of ours is the job's, not the node's: no drain, no requeue from node to node. */
int slurm_spank_init_failure_mode = ESPANK_JOB_FAILURE;
#endif
#pragma GCC visibility pop

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int done(const char *hook, double began, int rc)
{
	slurm_debug2(PLUG_PREFIX "%s took %.0f us", hook, now_us() - began);
	return rc;
}

EXPORT int slurm_spank_init(spank_t sp, int ac, char **av)
{
	double t = now_us();
	int rc = 0;

	switch (spank_context()) {
	case S_CTX_LOCAL:
		rc = plug_local_init(sp, ac, av);
		break;
	case S_CTX_ALLOCATOR:
		rc = plug_alloc_init(sp, ac, av);
		break;
	case S_CTX_REMOTE:
		rc = plug_remote_init(sp, ac, av);
		break;
	default: /* slurmd and prolog: nothing that could keep a node from starting */
		return 0;
	}
	return done("init", t, rc);
}

EXPORT int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	double t = now_us();
	int rc = 0;

	(void)ac;
	(void)av;
	switch (spank_context()) {
	case S_CTX_LOCAL:
		rc = plug_local_post_opt(sp);
		break;
	case S_CTX_ALLOCATOR:
		rc = plug_alloc_post_opt(sp);
		break;
	case S_CTX_REMOTE:
		rc = plug_remote_post_opt(sp);
		break;
	default:
		return 0;
	}
	return done("init_post_opt", t, rc);
}

EXPORT int slurm_spank_local_user_init(spank_t sp, int ac, char **av)
{
	double t = now_us();

	(void)ac;
	(void)av;
	return spank_context() == S_CTX_LOCAL ? done("local_user_init", t, plug_local_user_init(sp)) : 0;
}

EXPORT int slurm_spank_user_init(spank_t sp, int ac, char **av)
{
	double t = now_us();

	(void)ac;
	(void)av;
	return spank_context() == S_CTX_REMOTE ? done("user_init", t, plug_remote_user_init(sp)) : 0;
}

EXPORT int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	double t = now_us();

	(void)ac;
	(void)av;
	return spank_context() == S_CTX_REMOTE ? done("task_init", t, plug_remote_task_init(sp)) : 0;
}

EXPORT int slurm_spank_exit(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	return spank_context() == S_CTX_REMOTE ? plug_remote_exit(sp) : 0;
}
