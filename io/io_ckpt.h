/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_CKPT_H
#define IO_IO_CKPT_H
/*
 * Checkpoint store: root/step-00000100/, published by one rename.
 *
 *   manifest.json        {"format":"slurm-ulysses-checkpoint","version":1,"step":100,
 *                         "tensors":{name:{"dtype":"F32","shape":[...],"slices":[{"begin":e,"end":e,"file":f,"offset":b,
 *                         "bytes":b,"xxh3":hex},...]}},"files":{f:{"bytes":b}},"state_xxh3":hex}
 *   trainer_state.json   the trainer's own: step, data position, schedule, configuration hash, mesh
 *   part-00003.safetensors   one a rank: its slices, each a 1-D tensor named "<tensor>@<begin>-<end>"
 *
 * A tensor's slices [begin, end) are ranges of its flattened elements; publish refuses a set that does not cover every
 * tensor exactly once. Loading reads any range of any tensor, whoever wrote it: any mesh loads any checkpoint.
 *
 * Saving with many ranks (the caller provides barriers and votes between the phases; io knows no ranks):
 *   one rank    io_ckpt_begin       makes root/step-N.tmp-<token>, checks free space
 *   every rank  io_ckpt_write_part  writes and fsyncs part-<i>.safetensors and part-<i>.json there
 *   one rank    io_ckpt_publish     all parts there -> manifest, trainer_state, fsync, rename, fsync(root)
 *   one rank    io_ckpt_retain      keeps the newest K
 * A crash at any point leaves either the old state or the new; leftovers (tmp-, .trash-) are swept by begin.
 * A complete step-N that already exists is replaced (renamed to .trash- first, deleted after).
 */
#include <stddef.h>
#include <stdint.h>
#include "io/io_err.h"
#include "io/io_file.h"
#include "io/io_safetensors.h"

struct io_ckpt_slice {
	const char *tensor; /* global name */
	enum io_dtype dtype;
	int ndim;
	int64_t dims[IO_MAX_DIMS]; /* global shape */
	int64_t begin, end;        /* this slice's range of flattened elements */
	const void *data;          /* host, end - begin elements */
};

/* token: up to 32 characters of [0-9a-z], the same on all ranks of this save. need_bytes: size of all parts together;
 * refused with ENOSPC and the figures when the file system has less (5% slack). */
int io_ckpt_begin(const char *root, int64_t step, const char *token, int64_t need_bytes, struct io_error *err);
int io_ckpt_write_part(const char *root, int64_t step, const char *token, int part, const struct io_ckpt_slice *slices,
		       int64_t n, struct io_error *err);
/* state_json: contents of trainer_state.json. */
int io_ckpt_publish(const char *root, int64_t step, const char *token, int nparts, const char *state_json,
		    struct io_error *err);
/* Removes the temporary folder of a failed save. */
void io_ckpt_discard(const char *root, int64_t step, const char *token);
/* Deletes all but the newest `keep` (>= 1) complete checkpoints, and of the others those with step % keep_every == 0 stay
 * (keep_every 0: none). Rename to .trash- first. */
int io_ckpt_retain(const char *root, int keep, int64_t keep_every, struct io_error *err);

/* Steps of complete-looking checkpoints (folder name and manifest.json present), newest first; caller frees *steps.
 * A missing root is an empty list. */
int io_ckpt_list(const char *root, int64_t **steps, int64_t *n, struct io_error *err);

struct io_ckpt;
/* Opens by step: manifest parsed and checked (exact cover, file sizes, state hash). */
int io_ckpt_open(const char *root, int64_t step, struct io_ckpt **out, struct io_error *err);
void io_ckpt_close(struct io_ckpt *c);
const char *io_ckpt_state(const struct io_ckpt *c);           /* trainer_state.json's text */
const char *io_ckpt_path(const struct io_ckpt *c);
int io_ckpt_nfiles(const struct io_ckpt *c);
/* Checks every hash of file i (0 <= i < nfiles), so that ranks can share the work. */
int io_ckpt_verify_file(const struct io_ckpt *c, int i, struct io_error *err);
int64_t io_ckpt_ntensors(const struct io_ckpt *c);
/* offset is meaningless here; names sorted */
const struct io_tensor *io_ckpt_tensor(const struct io_ckpt *c, int64_t i);
const struct io_tensor *io_ckpt_find(const struct io_ckpt *c, const char *name);
/* Elements [begin, end) of tensor `name`, in its dtype. */
int io_ckpt_read(const struct io_ckpt *c, const char *name, int64_t begin, int64_t end, void *out, struct io_error *err);
/* Sets a damaged checkpoint aside: step-N -> step-N.bad-<k>, so that it is never chosen again. */
int io_ckpt_quarantine(const char *root, int64_t step, struct io_error *err);

#endif
