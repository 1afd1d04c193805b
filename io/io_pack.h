/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_PACK_H
#define IO_IO_PACK_H
/*
 * Packer: documents in, dataset folder out (io_dataset.h). Deterministic: the same documents in the same order and the
 * same options give the same bytes (shard uuids are derived from the contents). Published by one rename: the folder
 * appears complete or not at all; an existing folder is refused.
 */
#include <stddef.h>
#include <stdint.h>
#include "io/io_err.h"

enum io_packing { IO_PACK_BFD, IO_PACK_WRAPPED };

struct io_pack_opts {
	const char *out_dir;
	int64_t seq_length;         /* L >= 2 */
	enum io_packing packing;    /* bfd: best-fit-decreasing, no token lost; wrapped: one stream cut every L (one overlap) */
	int64_t shard_bytes;        /* target size of a shard's tokens; 0: 256 MiB */
	int64_t group_docs;         /* bfd window in documents; 0: 65536 */
	uint64_t seed;              /* recorded; the loader's default order */
	int64_t vocab_size;         /* ids must be below */
	int64_t eos_token_id;       /* appended to each document; -1: none */
	int64_t pad_token_id;       /* recorded; -1: none */
	const char *tokenizer_kind; /* "byte", "raw", "hf" */
	const char *tokenizer_dir;  /* files to carry along (tokenizer.json ...), or NULL. kind "byte" writes its own */
};

struct io_packer;
int io_packer_create(const struct io_pack_opts *opts, struct io_packer **out, struct io_error *err);
/* Adds one document of n >= 0 ids (eos not included). Empty documents are counted and skipped. */
int io_packer_add(struct io_packer *p, const uint32_t *ids, int64_t n, struct io_error *err);

struct io_pack_report {
	int64_t documents, empty_documents, split_documents, tokens, targets, samples, segments;
	double fill; /* tokens / (samples * L) */
	int nshards;
};
/* Writes what is left, verifies by reading back, publishes. The packer must be destroyed afterwards in any case. */
int io_packer_finish(struct io_packer *p, struct io_pack_report *report, struct io_error *err);
/* Without a successful finish, removes what was written. */
void io_packer_destroy(struct io_packer *p);

/* Byte-level vocabulary: id = byte value, 256 = <|endoftext|>, 257 = <|pad|>. */
#define IO_BYTE_VOCAB 258
#define IO_BYTE_EOS 256
#define IO_BYTE_PAD 257

/* Document sources: calls `emit` once a document, in order (folders are walked in byte order of names, hidden files and
 * links are skipped). Stops and returns -1 when emit does. Each file is one document for text; each line for jsonl.
 * field: JSON member holding the text (nested with dots). Invalid JSON or a missing/non-string field names file:line. */
typedef int (*io_emit_bytes)(void *arg, const char *text, size_t n, struct io_error *err);
typedef int (*io_emit_ids)(void *arg, const uint32_t *ids, int64_t n, struct io_error *err);
/* The walk itself: every regular file of path, or path when it is one. */
int io_source_walk(const char *path, int (*visit)(void *arg, const char *path, struct io_error *err), void *arg,
		   struct io_error *err);
int io_source_text(const char *path, io_emit_bytes emit, void *arg, struct io_error *err);
int io_source_jsonl(const char *path, const char *field, io_emit_bytes emit, void *arg, struct io_error *err);
/* Raw little-endian ids of `width` 2 or 4 bytes; documents end at `eos` (not passed on), or the whole file is one when
 * eos < 0. A size that is not a multiple of width is refused. */
int io_source_raw(const char *path, int width, int64_t eos, io_emit_ids emit, void *arg, struct io_error *err);

#endif
