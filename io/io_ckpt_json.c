/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a checkpoint as JSON. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/io_ckpt_priv.h"
#include "io/io_tensor.h"

/* The last member seals the document: the hash of all bytes before SEAL. */
#define SEAL	 "\"xxh3\":\""
#define SEAL_END "\"}\n"
#define SEAL_LEN (sizeof(SEAL) - 1 + 32 + sizeof(SEAL_END) - 1)

struct name_index {
	const char *name;
	int64_t index;
};

static int cmp_name(const void *a, const void *b)
{
	return strcmp(((const struct name_index *)a)->name, ((const struct name_index *)b)->name);
}

int io__ckpt_part_name(const char *name)
{
	size_t n = 0;

	if (strncmp(name, "part-", 5) != 0)
		return 0;
	name += 5;
	while (name[n] >= '0' && name[n] <= '9')
		n++;
	return n >= 5 && n <= 9 && strcmp(name + n, ".safetensors") == 0;
}

static int get_hash(const json_t *obj, const char *key, struct io_hash128 *out)
{
	const char *s = json_string_value(json_object_get(obj, key));

	return s ? io_hash_parse(s, out) : -1;
}

static int parse_file(const char *name, const json_t *v, struct io__model *m, const char *where,
		      struct io_error *err)
{
	struct io__ckpt_file f = {.name = (char *)name};

	if (!io__ckpt_part_name(name))
		return io_errorf(err, EBADMSG,
				 "%s: \"%.100s\" is not a name of a checkpoint's file "
				 "(part-<number>.safetensors)",
				 where, name);
	if (io__json_count(json_object_get(v, "bytes"), INT64_MAX, &f.bytes) != 0 ||
	    io__json_count(json_object_get(v, "head_bytes"), INT64_MAX, &f.head_bytes) != 0 ||
	    get_hash(v, "head_xxh3", &f.head_hash) != 0)
		return io_errorf(err, EBADMSG, "%s: file %s needs \"bytes\", \"head_bytes\" and \"head_xxh3\"",
				 where, name);
	return io__model_add_file(m, &f, where, err) < 0 ? -1 : 0;
}

/* Adds the files and makes the lookup table from their names to their indices in m. */
static int parse_files(const json_t *files, struct io__model *m, struct name_index **index, const char *where,
		       struct io_error *err)
{
	size_t n = json_object_size(files), i;
	int64_t base = m->nfiles;
	const char *key;
	json_t *v;

	*index = calloc(n + 1, sizeof(**index));
	if (!*index)
		return io_errorf(err, ENOMEM, "%s: no memory to describe the checkpoint", where);
	json_object_foreach((json_t *)files, key, v)
	{
		if (m->nfiles >= IO__CKPT_MAX_PARTS)
			return io_errorf(err, EBADMSG, "%s: more than %d files", where, IO__CKPT_MAX_PARTS);
		if (parse_file(key, v, m, where, err) != 0)
			return -1;
	}
	for (i = 0; i < n; i++)
		(*index)[i] = (struct name_index){m->files[base + (int64_t)i].name, base + (int64_t)i};
	qsort(*index, n, sizeof(**index), cmp_name);
	return 0;
}

static int parse_slice(const json_t *v, int64_t tensor, struct io__model *m, const struct name_index *index,
		       size_t n, const char *where, struct io_error *err)
{
	struct name_index probe = {.name = json_string_value(json_object_get(v, "file"))}, *hit;
	struct io__slice s = {.tensor = tensor};

	if (!probe.name || io__json_count(json_object_get(v, "begin"), INT64_MAX, &s.begin) != 0 ||
	    io__json_count(json_object_get(v, "end"), INT64_MAX, &s.end) != 0 ||
	    io__json_count(json_object_get(v, "offset"), INT64_MAX, &s.offset) != 0 ||
	    io__json_count(json_object_get(v, "bytes"), INT64_MAX, &s.bytes) != 0 ||
	    get_hash(v, "xxh3", &s.hash) != 0)
		return io_errorf(err, EBADMSG,
				 "%s: a slice needs \"begin\", \"end\", \"file\", \"offset\", \"bytes\" "
				 "(whole numbers >= 0) and \"xxh3\"",
				 where);
	hit = n ? bsearch(&probe, index, n, sizeof(*index), cmp_name) : NULL;
	if (!hit)
		return io_errorf(err, EBADMSG,
				 "%s: a slice lies in file \"%.100s\", which \"files\" does not list", where,
				 probe.name);
	s.file = (int32_t)hit->index;
	return io__model_add_slice(m, &s, where, err);
}

