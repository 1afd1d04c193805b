/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "io/io_dataset.h"
#include "io/io_file_priv.h"
#include "io/io_pack_priv.h"

#define GROUP_DOCS   65536
#define GROUP_TOKENS (INT64_C(64) << 20) /* bounds the memory of a group of long documents */
#define SHARD_BYTES  (INT64_C(256) << 20)
#define MAX_SHARD    (INT64_C(1) << 30) /* a shard is built in memory */

static int check_opts(const struct io_pack_opts *o, struct io_error *err)
{
	if (!o->out_dir || !o->out_dir[0])
		return io_errorf(err, EINVAL, "no output folder is given");
	if (o->seq_length < 2 || o->seq_length > IO_MAX_SEQ)
		return io_errorf(err, EINVAL, "sequence length %" PRId64 "; 2 to %" PRId64 " is allowed", o->seq_length,
				 IO_MAX_SEQ);
	if (o->vocab_size < 1 || o->vocab_size > INT64_C(1) << 31)
		return io_errorf(err, EINVAL, "vocabulary size %" PRId64 "; 1 to 2147483648 is allowed", o->vocab_size);
	if (o->eos_token_id < -1 || o->eos_token_id >= o->vocab_size)
		return io_errorf(err, EINVAL, "end-of-text id %" PRId64 " is outside the vocabulary of %" PRId64,
				 o->eos_token_id, o->vocab_size);
	if (o->pad_token_id < -1 || o->pad_token_id >= o->vocab_size)
		return io_errorf(err, EINVAL, "padding id %" PRId64 " is outside the vocabulary of %" PRId64,
				 o->pad_token_id, o->vocab_size);
	if (o->shard_bytes < 0 || o->shard_bytes > MAX_SHARD)
		return io_errorf(err, EINVAL, "shard size %" PRId64 "; 1 byte to 1 GiB is allowed (0: 256 MiB)",
				 o->shard_bytes);
	if (o->group_docs < 0)
		return io_errorf(err, EINVAL, "group of %" PRId64 " documents; 1 or more is allowed (0: %d)",
				 o->group_docs, GROUP_DOCS);
	if (!o->tokenizer_kind || strlen(o->tokenizer_kind) > 15 ||
	    (strcmp(o->tokenizer_kind, "byte") != 0 && strcmp(o->tokenizer_kind, "raw") != 0 &&
	     strcmp(o->tokenizer_kind, "hf") != 0))
		return io_errorf(err, EINVAL, "tokenizer kind must be byte, raw or hf");
	if (!strcmp(o->tokenizer_kind, "byte") && o->vocab_size != IO_BYTE_VOCAB)
		return io_errorf(err, EINVAL, "the byte vocabulary has %d ids, not %" PRId64, IO_BYTE_VOCAB,
				 o->vocab_size);
	if (!strcmp(o->tokenizer_kind, "hf") && !o->tokenizer_dir)
		return io_errorf(err, EINVAL, "tokenizer kind hf needs the tokenizer's folder");
	return 0;
}

static int refuse_existing(const char *dir, struct io_error *err)
{
	struct stat st;

	if (lstat(dir, &st) == 0)
		return io_errorf(err, EEXIST, "%s: exists already and is left as it is; name another folder or remove it",
				 dir);
	return 0;
}

/* The temporary folder lies beside the final one, so that the rename stays inside one file system. */
static int make_tmp(struct io_packer *p, struct io_error *err)
{
	char token[13], *parent = NULL;
	size_t n = strlen(p->out_dir);
	int rc = -1;

	while (n > 1 && p->out_dir[n - 1] == '/')
		p->out_dir[--n] = '\0';
	if (refuse_existing(p->out_dir, err) < 0)
		return -1;
	parent = io__dirname(p->out_dir, err);
	if (!parent || io_mkdirs(parent, err) < 0)
		goto fail;
	io__random_name(token, sizeof(token) - 1);
	p->tmp_dir = io__strf(err, "%s.tmp-%s", p->out_dir, token);
	if (!p->tmp_dir)
		goto fail;
	if (mkdir(p->tmp_dir, 0777) < 0) {
		int code = errno;

		io_errorf(err, code, "%s: cannot create the folder: %s", p->tmp_dir, strerror(code));
		free(p->tmp_dir);
		p->tmp_dir = NULL;
		goto fail;
	}
	rc = 0;
fail:
	free(parent);
	return rc;
}

static int place_tokenizer(struct io_packer *p, struct io_error *err)
{
	if (!strcmp(p->kind, "byte"))
		return io__bytevocab_write(p->tmp_dir, p->m.tokenizer_sha256, err);
	if (p->tokenizer_dir)
		return io__tokenizer_copy(p->tokenizer_dir, p->tmp_dir, p->m.tokenizer_sha256, err);
	return 0;
}

