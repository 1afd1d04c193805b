/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_STATE_H
#define TRAINER_STATE_H
/*
 * trainer_state.json:
 *
 *   {"format":"slurm-ulysses-state","version":1,"trainer":"0.1.0","step":100,"tokens_seen":409600,
 *    "identity":{"dataset":hex,"seed":"42","train_batch_size":"8","model.hidden_size":"256",...},
 *    "settings":{"learning_rate":"0.001",...},
 *    "mesh":{"world":4,"sp_size":4,...}}
 *
 * A run may only continue a checkpoint with the same identity: these keys decide what was learnt from what. Settings may change
 * and are noted. The mesh is a record; any mesh loads any checkpoint.
 */
#include "trainer/config.h"

struct tr_state {
	int64_t step, tokens_seen;
};
/* malloc'ed JSON text, or NULL without memory. */
char *tr_state_format(const struct tr_config *c, const struct io_dataset_info *d, const struct tr_state *s);
/* Reads `text` back. 0, or -1 with the reason when it is not such a file or belongs to another run (the text names the key that
 * differs). notes (may be NULL) gets lines of what changed, separated by newlines. */
int tr_state_parse(const char *text, const struct tr_config *c, const struct io_dataset_info *d, struct tr_state *out,
		   char *notes, size_t noteslen, struct tr_error *err);

#endif
