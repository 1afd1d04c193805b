/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_RUN_H
#define TRAINER_RUN_H
/*
 * One rank's life, from a booted mesh to its exit code. With `--loop` several ranks live as threads of one process, so nothing
 * here is global.
 *
 *   run.c      dataset, agreement of all ranks, model, optimizer, memory report; the way out
 *   resume.c   which checkpoint to continue from, loading it
 *   loop.c     the training loop
 *   save.c     checkpoints, the model directory
 *   state.c    trainer_state.json
 *
 * Errors come in two kinds. One that every rank knows of (r->agreed: found by all, or put to a vote) is printed once, by the
 * lead, and all ranks leave in order. Any other is printed by the rank that has it, which then aborts the mesh: the others may be
 * inside a collective and cannot be asked.
 */
#include <pthread.h>
#include "libsp/sp.h"
#include "trainer/config.h"
#include "trainer/metrics.h"
#include "trainer/model.h"
#include "trainer/optim.h"

/* Standard output and error, shared by the virtual ranks of a process: an error is printed once. */
struct tr_console {
	pthread_mutex_t lock;
	int exit_code; /* of the first error */
};

struct tr_rank {
	struct tr_config cfg; /* this rank's copy, resolved */
	struct tr_console *console;
	struct sp_mesh *mesh;
	struct sp_mesh_info info;
	int ranks_here; /* ranks of this process */
	int threads;
	const struct kn_ops *ops;
	struct kn_ctx *ctx;
	struct sp_comm *world;
	int slot, lead; /* place in the mesh; slot 0 leads: it prints, writes metrics, publishes checkpoints */
	int agreed;     /* the error at hand is known to all ranks */
	struct io_dataset *ds;
	struct io_dataset_info data;
	struct tr_model *model;
	struct tr_optim *optim;
	struct tr_metrics *metrics; /* lead only */
	int lock_fd;                /* lead only, else -1 */
	char ckpt_root[PATH_MAX + 16];
	int64_t step, saved_step; /* optimizer steps done; step of the newest checkpoint, -1: none */
	int64_t tokens_seen;
};

/* Runs a rank and returns its exit code; closes the mesh. Errors are printed. */
int tr_run(const struct tr_config *cfg, struct sp_mesh *mesh, int ranks_here, struct tr_console *console);

/* Ends with the same result on every rank: 0 when rc was 0 everywhere, else -1 with the text of the first rank that failed and
 * r->agreed set. rc and *err are this rank's own outcome. Collective over the world. */
int tr_vote(struct tr_rank *r, int rc, struct tr_error *err);
/* A line of the lead on standard output. */
void tr_say(struct tr_rank *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints `line` as the process's error unless one was printed before; remembers the exit code. */
void tr_console_error(struct tr_console *c, int exit_code, const char *line);

int tr_loop(struct tr_rank *r, struct tr_error *err); /* loop.c */

#endif