int io_packer_create(const struct io_pack_opts *opts, struct io_packer **out, struct io_error *err)
{
	struct io_packer *p;

	*out = NULL;
	if (check_opts(opts, err) < 0)
		return -1;
	p = calloc(1, sizeof(*p));
	if (!p)
		return io_errorf(err, ENOMEM, "out of memory");
	p->o = *opts;
	p->out_dir = strdup(opts->out_dir);
	p->tokenizer_dir = opts->tokenizer_dir ? strdup(opts->tokenizer_dir) : NULL;
	strcpy(p->kind, opts->tokenizer_kind);
	if (!p->o.group_docs)
		p->o.group_docs = GROUP_DOCS;
	p->buf.max_bytes = opts->shard_bytes ? opts->shard_bytes : SHARD_BYTES;
	p->m.seq_length = opts->seq_length;
	p->m.vocab_size = opts->vocab_size;
	p->m.eos_token_id = opts->eos_token_id;
	p->m.pad_token_id = opts->pad_token_id;
	p->m.seed = opts->seed;
	p->m.width = opts->vocab_size <= 65536 ? 2 : 4; /* ids are below vocab_size: 65535 still fits 16 bits */
	strcpy(p->m.packing, opts->packing == IO_PACK_BFD ? "bfd" : "wrapped");
	strcpy(p->m.tokenizer_kind, p->kind);
	if (!p->out_dir || (opts->tokenizer_dir && !p->tokenizer_dir)) {
		io_errorf(err, ENOMEM, "out of memory");
		goto fail;
	}
	if (make_tmp(p, err) < 0 || place_tokenizer(p, err) < 0)
		goto fail;
	*out = p;
	return 0;
fail:
	io_packer_destroy(p);
	return -1;
}

int io__pack_tokens(struct io_packer *p, const uint32_t *ids, int64_t n, struct io_error *err)
{
	int w = p->m.width;
	unsigned char *to;

	if (io__vec_room(&p->tok, n * w, 1, err) < 0)
		return -1;
	to = (unsigned char *)p->tok.p + p->tok.n;
	for (int64_t i = 0; i < n; i++, to += w)
		for (int b = 0; b < w; b++)
			to[b] = (unsigned char)(ids[i] >> (8 * b));
	p->tok.n += n * w;
	return 0;
}

/* A document of n tokens in p->tok from `tok` on, cut into pieces of at most L that overlap by one token. */
static int cut(struct io_packer *p, int64_t tok, int64_t n, uint64_t doc, struct io_error *err)
{
	int64_t L = p->o.seq_length;

	for (int64_t at = 0;; at += L - 1) {
		int64_t len = n - at < L ? n - at : L;

		if (io__vec_room(&p->pieces, 1, sizeof(struct io_piece), err) < 0)
			return -1;
		((struct io_piece *)p->pieces.p)[p->pieces.n++] = (struct io_piece){
			.tok = tok + at, .doc = doc, .start = (uint64_t)at, .len = (uint32_t)len};
		/* A further piece begins at this one's last token and holds at least one more. */
		if (at + len == n)
			return 0;
	}
}

static int add_bfd(struct io_packer *p, const uint32_t *ids, int64_t n, const uint32_t *eos, uint64_t doc,
		   struct io_error *err)
{
	int64_t tok = p->tok.n / p->m.width;

	if (io__pack_tokens(p, ids, n, err) < 0 || (eos && io__pack_tokens(p, eos, 1, err) < 0) ||
	    cut(p, tok, n + (eos ? 1 : 0), doc, err) < 0)
		return -1;
	p->group_n++;
	if (p->group_n >= p->o.group_docs || p->tok.n / p->m.width >= GROUP_TOKENS)
		return io__bfd_flush(p, err);
	return 0;
}

/* wrapped wants the document with its end mark in one array. */
static int add_wrapped(struct io_packer *p, const uint32_t *ids, int64_t n, const uint32_t *eos, uint64_t doc,
		       struct io_error *err)
{
	uint32_t *all;
	int rc;

	if (!eos)
		return io__wrap_add(p, ids, n, doc, err);
	all = malloc((size_t)(n + 1) * sizeof(*all));
	if (!all)
		return io_errorf(err, ENOMEM, "out of memory for a document of %" PRId64 " tokens", n);
	memcpy(all, ids, (size_t)n * sizeof(*all));
	all[n] = *eos;
	rc = io__wrap_add(p, all, n + 1, doc, err);
	free(all);
	return rc;
}

