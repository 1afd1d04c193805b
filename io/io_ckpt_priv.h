/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_CKPT_PRIV_H
#define IO_IO_CKPT_PRIV_H
/*
 * Private to io: the checkpoint store's parts.
 *
 *   io_ckpt_model.c   the description of a checkpoint in memory and its checks (exact cover, exact files)
 *   io_ckpt_json.c    description <-> JSON: manifest.json and the part-<i>.json of a save in progress
 *   io_ckpt_save.c    begin, write_part      io_ckpt_publish.c  publish, discard
 *   io_ckpt_load.c    open, read, verify     io_ckpt_store.c    folder names, list, sweep, retain, quarantine
 *
 * Folders of one step N, and nothing else, belong to the store:
 *   step-N               published
 *   step-N.tmp-<token>   being written; swept by the next begin
 *   step-N.old-<random>  a published one for the moment it is being replaced where the file system cannot exchange
 *                        two names at once; counts as step-N while that is missing
 *   step-N.trash-<random> being deleted; swept by the next begin
 *   step-N.bad-<k>       set aside as damaged; never touched again
 */
#include <jansson.h>
#include <stdint.h>

#include "io/io_ckpt.h"
#include "io/io_text.h"

#define IO__CKPT_MAX_STEP     INT64_C(999999999999999)
#define IO__CKPT_MAX_PARTS    1000000
#define IO__CKPT_MAX_MANIFEST ((size_t)1 << 30)
#define IO__CKPT_MAX_STATE    ((size_t)64 << 20)
#define IO__CKPT_MAX_NAME     1000 /* bytes of a tensor name */

struct io__slice {
	int64_t tensor; /* index into tensors */
	int64_t begin, end, offset, bytes;
	int32_t file; /* index into files */
	struct io_hash128 hash;
};
struct io__ckpt_file {
	char *name;
	int64_t bytes, head_bytes; /* the head is what lies before the first tensor byte */
	struct io_hash128 head_hash;
	int64_t first, n; /* its slices in by_file, in file order; set by check */
	int fd;		  /* -1: opened for each use */
};
struct io__model {
	int64_t step;
	struct io_tensor *tensors; /* names owned; sorted and unique after check */
	int64_t ntensors, tensors_cap;
	struct io__slice *slices; /* by (tensor, begin) after check */
	int64_t nslices, slices_cap;
	struct io__ckpt_file *files; /* sorted by name after check */
	int64_t nfiles, files_cap;
	int64_t *tensor_first; /* [ntensors + 1] into slices; made by check */
	int64_t *by_file;      /* [nslices] into slices; made by check */
};
void io__model_free(struct io__model *m);
/* Add to the description; return the new index or -1. */
int64_t io__model_add_tensor(struct io__model *m, const struct io_tensor *t, const char *where,
			     struct io_error *err);
int64_t io__model_add_file(struct io__model *m, const struct io__ckpt_file *f, const char *where,
			   struct io_error *err);
int io__model_add_slice(struct io__model *m, const struct io__slice *s, const char *where, struct io_error *err);
/* Sorts tensors, slices and files; merges the entries of one tensor, whose dtype and shape must agree. */
int io__model_sort(struct io__model *m, const char *where, struct io_error *err);
/* Sorts, then checks everything: each tensor covered exactly once, each file tiled exactly by its head and its
 * slices. O(n log n). */
int io__model_check(struct io__model *m, const char *where, struct io_error *err);

/* Adds the "tensors" and "files" of a document to m. */
int io__ckpt_from_json(const json_t *root, struct io__model *m, const char *where, struct io_error *err);
/* Adds a whole document of the given format name and step to m ("format", "version", "step", then the above) after
 * checking its own hash. state: its "state_xxh3", NULL for a part. The caller checks the model. */
int io__ckpt_parse(const char *text, size_t len, const char *format, int64_t step, struct io__model *m,
		   struct io_hash128 *state, const char *where, struct io_error *err);
/* Whole documents. state: NULL for a part. The last member is the XXH3-128 of all bytes before it. */
int io__ckpt_dump(const struct io__model *m, const char *format, const struct io_hash128 *state,
		  struct io__text *out, struct io_error *err);
#define IO__CKPT_FORMAT	     "slurm-ulysses-checkpoint"
#define IO__CKPT_PART_FORMAT "slurm-ulysses-checkpoint-part"

/* part-00003.safetensors and nothing else */
int io__ckpt_part_name(const char *name);

int io__ckpt_check_step(const char *root, int64_t step, struct io_error *err);
int io__ckpt_check_token(const char *token, struct io_error *err);
/* root/step-N, root/step-N.tmp-<token>; malloc'ed */
char *io__ckpt_dir(const char *root, int64_t step, struct io_error *err);
char *io__ckpt_tmp(const char *root, int64_t step, const char *token, struct io_error *err);
/* The folder that holds a complete step: step-N or its .old- stand-in. NULL with ENOENT when there is none. */
char *io__ckpt_find(const char *root, int64_t step, struct io_error *err);
/* 1: a folder with a manifest.json; 0: something else is there; -1: nothing is there */
int io__ckpt_kind(const char *dir);
/* Leftovers of this store's naming in root are removed; an .old- whose step is missing is put back. What cannot be
 * removed is left for the next time: it is never taken for a checkpoint. */
void io__ckpt_sweep(const char *root);
/* Renames a folder of this store to step-N.trash-<random> and deletes it. A link is left alone. */
int io__ckpt_trash(const char *root, int64_t step, const char *dir, struct io_error *err);

/* Moves dir to the first free step-N.bad-<k>. */
int io__ckpt_set_aside(const char *root, int64_t step, const char *dir, struct io_error *err);

#endif
