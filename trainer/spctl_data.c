/* SPDX-License-Identifier: Apache-2.0 */
/* spctl inspect and spctl verify: what a dataset holds, and whether it is what was packed. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "io/io_dataset.h"
#include "io/io_pack.h"
#include "io/io_tokenizer.h"
#include "trainer/spctl.h"

struct view {
	struct io_dataset *ds;
	struct io_dataset_info info;
	struct io_tokenizer *tok; /* NULL: ids have no text */
	struct io_error err;
};

static int view_open(struct view *v, const char *dir)
{
	char path[4096];

	if (io_dataset_open(dir, &v->ds, &v->err) < 0)
		return -1;
	io_dataset_info(v->ds, &v->info);
	if (!v->info.tokenizer_sha256[0])
		return 0;
	snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
	return io_tokenizer_open(path, &v->tok, &v->err);
}

static void view_close(struct view *v)
{
	io_tokenizer_close(v->tok);
	io_dataset_close(v->ds);
}

static double fill_of(const struct io_dataset_info *i)
{
	return (double)i->tokens / ((double)i->samples * (double)i->seq_length);
}

static void print_info(const struct view *v)
{
	const struct io_dataset_info *i = &v->info;
	char hex[33];

	io_hash_hex(i->manifest_hash, hex);
	printf("dataset       %s\n", i->dir);
	printf("samples       %" PRId64 " of at most %" PRId64 " tokens, %s, %.1f%% full\n", i->samples, i->seq_length,
	       i->packing, 100 * fill_of(i));
	printf("tokens        %" PRId64 ", of which %" PRId64 " predict a next one\n", i->tokens, i->targets);
	printf("documents     %" PRId64 " in %" PRId64 " segments, %.1f tokens each\n", i->documents, i->segments,
	       (double)i->tokens / (double)i->segments);
	printf("vocabulary    %" PRId64 " ids (%s), %s tokenizer, end of text %" PRId64 ", padding %" PRId64 "\n",
	       i->vocab_size, i->vocab_size <= 65536 ? "u16" : "u32", i->tokenizer_kind, i->eos_token_id,
	       i->pad_token_id);
	printf("shards        %d\n", i->nshards);
	printf("hash          %s (of dataset.json)\n", hex);
}

static json_t *info_json(const struct view *v)
{
	const struct io_dataset_info *i = &v->info;
	char hex[33];

	io_hash_hex(i->manifest_hash, hex);
	return json_pack("{s:s, s:I, s:s, s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:i, s:f, s:s}", "dir",
			 i->dir, "seq_length", (json_int_t)i->seq_length, "packing", i->packing, "vocab_size",
			 (json_int_t)i->vocab_size, "eos_token_id", (json_int_t)i->eos_token_id, "pad_token_id",
			 (json_int_t)i->pad_token_id, "tokenizer", i->tokenizer_kind, "tokenizer_sha256",
			 i->tokenizer_sha256, "tokens", (json_int_t)i->tokens, "targets", (json_int_t)i->targets,
			 "samples", (json_int_t)i->samples, "segments", (json_int_t)i->segments, "documents",
			 (json_int_t)i->documents, "shards", i->nshards, "fill", fill_of(i), "manifest_xxh3", hex);
}

/* Decoded text of ids, or NULL when there is none to give. */
static char *text_of(const struct view *v, const uint32_t *ids, int64_t n, size_t *len)
{
	char *text = NULL;

	if (!v->tok || io_tokenizer_decode(v->tok, ids, n, 0, &text, len, NULL) < 0)
		return NULL;
	return text;
}

/* Control characters would let a text write to the terminal. */
static void print_text(const char *text, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)text[i];

		if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
			printf("\\x%02x", c);
		else
			putchar(c);
	}
}

static void print_sample(const struct view *v, int64_t index, const struct io_sample *s, const uint32_t *ids)
{
	printf("sample %" PRId64 ": %" PRId64 " tokens, %" PRId64 " targets, %" PRId64 " segments\n", index, s->tokens,
	       s->targets, s->nseg);
	for (int64_t j = 0, at = 0; j < s->nseg; at += s->seg_len[j++]) {
		size_t len = 0;
		char *text = text_of(v, ids + at, s->seg_len[j], &len);

		printf("--- segment %" PRId64 ": document %" PRIu64 ", tokens %" PRIu64 " to %" PRIu64 "\n", j,
		       s->seg_doc[j], s->seg_start[j], s->seg_start[j] + s->seg_len[j]);
		if (text)
			print_text(text, len);
		for (int64_t t = at; !text && t < at + s->seg_len[j]; t++)
			printf("%s%" PRIu32, t > at ? " " : "", ids[t]);
		putchar('\n');
		free(text);
	}
}