static int parse_tensor(const char *name, const json_t *v, struct io__model *m, const struct name_index *index,
			size_t nfiles, const char *where, struct io_error *err)
{
	const json_t *slices = json_object_get(v, "slices");
	struct io_tensor t = {.name = name};
	char here[400];
	int64_t id;
	size_t i;

	snprintf(here, sizeof(here), "%.250s: tensor \"%.100s\"", where, name);
	if (name[0] == '\0' || strlen(name) > IO__CKPT_MAX_NAME)
		return io_errorf(err, EBADMSG, "%s: a name has 1 to %d bytes", here, IO__CKPT_MAX_NAME);
	if (!json_is_array(slices))
		return io_errorf(err, EBADMSG, "%s: needs an array \"slices\"", here);
	if (io__tensor_from_json(v, &t, here, err) != 0)
		return -1;
	id = io__model_add_tensor(m, &t, where, err);
	if (id < 0)
		return -1;
	for (i = 0; i < json_array_size(slices); i++) {
		if (parse_slice(json_array_get(slices, i), id, m, index, nfiles, here, err) != 0)
			return -1;
	}
	return 0;
}

int io__ckpt_from_json(const json_t *root, struct io__model *m, const char *where, struct io_error *err)
{
	const json_t *tensors = json_object_get(root, "tensors"), *files = json_object_get(root, "files");
	struct name_index *index = NULL;
	const char *key;
	json_t *v;
	int rc;

	if (!json_is_object(tensors) || !json_is_object(files))
		return io_errorf(err, EBADMSG, "%s: needs the objects \"tensors\" and \"files\"", where);
	rc = parse_files(files, m, &index, where, err);
	if (rc == 0) {
		json_object_foreach((json_t *)tensors, key, v)
		{
			rc = parse_tensor(key, v, m, index, json_object_size(files), where, err);
			if (rc != 0)
				break;
		}
	}
	free(index);
	return rc;
}

static int check_seal(const char *text, size_t len, const char *where, struct io_error *err)
{
	struct io_hash128 want, got;
	char hex[33];
	const char *seal;

	if (len < SEAL_LEN)
		return io_errorf(err, EBADMSG, "%s: %zu bytes are too few; truncated?", where, len);
	seal = text + len - SEAL_LEN;
	memcpy(hex, seal + sizeof(SEAL) - 1, 32);
	hex[32] = '\0';
	if (memcmp(seal, SEAL, sizeof(SEAL) - 1) != 0 || io_hash_parse(hex, &want) != 0 ||
	    memcmp(text + len - (sizeof(SEAL_END) - 1), SEAL_END, sizeof(SEAL_END) - 1) != 0)
		return io_errorf(err, EBADMSG,
				 "%s: does not end with its own hash (\"xxh3\"); truncated or edited", where);
	got = io_hash_mem(text, len - SEAL_LEN);
	if (got.hi != want.hi || got.lo != want.lo)
		return io_errorf(err, EBADMSG, "%s: its contents do not match its own hash; damaged or edited",
				 where);
	return 0;
}

int io__ckpt_parse(const char *text, size_t len, const char *format, int64_t step, struct io__model *m,
		   struct io_hash128 *state, const char *where, struct io_error *err)
{
	const char *have;
	json_error_t je;
	int64_t version, s;
	json_t *root;
	int rc = -1;

