/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "io/io_file_priv.h"
#include "io/io_manifest.h"

static json_t *hash_json(struct io_hash128 h)
{
	char hex[33];

	io_hash_hex(h, hex);
	return json_string(hex);
}

static json_t *shard_json(const struct io_manifest_shard *s)
{
	json_t *ext = json_array();

	for (int i = 0; i < s->nextents; i++)
		if (json_array_append_new(ext, json_pack("[II]", (json_int_t)s->extents[i].off,
							 (json_int_t)s->extents[i].len)) < 0)
			goto fail;
	return json_pack("{s:s, s:I, s:o, s:o, s:I, s:I, s:I, s:o}", "file", s->file, "bytes", (json_int_t)s->bytes,
			 "xxh3", hash_json(s->xxh3), "meta_xxh3", hash_json(s->meta_xxh3), "samples",
			 (json_int_t)s->samples, "tokens", (json_int_t)s->tokens, "segments", (json_int_t)s->segments,
			 "extents", ext);
fail:
	json_decref(ext);
	return NULL;
}

static json_t *manifest_json(const struct io_manifest *m)
{
	json_t *shards = json_array();

	for (int i = 0; i < m->nshards; i++)
		if (json_array_append_new(shards, shard_json(&m->shards[i])) < 0) {
			json_decref(shards);
			return NULL;
		}
	return json_pack("{s:s, s:i, s:I, s:s, s:I, s:I, s:I, s:I, s:s, s:{s:s, s:s}, "
			 "s:{s:I, s:I, s:I, s:I, s:I}, s:o}",
			 "format", IO_DATASET_FORMAT, "version", IO_DATASET_VERSION, "seq_length",
			 (json_int_t)m->seq_length, "packing", m->packing, "seed", (json_int_t)m->seed, "vocab_size",
			 (json_int_t)m->vocab_size, "eos_token_id", (json_int_t)m->eos_token_id, "pad_token_id",
			 (json_int_t)m->pad_token_id, "dtype", m->width == 2 ? "u16" : "u32", "tokenizer", "kind",
			 m->tokenizer_kind, "sha256", m->tokenizer_sha256, "counts", "tokens", (json_int_t)m->tokens,
			 "targets", (json_int_t)m->targets, "samples", (json_int_t)m->samples, "segments",
			 (json_int_t)m->segments, "documents", (json_int_t)m->documents, "shards", shards);
}

int io__manifest_write(const char *dir, const struct io_manifest *m, struct io_error *err)
{
	char *path = io__strf(err, "%s/dataset.json", dir), *text = NULL, *nl = NULL;
	json_t *root = NULL;
	int rc = -1;

	if (!path)
		return -1;
	root = manifest_json(m);
	text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
	nl = text ? io__strf(err, "%s\n", text) : NULL;
	if (nl)
		rc = io_write_file(path, nl, strlen(nl), err);
	else
		io_errorf(err, ENOMEM, "%s: out of memory", path);
	json_decref(root);
	free(nl);
	free(text);
	free(path);
	return rc;
}
