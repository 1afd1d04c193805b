/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_SAVE_H
#define TRAINER_SAVE_H
/*
 * Checkpoints of a run and the model directory at its end. All functions are collective over the world; a failure is the
 * same on every rank.
 *
 * A checkpoint holds for every parameter its fp32 master ("model.norm.weight", the Hugging Face name) and its moments
 * ("exp_avg.<name>", "exp_avg_sq.<name>"), cut where the optimizer's ranges are cut; the ranks of replica 0 write.
 */
#include "trainer/run.h"

/* Writes step-<r->step>; the older ones stay until it is complete. */
int tr_save(struct tr_rank *r, struct tr_error *err);
/* Finds the newest usable checkpoint as `resume` says and loads it; r->step is 0 when there is none. Damaged ones are set aside
 * and named. */
int tr_resume(struct tr_rank *r, struct tr_error *err);
/* Writes output_dir/model from the weights. With only_missing, leaves a model directory that is there alone. */
int tr_export(struct tr_rank *r, int only_missing, struct tr_error *err);

#endif
