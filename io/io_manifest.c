/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "io/io_file_priv.h"
#include "io/io_manifest.h"

struct ctx {
	const char *path;
	struct io_error *err;
};

static int bad(const struct ctx *c, const char *where, const char *key, const char *want)
{
	return io_errorf(c->err, EBADMSG, "%s: \"%s%s\" %s", c->path, where, key, want);
}

/* where: prefix of the key in texts, like "counts." */
static int get_int(const struct ctx *c, const json_t *o, const char *where, const char *key, int64_t min,
		   int64_t max, int64_t *out)
{
	const json_t *v = json_object_get(o, key);

	if (!json_is_integer(v))
		return bad(c, where, key, v ? "must be an integer" : "is missing");
	*out = json_integer_value(v);
	if (*out < min || *out > max)
		return io_errorf(c->err, EBADMSG, "%s: \"%s%s\" is %" PRId64 "; %" PRId64 " to %" PRId64 " is allowed",
				 c->path, where, key, *out, min, max);
	return 0;
}

static int get_text(const struct ctx *c, const json_t *o, const char *where, const char *key, char *out, size_t cap)
{
	const json_t *v = json_object_get(o, key);

	if (!json_is_string(v))
		return bad(c, where, key, v ? "must be a string" : "is missing");
	if (json_string_length(v) >= cap)
		return bad(c, where, key, "is too long");
	strcpy(out, json_string_value(v));
	return 0;
}

static int get_hash(const struct ctx *c, const json_t *o, const char *where, const char *key, struct io_hash128 *out)
{
	char hex[33];

	if (get_text(c, o, where, key, hex, sizeof(hex)) < 0)
		return -1;
	return io_hash_parse(hex, out) == 0 ? 0 : bad(c, where, key, "must be 32 hexadecimal digits");
}

/* Names become paths below the dataset folder and nothing else. */
static int plain_name(const char *s)
{
	size_t n = strlen(s);

	return n > 0 && n < 200 && s[0] != '.' && !strchr(s, '/');
}

static int parse_extents(const struct ctx *c, const json_t *o, const char *where, int width,
			 struct io_manifest_shard *s)
{
	const json_t *a = json_object_get(o, "extents");
	int64_t left = s->tokens * width;

	if (!json_is_array(a) || json_array_size(a) == 0 || json_array_size(a) > IO_MAX_SHARDS)
		return bad(c, where, "extents", "must be a list of [offset, bytes]");
	s->nextents = (int)json_array_size(a);
	s->extents = calloc((size_t)s->nextents, sizeof(*s->extents));
	if (!s->extents)
		return io_errorf(c->err, ENOMEM, "%s: out of memory", c->path);
	for (int i = 0; i < s->nextents; i++) {
		const json_t *e = json_array_get(a, (size_t)i);
		const json_t *off = json_array_get(e, 0), *len = json_array_get(e, 1);
		struct io_extent *x = &s->extents[i];

		if (json_array_size(e) != 2 || !json_is_integer(off) || !json_is_integer(len))
			return bad(c, where, "extents", "must be a list of [offset, bytes]");
		*x = (struct io_extent){json_integer_value(off), json_integer_value(len)};
		if (x->off < 0 || x->len < 1 || x->len > left || x->len % width || x->off > s->bytes - x->len)
			return bad(c, where, "extents", "do not fit the shard's size");
		left -= x->len;
	}
	return left == 0 ? 0 : bad(c, where, "extents", "do not hold all of the shard's tokens");
}