int io_packer_add(struct io_packer *p, const uint32_t *ids, int64_t n, struct io_error *err)
{
	uint64_t doc = (uint64_t)p->rep.documents;
	uint32_t eos = (uint32_t)p->o.eos_token_id;
	const uint32_t *end = p->o.eos_token_id >= 0 ? &eos : NULL;
	int rc;

	if (p->failed)
		return io_errorf(err, EINVAL, "packing has failed before; nothing can be added");
	for (int64_t i = 0; i < n; i++)
		if (ids[i] >= p->o.vocab_size)
			return io_errorf(err, EINVAL,
					 "document %" PRIu64 ": id %" PRIu32 " at token %" PRId64
					 "; the vocabulary has %" PRId64 " ids",
					 doc, ids[i], i, p->o.vocab_size);
	p->rep.documents++;
	if (n <= 0) {
		p->rep.empty_documents++;
		return 0;
	}
	if (n + (end ? 1 : 0) > p->o.seq_length)
		p->rep.split_documents++;
	rc = p->o.packing == IO_PACK_BFD ? add_bfd(p, ids, n, end, doc, err) : add_wrapped(p, ids, n, end, doc, err);
	if (rc < 0)
		p->failed = 1;
	return rc;
}

/* rename, but never onto something that appeared meanwhile (plain rename replaces an empty folder). */
static int publish(struct io_packer *p, struct io_error *err)
{
	char *parent = NULL;
	int rc = -1;

	if (io_fsync_dir(p->tmp_dir, err) < 0)
		return -1;
	if (renameat2(AT_FDCWD, p->tmp_dir, AT_FDCWD, p->out_dir, RENAME_NOREPLACE) < 0) {
		int code = errno;

		if (code != EINVAL && code != ENOSYS)
			return code == EEXIST ? refuse_existing(p->out_dir, err)
					      : io_errorf(err, code, "%s: cannot be renamed to %s: %s", p->tmp_dir,
							  p->out_dir, strerror(code));
		/* The file system knows no such rename. */
		if (refuse_existing(p->out_dir, err) < 0)
			return -1;
		if (rename(p->tmp_dir, p->out_dir) < 0) {
			code = errno;
			return io_errorf(err, code, "%s: cannot be renamed to %s: %s", p->tmp_dir, p->out_dir,
					 strerror(code));
		}
	}
	p->published = 1;
	parent = io__dirname(p->out_dir, err);
	if (parent)
		rc = io_fsync_dir(parent, err);
	free(parent);
	return rc;
}

static void first_bad(void *arg, const char *text)
{
	struct io_error *e = arg;

	if (!e->text[0])
		io_errorf(e, EBADMSG, "read back after writing: %s", text);
}

static int write_rest(struct io_packer *p, struct io_error *err)
{
	if (p->o.packing == IO_PACK_BFD ? io__bfd_flush(p, err) < 0 : io__wrap_flush(p, err) < 0)
		return -1;
	if (p->rep.tokens == 0)
		return io_errorf(err, EINVAL, "nothing to pack: %" PRId64 " documents, all of them empty",
				 p->rep.documents);
	if (io__pack_write_shard(p, err) < 0)
		return -1;
	p->m.tokens = p->rep.tokens;
	p->m.targets = p->rep.targets;
	p->m.samples = p->rep.samples;
	p->m.segments = p->rep.segments;
	p->m.documents = p->rep.documents;
	return io__manifest_write(p->tmp_dir, &p->m, err);
}

int io_packer_finish(struct io_packer *p, struct io_pack_report *report, struct io_error *err)
{
	struct io_error bad = {.code = 0};
	int n;

	if (p->failed || p->published)
		return io_errorf(err, EINVAL, "packing has %s before", p->failed ? "failed" : "been finished");
	p->failed = 1;
	if (write_rest(p, err) < 0)
		return -1;
	n = io_dataset_verify(p->tmp_dir, NULL, first_bad, &bad, err);
	if (n != 0) {
		if (n > 0 && err)
			*err = bad;
		return -1;
	}
	if (publish(p, err) < 0)
		return -1;
	p->failed = 0;
	p->rep.nshards = p->m.nshards;
	p->rep.fill = (double)p->rep.tokens / ((double)p->rep.samples * (double)p->o.seq_length);
	if (report)
		*report = p->rep;
	return 0;
}

void io_packer_destroy(struct io_packer *p)
{
	int keep = errno;

	if (!p)
		return;
	if (p->tmp_dir && !p->published)
		io_remove_tree(p->tmp_dir, NULL);
	io__shard_buf_free(&p->buf);
	io__manifest_free(&p->m);
	free(p->tok.p);
	free(p->pieces.p);
	free(p->out_dir);
	free(p->tmp_dir);
	free(p->tokenizer_dir);
	free(p);
	errno = keep;
}