static json_t *sample_json(const struct view *v, int64_t index, const struct io_sample *s, const uint32_t *ids)
{
	json_t *segs = json_array();

	for (int64_t j = 0, at = 0; j < s->nseg; at += s->seg_len[j++]) {
		json_t *list = json_array(), *seg;
		size_t len = 0;
		char *text = text_of(v, ids + at, s->seg_len[j], &len);

		for (int64_t t = at; t < at + s->seg_len[j]; t++)
			json_array_append_new(list, json_integer(ids[t]));
		seg = json_pack("{s:I, s:I, s:I, s:o}", "document", (json_int_t)s->seg_doc[j], "start",
				(json_int_t)s->seg_start[j], "tokens", (json_int_t)s->seg_len[j], "ids", list);
		/* Left out where it is no UTF-8, which JSON cannot hold. */
		if (text)
			json_object_set_new(seg, "text", json_stringn(text, len));
		json_array_append_new(segs, seg);
		free(text);
	}
	return json_pack("{s:I, s:I, s:I, s:o}", "sample", (json_int_t)index, "tokens", (json_int_t)s->tokens, "targets",
			 (json_int_t)s->targets, "segments", segs);
}

static int show_sample(struct view *v, int64_t index, int json)
{
	struct io_sample s;
	uint32_t *ids = NULL;
	int rc = -1;

	if (io_dataset_sample(v->ds, index, &s, &v->err) < 0)
		return -1;
	ids = malloc((size_t)s.tokens * sizeof(*ids));
	if (!ids) {
		io_errorf(&v->err, 0, "out of memory for a sample of %" PRId64 " tokens", s.tokens);
		return -1;
	}
	if (io_dataset_read(v->ds, index, 0, s.tokens, ids, &v->err) == 0) {
		rc = 0;
		if (json) {
			json_t *o = sample_json(v, index, &s, ids);

			json_dumpf(o, stdout, JSON_COMPACT);
			putchar('\n');
			json_decref(o);
		} else {
			print_sample(v, index, &s, ids);
		}
	}
	free(ids);
	return rc;
}

int spctl_inspect(int argc, char **argv)
{
	const char *json = NULL, *sample = NULL;
	const struct spctl_opt opts[] = {
		{"json", NULL, "one JSON object instead of text", &json},
		{"sample", "I", "segments, ids and text of sample I instead", &sample},
		{NULL, NULL, NULL, NULL},
	};
	struct view v = {.ds = NULL};
	int64_t index = 0;
	int npos, rc;

	rc = spctl_options("inspect DIR [option ...]", "Shows what a dataset folder holds.", opts, argc, argv, &npos);
	if (rc < 0 && npos != 1)
		rc = spctl_fail(SPCTL_USAGE, "inspect", "one dataset folder is wanted, %d are given", npos);
	if (rc < 0 && sample)
		rc = spctl_int("inspect", "sample", sample, 0, INT64_MAX, 0, &index);
	if (rc >= 0)
		return rc;
	rc = view_open(&v, argv[1]);
	if (rc == 0 && sample) {
		rc = show_sample(&v, index, json != NULL);
	} else if (rc == 0 && json) {
		json_t *o = info_json(&v);

		json_dumpf(o, stdout, JSON_INDENT(1));
		putchar('\n');
		json_decref(o);
	} else if (rc == 0) {
		print_info(&v);
	}
	if (rc < 0)
		rc = spctl_fail(1, "inspect", "%s", v.err.text);
	view_close(&v);
	return rc;
}

struct verify {
	int tty;
	time_t shown;
};

static void verify_progress(void *arg, int64_t done, int64_t total)
{
	struct verify *v = arg;
	time_t now = time(NULL);

	if (!v->tty || now == v->shown)
		return;
	v->shown = now;
	fprintf(stderr, "\rverify: %.1f of %.1f MB\033[K", (double)done * 1e-6, (double)total * 1e-6);
}

static void verify_bad(void *arg, const char *text)
{
	struct verify *v = arg;

	fprintf(stderr, "%sbad: %s\n", v->tty ? "\r\033[K" : "", text);
}

int spctl_verify(int argc, char **argv)
{
	const struct spctl_opt opts[] = {{NULL, NULL, NULL, NULL}};
	struct verify v = {.tty = isatty(STDERR_FILENO)};
	struct io_error err = {.code = 0};
	int npos, rc;

	rc = spctl_options("verify DIR", "Checks every hash of a dataset folder; names each bad shard.", opts, argc, argv,
			   &npos);
	if (rc < 0 && npos != 1)
		rc = spctl_fail(SPCTL_USAGE, "verify", "one dataset folder is wanted, %d are given", npos);
	if (rc >= 0)
		return rc;
	rc = io_dataset_verify(argv[1], verify_progress, verify_bad, &v, &err);
	if (v.tty)
		fprintf(stderr, "\r\033[K");
	if (rc < 0)
		return spctl_fail(1, "verify", "%s", err.text);
	if (rc > 0)
		return spctl_fail(1, "verify", "%s: %d bad shard%s", argv[1], rc, rc == 1 ? "" : "s");
	printf("%s: every hash matches\n", argv[1]);
	return 0;
}