static int parse_shard(const struct ctx *c, const json_t *o, int i, int width, struct io_manifest_shard *s)
{
	char where[40], name[256];

	snprintf(where, sizeof(where), "shards[%d].", i);
	if (!json_is_object(o))
		return bad(c, where, "", "must be an object");
	if (get_text(c, o, where, "file", name, sizeof(name)) < 0)
		return -1;
	if (!plain_name(name))
		return bad(c, where, "file", "must be a plain file name inside the dataset folder");
	s->file = strdup(name);
	if (!s->file)
		return io_errorf(c->err, ENOMEM, "%s: out of memory", c->path);
	/* 2^56 bytes keep every product below 2^63. */
	if (get_int(c, o, where, "bytes", 1, INT64_C(1) << 56, &s->bytes) < 0 ||
	    get_int(c, o, where, "tokens", 1, s->bytes / width, &s->tokens) < 0 ||
	    get_int(c, o, where, "samples", 1, s->tokens, &s->samples) < 0 ||
	    get_int(c, o, where, "segments", s->samples, s->tokens, &s->segments) < 0 ||
	    get_hash(c, o, where, "xxh3", &s->xxh3) < 0 || get_hash(c, o, where, "meta_xxh3", &s->meta_xxh3) < 0)
		return -1;
	return parse_extents(c, o, where, width, s);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int check_names(const struct ctx *c, const struct io_manifest *m)
{
	char **names = calloc((size_t)m->nshards, sizeof(*names));
	int rc = 0;

	if (!names)
		return io_errorf(c->err, ENOMEM, "%s: out of memory", c->path);
	for (int i = 0; i < m->nshards; i++)
		names[i] = m->shards[i].file;
	qsort(names, (size_t)m->nshards, sizeof(*names), by_name);
	for (int i = 1; rc == 0 && i < m->nshards; i++)
		if (!strcmp(names[i - 1], names[i]))
			rc = io_errorf(c->err, EBADMSG, "%s: shard %s is listed twice", c->path, names[i]);
	free(names);
	return rc;
}

static int parse_shards(const struct ctx *c, const json_t *root, struct io_manifest *m)
{
	const json_t *a = json_object_get(root, "shards");
	int64_t tokens = 0, samples = 0, segments = 0;
	size_t n = json_array_size(a);

	if (!json_is_array(a) || n == 0 || n > IO_MAX_SHARDS)
		return bad(c, "", "shards", "must be a list of 1 to 1000000 shards");
	m->shards = calloc(n, sizeof(*m->shards));
	if (!m->shards)
		return io_errorf(c->err, ENOMEM, "%s: out of memory", c->path);
	m->nshards = (int)n;
	for (int i = 0; i < m->nshards; i++) {
		struct io_manifest_shard *s = &m->shards[i];

		if (parse_shard(c, json_array_get(a, (size_t)i), i, m->width, s) < 0)
			return -1;
		if (s->tokens > m->tokens - tokens || s->samples > m->samples - samples ||
		    s->segments > m->segments - segments)
			return bad(c, "counts", "", "are less than what the shards hold");
		tokens += s->tokens;
		samples += s->samples;
		segments += s->segments;
	}
	if (tokens != m->tokens || samples != m->samples || segments != m->segments)
		return bad(c, "counts", "", "are more than what the shards hold");
	return check_names(c, m);
}

static int parse_counts(const struct ctx *c, const json_t *root, struct io_manifest *m)
{
	const json_t *o = json_object_get(root, "counts");
	const int64_t most = INT64_C(1) << 56;

	if (!json_is_object(o))
		return bad(c, "", "counts", o ? "must be an object" : "is missing");
	if (get_int(c, o, "counts.", "tokens", 1, most, &m->tokens) < 0 ||
	    get_int(c, o, "counts.", "samples", 1, m->tokens, &m->samples) < 0 ||
	    get_int(c, o, "counts.", "segments", m->samples, m->tokens, &m->segments) < 0 ||
	    get_int(c, o, "counts.", "targets", 0, m->tokens, &m->targets) < 0 ||
	    get_int(c, o, "counts.", "documents", 1, most, &m->documents) < 0)
		return -1;
	/* A segment of n tokens has n - 1 targets. */
	if (m->targets != m->tokens - m->segments)
		return bad(c, "counts.", "targets", "must be tokens - segments");
	return 0;
}

static int parse_tokenizer(const struct ctx *c, const json_t *root, struct io_manifest *m)
{
	const json_t *o = json_object_get(root, "tokenizer");
	size_t n;

	if (!json_is_object(o))
		return bad(c, "", "tokenizer", o ? "must be an object" : "is missing");
	if (get_text(c, o, "tokenizer.", "kind", m->tokenizer_kind, sizeof(m->tokenizer_kind)) < 0 ||
	    get_text(c, o, "tokenizer.", "sha256", m->tokenizer_sha256, sizeof(m->tokenizer_sha256)) < 0)
		return -1;
	n = strlen(m->tokenizer_sha256);
	if ((n != 0 && n != 64) || strspn(m->tokenizer_sha256, "0123456789abcdef") != n)
		return bad(c, "tokenizer.", "sha256", "must be 64 hexadecimal digits or empty");
	return 0;
}

static int parse_head(const struct ctx *c, const json_t *root, struct io_manifest *m)
{
	char text[64];
	int64_t version;
	const json_t *seed = json_object_get(root, "seed");

	if (get_text(c, root, "", "format", text, sizeof(text)) < 0)
		return -1;
	if (strcmp(text, IO_DATASET_FORMAT) != 0)
		return io_errorf(c->err, EBADMSG, "%s: format is \"%s\", a dataset has \"%s\"", c->path, text,
				 IO_DATASET_FORMAT);
	if (get_int(c, root, "", "version", 0, INT64_MAX, &version) < 0)
		return -1;
	if (version != IO_DATASET_VERSION)
		return io_errorf(c->err, EBADMSG, "%s: version %" PRId64 "; this program reads version %d", c->path,
				 version, IO_DATASET_VERSION);
	if (get_text(c, root, "", "dtype", text, sizeof(text)) < 0)
		return -1;
	m->width = !strcmp(text, "u16") ? 2 : !strcmp(text, "u32") ? 4 : 0;
	if (!m->width)
		return bad(c, "", "dtype", "must be \"u16\" or \"u32\"");
	if (get_int(c, root, "", "seq_length", 2, IO_MAX_SEQ, &m->seq_length) < 0 ||
	    get_int(c, root, "", "vocab_size", 1, m->width == 2 ? 65536 : INT64_C(1) << 31, &m->vocab_size) < 0 ||
	    get_int(c, root, "", "eos_token_id", -1, m->vocab_size - 1, &m->eos_token_id) < 0 ||
	    get_int(c, root, "", "pad_token_id", -1, m->vocab_size - 1, &m->pad_token_id) < 0 ||
	    get_text(c, root, "", "packing", m->packing, sizeof(m->packing)) < 0)
		return -1;
	if (strcmp(m->packing, "bfd") != 0 && strcmp(m->packing, "wrapped") != 0)
		return bad(c, "", "packing", "must be \"bfd\" or \"wrapped\"");
	if (!json_is_integer(seed))
		return bad(c, "", "seed", "must be an integer");
	m->seed = (uint64_t)json_integer_value(seed);
	return 0;
}

int io__manifest_parse(const char *path, const char *data, size_t len, struct io_manifest *out, struct io_error *err)
{
	struct ctx c = {path, err};
	json_error_t je;
	json_t *root;
	int rc = -1;

	memset(out, 0, sizeof(*out));
	root = json_loadb(data, len, JSON_REJECT_DUPLICATES, &je);
	if (!root)
		return io_errorf(err, EBADMSG, "%s:%d: not valid JSON: %s", path, je.line, je.text);
	if (!json_is_object(root))
		io_errorf(err, EBADMSG, "%s: must be a JSON object", path);
	else if (parse_head(&c, root, out) == 0 && parse_tokenizer(&c, root, out) == 0 &&
		 parse_counts(&c, root, out) == 0)
		rc = parse_shards(&c, root, out);
	json_decref(root);
	if (rc < 0)
		io__manifest_free(out);
	return rc;
}

int io__manifest_read(const char *dir, struct io_manifest *out, struct io_hash128 *hash, struct io_error *err)
{
	char *path = io__strf(err, "%s/dataset.json", dir), *data = NULL;
	size_t len = 0;
	int rc = -1;

	memset(out, 0, sizeof(*out));
	if (!path)
		return -1;
	/* The largest list of shards takes some 300 bytes each. */
	if (io_read_file(path, (size_t)512 << 20, &data, &len, err) < 0) {
		if (err && err->code == ENOENT)
			io_errorf(err, ENOENT, "%s: no dataset here (dataset.json is missing); make one with spctl pack",
				  dir);
		goto fail;
	}
	rc = io__manifest_parse(path, data, len, out, err);
	if (rc == 0 && hash)
		*hash = io_hash_mem(data, len);
fail:
	free(data);
	free(path);
	return rc;
}

void io__manifest_free(struct io_manifest *m)
{
	for (int i = 0; m->shards && i < m->nshards; i++) {
		free(m->shards[i].file);
		free(m->shards[i].extents);
	}
	free(m->shards);
	m->shards = NULL;
	m->nshards = 0;
}