	if (check_seal(text, len, where, err) != 0)
		return -1;
	root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
	if (!root)
		return io_errorf(err, EBADMSG, "%s: is not valid JSON: %s at line %d", where, je.text, je.line);
	have = json_string_value(json_object_get(root, "format"));
	if (!have || strcmp(have, format) != 0) {
		io_errorf(err, EBADMSG, "%s: its \"format\" is not \"%s\"", where, format);
	} else if (io__json_count(json_object_get(root, "version"), INT64_MAX, &version) != 0 || version != 1) {
		io_errorf(err, EBADMSG, "%s: its \"version\" is not 1, the only one this program reads", where);
	} else if (io__json_count(json_object_get(root, "step"), IO__CKPT_MAX_STEP, &s) != 0 || s != step) {
		io_errorf(err, EBADMSG, "%s: its \"step\" is not %" PRId64 ", the step of its folder", where,
			  step);
	} else if (state && get_hash(root, "state_xxh3", state) != 0) {
		io_errorf(err, EBADMSG, "%s: needs \"state_xxh3\", 32 hexadecimal digits", where);
	} else {
		m->step = step;
		rc = io__ckpt_from_json(root, m, where, err);
	}
	json_decref(root);
	return rc;
}

static void dump_slice(const struct io__model *m, const struct io__slice *s, struct io__text *out)
{
	char hex[33];

	io_hash_hex(s->hash, hex);
	io__text_addf(out,
		      "\n  {\"begin\":%" PRId64 ",\"end\":%" PRId64 ",\"file\":\"%s\",\"offset\":%" PRId64
		      ",\"bytes\":%" PRId64 ",\"xxh3\":\"%s\"}",
		      s->begin, s->end, m->files[s->file].name, s->offset, s->bytes, hex);
}

int io__ckpt_dump(const struct io__model *m, const char *format, const struct io_hash128 *state,
		  struct io__text *out, struct io_error *err)
{
	struct io_hash128 h;
	int64_t i, k = 0, n;
	char hex[33];

	io__text_addf(out, "{\"format\":\"%s\",\"version\":1,\"step\":%" PRId64 ",\n\"tensors\":{", format,
		      m->step);
	for (i = 0; i < m->ntensors; i++) {
		const struct io_tensor *t = &m->tensors[i];

		io__text_str(out, i ? ",\n " : "\n ");
		if (io__text_json(out, t->name) != 0 && !out->oom)
			return io_errorf(err, EINVAL, "tensor name \"%.100s\" is not valid UTF-8", t->name);
		io__text_addf(out, ":{\"dtype\":\"%s\",\"shape\":", io_dtype_name(t->dtype));
		io__text_shape(out, t->ndim, t->dims);
		io__text_str(out, ",\"slices\":[");
		for (n = 0; k < m->nslices && m->slices[k].tensor == i; k++, n++) {
			io__text_str(out, n ? "," : "");
			dump_slice(m, &m->slices[k], out);
		}
		io__text_str(out, "]}");
	}
	io__text_str(out, "},\n\"files\":{");
	for (i = 0; i < m->nfiles; i++) {
		io_hash_hex(m->files[i].head_hash, hex);
		io__text_addf(
			out, "%s\n \"%s\":{\"bytes\":%" PRId64 ",\"head_bytes\":%" PRId64 ",\"head_xxh3\":\"%s\"}",
			i ? "," : "", m->files[i].name, m->files[i].bytes, m->files[i].head_bytes, hex);
	}
	io__text_str(out, "},\n");
	if (state) {
		io_hash_hex(*state, hex);
		io__text_addf(out, "\"state_xxh3\":\"%s\",\n", hex);
	}
	if (!out->oom) {
		h = io_hash_mem(out->p, out->n);
		io_hash_hex(h, hex);
		io__text_addf(out, SEAL "%s" SEAL_END, hex);
	}
	return out->oom ? io_errorf(err, ENOMEM, "no memory to describe checkpoint step %" PRId64, m->step) : 0;
}
