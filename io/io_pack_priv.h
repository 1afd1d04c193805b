/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_PACK_PRIV_H
#define IO_IO_PACK_PRIV_H
/*
 * Private: documents become pieces (stretches of at most L tokens), pieces become samples, samples fill a shard in memory,
 * full shards go to the temporary folder.
 *
 *   io_pack.c         add, finish, publish
 *   io_pack_bfd.c     pieces of a group of documents -> bins          io_pack_wrap.c   one stream cut every L
 *   io_pack_shard.c   the shard in memory and its way into a file
 */
#include <stddef.h>
#include <stdint.h>
#include "io/io_manifest.h"
#include "io/io_pack.h"
#include "io/io_shard.h"

struct io_piece {
	int64_t tok;    /* first token, as an index into the tokens it is cut from */
	uint64_t doc, start;
	uint32_t len;
};

/* A growing array; room doubles. Returns 0 or -1 with *err. */
struct io_vec {
	void *p;
	int64_t n, cap; /* elements */
};
int io__vec_room(struct io_vec *v, int64_t more, size_t size, struct io_error *err);

/* The shard being filled; every array as in the file. */
struct io_shard_buf {
	struct io_vec tokens; /* bytes */
	struct io_vec off, targets, xxh3, seg_off, seg_len, seg_doc, seg_start;
	int64_t max_bytes;
};

struct io_packer {
	struct io_pack_opts o;
	char *out_dir, *tmp_dir, *tokenizer_dir;
	char kind[16];
	struct io_manifest m; /* as it grows; m.shards has cap_shards places */
	int cap_shards;
	struct io_shard_buf buf;
	struct io_pack_report rep;
	int failed, published;
	/* bfd: the group */
	struct io_vec tok;    /* bytes, width each token */
	struct io_vec pieces; /* struct io_piece */
	int64_t group_n;
	/* wrapped: the sample being filled; tokens in tok, segments in pieces */
};

/* pieces sorted by (len desc, doc, start), each at most L: bin[i] for each, best fit, FIFO among bins of equal space.
 * Returns the number of bins or -1. */
int64_t io__bfd_assign(const struct io_piece *pieces, int64_t n, int64_t L, int64_t *bin, struct io_error *err);
/* Packs and empties the group. */
int io__bfd_flush(struct io_packer *p, struct io_error *err);

int io__wrap_add(struct io_packer *p, const uint32_t *ids, int64_t n, uint64_t doc, struct io_error *err);
int io__wrap_flush(struct io_packer *p, struct io_error *err);

/* Appends n ids (and eos when >= 0 and add_eos) to p->tok in the dataset's width. */
int io__pack_tokens(struct io_packer *p, const uint32_t *ids, int64_t n, struct io_error *err);
/* One sample of these pieces of p->tok; a full shard is written first. */
int io__pack_sample(struct io_packer *p, const struct io_piece *const *pieces, int64_t n, struct io_error *err);
int io__pack_write_shard(struct io_packer *p, struct io_error *err);
void io__shard_buf_free(struct io_shard_buf *b);

/* The name a shard's contents give it, written as a UUID. */
void io__shard_uuid(const struct io_shard *s, char out[37]);

/* tokenizer.json and tokenizer_config.json of the byte vocabulary into dir; sha: SHA-256 of tokenizer.json. */
int io__bytevocab_write(const char *dir, char sha[65], struct io_error *err);
/* Copies the files of a tokenizer; tokenizer.json is required. */
int io__tokenizer_copy(const char *from, const char *to, char sha[65], struct io_error *err);

/* One line of a JSON-lines file; blank lines are skipped. Emits the text of `field`. */
int io__jsonl_line(const char *path, int64_t line, const char *text, size_t n, const char *field, io_emit_bytes emit,
		   void *arg, struct io_error *err);

#endif
