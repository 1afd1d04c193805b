/* SPDX-License-Identifier: Apache-2.0 */
/* Reads tokenizer.json: every part is taken exactly or refused by name. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <utf8proc.h>
#include "io/io_file.h"
#include "io/io_tok_load.h"

#define MAX_FILE (512u << 20)
#define MAX_STAGES 32

/* ---- vocabulary ------------------------------------------------------------------------------------------------- */

int tok_char_to_byte(uint32_t c)
{
	if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff))
		return (int)c;
	if (c >= 0x100 && c <= 0x120)
		return (int)(c - 0x100);
	if (c >= 0x121 && c <= 0x142)
		return (int)(c - 0x121) + 0x7f;
	return c == 0x143 ? 0xad : -1;
}

/* Byte-level string to the bytes it stands for; -1 when a character stands for none. out holds n bytes at least. */
static ssize_t to_bytes(const char *s, size_t n, char *out)
{
	ssize_t k = 0;

	for (size_t i = 0; i < n;) {
		uint32_t c;
		int b;

		i += (size_t)tok_utf8_at(s + i, n - i, &c);
		b = tok_char_to_byte(c);
		if (b < 0)
			return -1;
		out[k++] = (char)b;
	}
	return k;
}

static int load_vocab(struct io_tokenizer *t, json_t *model, struct io_error *err)
{
	json_t *vocab = json_object_get(model, "vocab"), *v;
	const char *key;
	char *bytes = NULL;
	size_t cap = 0;

	if (!json_is_object(vocab) || !json_object_size(vocab))
		return io_errorf(err, EBADMSG, "model.vocab is not a mapping from token to id");
	json_object_foreach (vocab, key, v) {
		json_int_t id = json_integer_value(v);
		size_t n = strlen(key);
		ssize_t k = -1;

		if (!json_is_integer(v) || id < 0 || id > TOK_MAX_ID) {
			io_errorf(err, EBADMSG, "model.vocab: the id of \"%.40s\" is not an integer from 0 to %u", key, TOK_MAX_ID);
			goto fail;
		}
		if (tok_vocab_put(&t->names, key, n, (uint32_t)id))
			goto nomem;
		if (id >= t->vocab_size)
			t->vocab_size = id + 1;
		if (t->byte_level) {
			if (n > cap) {
				char *q = realloc(bytes, n);

				if (!q)
					goto nomem;
				bytes = q;
				cap = n;
			}
			k = to_bytes(key, n, bytes);
			if (k == 1)
				t->byte_id[(unsigned char)bytes[0]] = (uint32_t)id;
			if (k >= 0 && tok_vocab_put(&t->vocab, bytes, (size_t)k, (uint32_t)id))
				goto nomem;
		} else if (tok_vocab_put(&t->vocab, key, n, (uint32_t)id)) {
			goto nomem;
		}
	}
	free(bytes);
	return 0;
nomem:
	io_errorf(err, ENOMEM, "no memory for the vocabulary");
fail:
	free(bytes);
	return -1;
}

static int add_merge(struct io_tokenizer *t, const char *a, size_t an, const char *b, size_t bn, uint32_t rank,
		     struct tok_buf *tmp, struct io_error *err)
{
	uint32_t ia = tok_vocab_get(&t->names, a, an), ib = tok_vocab_get(&t->names, b, bn), id;

	tmp->n = 0;
	if (tok_buf_add(tmp, a, an) || tok_buf_add(tmp, b, bn))
		return io_errorf(err, ENOMEM, "no memory for the merges");
	id = tok_vocab_get(&t->names, tmp->p ? tmp->p : "", tmp->n);
	if (ia == TOK_NONE || ib == TOK_NONE || id == TOK_NONE)
		return io_errorf(err, EBADMSG, "model.merges[%u]: \"%.40s\" + \"%.40s\" is not in the vocabulary", rank, a, b);
	return tok_merges_put(&t->merges, ia, ib, rank, id) ? io_errorf(err, ENOMEM, "no memory for the merges") : 0;
}

static int load_merges(struct io_tokenizer *t, json_t *model, struct io_error *err)
{
	json_t *merges = json_object_get(model, "merges"), *m;
	struct tok_buf tmp = { 0 };
	size_t i;
	int rc = -1;
	uint32_t rank = 0;

	if (!json_is_array(merges))
		return io_errorf(err, EBADMSG, "model.merges is not a list");
	json_array_foreach (merges, i, m) {
		const char *a = NULL, *b = NULL;
		size_t an = 0, bn = 0;

		if (json_is_string(m)) { /* "left right" */
			const char *s = json_string_value(m), *sp = strchr(s, ' ');

			if (!strncmp(s, "#version", 8))
				continue;
			if (sp && !strchr(sp + 1, ' ')) {
				a = s;
				an = (size_t)(sp - s);
				b = sp + 1;
				bn = strlen(b);
			}
		} else if (json_array_size(m) == 2) { /* ["left", "right"] */
			a = json_string_value(json_array_get(m, 0));
			b = json_string_value(json_array_get(m, 1));
			an = a ? strlen(a) : 0;
			bn = b ? strlen(b) : 0;
		}
		if (!a || !b) {
			io_errorf(err, EBADMSG, "model.merges[%zu] is neither \"left right\" nor [left, right]", i);
			goto out;
		}
		if (add_merge(t, a, an, b, bn, rank++, &tmp, err))
			goto out;
	}
	rc = 0;
out:
	free(tmp.p);
	return rc;
}

static int set_text(json_t *o, const char *key)
{
	json_t *v = json_object_get(o, key);

	return json_is_string(v) && json_string_length(v) > 0;
}

static int load_model(struct io_tokenizer *t, json_t *root, struct io_error *err)
{
	json_t *model = json_object_get(root, "model"), *v;
	const char *type = json_string_value(json_object_get(model, "type"));

	if (!json_is_object(model))
		return io_errorf(err, EBADMSG, "there is no \"model\"");
	if (type && strcmp(type, "BPE"))
		return io_errorf(err, EINVAL, "model type \"%.40s\" is not supported (BPE is)", type);
	v = json_object_get(model, "dropout");
	if (json_is_number(v) && json_number_value(v) != 0)
		return io_errorf(err, EINVAL, "model.dropout makes ids random and is not supported");
	if (set_text(model, "continuing_subword_prefix") || set_text(model, "end_of_word_suffix"))
		return io_errorf(err, EINVAL, "model.continuing_subword_prefix and end_of_word_suffix are not supported");
	t->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
	t->fuse_unk = json_is_true(json_object_get(model, "fuse_unk"));
	t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
	if (load_vocab(t, model, err) || load_merges(t, model, err))
		return -1;
	for (int b = 0; b < 256; b++) {
		char name[8];

		snprintf(name, sizeof(name), "<0x%02X>", b);
		t->fallback[b] = tok_vocab_get(&t->names, name, 6);
	}
	if (set_text(model, "unk_token")) {
		const char *unk = json_string_value(json_object_get(model, "unk_token"));

		t->unk = tok_vocab_get(&t->names, unk, strlen(unk));
		if (t->unk == TOK_NONE)
			return io_errorf(err, EBADMSG, "model.unk_token \"%.40s\" is not in the vocabulary", unk);
	}
	return 0;
}

/* ---- added tokens ------------------------------------------------------------------------------------------------- */

static int load_added(struct io_tokenizer *t, json_t *root, struct io_error *err)
{
	json_t *list = json_object_get(root, "added_tokens"), *o;
	size_t i;

	if (!list || json_is_null(list))
		return 0;
	if (!json_is_array(list) || json_array_size(list) > 1000000)
		return io_errorf(err, EBADMSG, "added_tokens is not a list of at most 1000000 entries");
	t->added = calloc(json_array_size(list) + 1, sizeof(*t->added));
	if (!t->added)
		return io_errorf(err, ENOMEM, "no memory for the added tokens");
	json_array_foreach (list, i, o) {
		json_t *c = json_object_get(o, "content"), *id = json_object_get(o, "id");
		struct tok_added *a = &t->added[t->nadded];
		uint32_t known;

		if (!json_is_string(c) || !json_is_integer(id) || json_integer_value(id) < 0 ||
		    json_integer_value(id) > TOK_MAX_ID)
			return io_errorf(err, EBADMSG, "added_tokens[%zu] lacks a content or an id from 0 to %u", i, TOK_MAX_ID);
		if (!json_string_length(c))
			continue;
		a->n = json_string_length(c);
		a->content = malloc(a->n + 1);
		if (!a->content)
			return io_errorf(err, ENOMEM, "no memory for the added tokens");
		memcpy(a->content, json_string_value(c), a->n + 1);
		t->nadded++; /* from here on close frees it */
		known = tok_vocab_get(&t->names, a->content, a->n);
		a->id = known != TOK_NONE ? known : (uint32_t)json_integer_value(id);
		if (a->id != json_integer_value(id))
			return io_errorf(err, EBADMSG, "added token \"%.40s\" has id %lld here and %u in the vocabulary",
					 a->content, (long long)json_integer_value(id), a->id);
		a->single_word = json_is_true(json_object_get(o, "single_word"));
		a->lstrip = json_is_true(json_object_get(o, "lstrip"));
		a->rstrip = json_is_true(json_object_get(o, "rstrip"));
		a->normalized = json_is_true(json_object_get(o, "normalized"));
		a->special = json_is_true(json_object_get(o, "special"));
		if (a->id >= t->vocab_size)
			t->vocab_size = (int64_t)a->id + 1;
	}
	return 0;
}

static int build_tries(struct io_tokenizer *t, struct io_error *err)
{
	pcre2_match_data *md = pcre2_match_data_create(64, NULL);
	struct tok_buf norm = { 0 }, tmp = { 0 };
	int rc = md ? 0 : io_errorf(err, ENOMEM, "no memory for the added tokens");

	for (int i = 0; i < t->nadded && !rc; i++) {
		const struct tok_added *a = &t->added[i];
		const char *s = a->content;
		size_t n = a->n;

		if (a->normalized && t->nnorms) {
			rc = tok_normalize(t->norms, t->nnorms, md, s, n, &norm, &tmp, err);
			s = norm.p;
			n = norm.n;
		}
		if (!rc && n && tok_trie_put(a->normalized ? &t->normalized : &t->raw, s, n, i))
			rc = io_errorf(err, ENOMEM, "no memory for the added tokens");
		if (a->normalized)
			t->has_normalized = 1;
		else
			t->has_raw = 1;
	}
	pcre2_match_data_free(md);
	free(norm.p);
	free(tmp.p);
	return rc;
}

/* ---- post-processor ------------------------------------------------------------------------------------------------- */

static int template_ids(json_t *post, const char *name, struct tok_ids *to, struct io_error *err)
{
	json_t *ids = json_object_get(json_object_get(json_object_get(post, "special_tokens"), name), "ids"), *v;
	size_t i;

	if (!json_is_array(ids))
		return io_errorf(err, EBADMSG, "post_processor: special token \"%.40s\" has no ids", name);
	json_array_foreach (ids, i, v) {
		if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > TOK_MAX_ID)
			return io_errorf(err, EBADMSG, "post_processor: special token \"%.40s\" has a bad id", name);
		if (tok_ids_add(to, (uint32_t)json_integer_value(v)))
			return io_errorf(err, ENOMEM, "no memory for the post-processor");
	}
	return 0;
}

static int load_template(json_t *post, struct tok_ids *before, struct tok_ids *after, struct io_error *err)
{
	json_t *single = json_object_get(post, "single"), *o;
	int seen = 0;
	size_t i;

	if (!json_is_array(single))
		return io_errorf(err, EBADMSG, "post_processor.single is not a list");
	json_array_foreach (single, i, o) {
		const char *name = json_string_value(json_object_get(json_object_get(o, "SpecialToken"), "id"));
		const char *seq = json_string_value(json_object_get(json_object_get(o, "Sequence"), "id"));

		if (seq && !seen && !strcmp(seq, "A"))
			seen = 1;
		else if (!name)
			return io_errorf(err, EINVAL, "post_processor.single[%zu] is neither the sequence A (once) nor a special token", i);
		else if (template_ids(post, name, seen ? after : before, err))
			return -1;
	}
	return seen ? 0 : io_errorf(err, EINVAL, "post_processor.single does not contain the sequence A");
}

static int load_post(json_t *post, int depth, struct tok_ids *before, struct tok_ids *after, struct io_error *err)
{
	const char *type = json_string_value(json_object_get(post, "type"));
	json_t *list, *o;
	size_t i;

	if (!post || json_is_null(post))
		return 0;
	if (!type || depth > 4)
		return io_errorf(err, EBADMSG, "post_processor has no type, or nests too deep");
	if (!strcmp(type, "ByteLevel")) /* changes offsets only */
		return 0;
	if (!strcmp(type, "TemplateProcessing"))
		return load_template(post, before, after, err);
	if (strcmp(type, "Sequence"))
		return io_errorf(err, EINVAL, "post-processor \"%.40s\" is not supported (TemplateProcessing, ByteLevel, Sequence are)",
				 type);
	list = json_object_get(post, "processors");
	json_array_foreach (list, i, o)
		if (load_post(o, depth + 1, before, after, err))
			return -1;
	return 0;
}

/* Decoding drops the blank that encoding put in front: a Strip of one leading blank, or Metaspace's own rule. */
static int decoder_strips(json_t *d, int depth)
{
	const char *type = json_string_value(json_object_get(d, "type"));
	json_t *o;
	size_t i;

	if (!type || depth > 4)
		return 0;
	if (!strcmp(type, "Strip"))
		return json_integer_value(json_object_get(d, "start")) > 0;
	if (!strcmp(type, "Metaspace")) {
		const char *scheme = json_string_value(json_object_get(d, "prepend_scheme"));

		return scheme ? strcmp(scheme, "never") != 0 : !json_is_false(json_object_get(d, "add_prefix_space"));
	}
	json_array_foreach (json_object_get(d, "decoders"), i, o)
		if (decoder_strips(o, depth + 1))
			return 1;
	return 0;
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------- */

static int load_all(struct io_tokenizer *t, json_t *root, struct io_error *err)
{
	struct tok_ids before = { 0 }, after = { 0 };
	int rc;

	if (!json_is_object(root))
		return io_errorf(err, EBADMSG, "not a JSON object");
	if (tok_load_norms(t, json_object_get(root, "normalizer"), 0, err) ||
	    tok_load_stages(t, json_object_get(root, "pre_tokenizer"), 0, err) || load_model(t, root, err) ||
	    load_added(t, root, err) || build_tries(t, err))
		return -1;
	rc = load_post(json_object_get(root, "post_processor"), 0, &before, &after, err);
	t->before = before.p;
	t->nbefore = (int)before.n;
	t->after = after.p;
	t->nafter = (int)after.n;
	if (rc)
		return -1;
	for (int i = 0; i < t->nbefore + t->nafter; i++) {
		uint32_t id = i < t->nbefore ? t->before[i] : t->after[i - t->nbefore];

		if (id >= t->vocab_size)
			return io_errorf(err, EBADMSG, "post_processor: id %u is beyond the vocabulary of %lld", id,
					 (long long)t->vocab_size);
	}
	t->strip_left = decoder_strips(json_object_get(root, "decoder"), 0);
	t->name_slot = calloc((size_t)t->vocab_size, sizeof(*t->name_slot));
	if (!t->name_slot)
		return io_errorf(err, ENOMEM, "no memory for the vocabulary");
	for (size_t i = 0; i < t->names.cap; i++)
		if (t->names.id[i] != TOK_NONE)
			t->name_slot[t->names.id[i]] = i + 1;
	return 0;
}

int io_tokenizer_parse(const char *what, const char *json, size_t len, struct io_tokenizer **out, struct io_error *err)
{
	json_error_t je;
	json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
	struct io_tokenizer *t;
	struct io_error e = { 0 };

	if (!root)
		return io_errorf(err, EBADMSG, "%s: line %d: %s", what, je.line, je.text);
	t = calloc(1, sizeof(*t));
	if (!t) {
		json_decref(root);
		return io_errorf(err, ENOMEM, "%s: no memory", what);
	}
	t->unk = TOK_NONE;
	memset(t->byte_id, 0xff, sizeof(t->byte_id));
	memset(t->fallback, 0xff, sizeof(t->fallback));
	if (load_all(t, root, &e)) {
		json_decref(root);
		io_tokenizer_close(t);
		return io_errorf(err, e.code, "%s: %s", what, e.text);
	}
	json_decref(root);
	*out = t;
	return 0;
}

int io_tokenizer_open(const char *path, struct io_tokenizer **out, struct io_error *err)
{
	char file[4096], *data;
	struct stat st;
	size_t n;
	int dir = stat(path, &st) == 0 && S_ISDIR(st.st_mode), rc;

	if (snprintf(file, sizeof(file), "%s%s", path, dir ? "/tokenizer.json" : "") >= (int)sizeof(file))
		return io_errorf(err, ENAMETOOLONG, "%.100s...: path too long", path);
	if (io_read_file(file, MAX_FILE, &data, &n, err))
		return -1;
	rc = io_tokenizer_parse(file, data, n, out, err);
	free(data);
	return rc;
}

void io_tokenizer_close(struct io_tokenizer *t)
{
	if (!t)
		return;
	for (int i = 0; i < t->nadded; i++)
		free(t->added[i].content);
	for (int i = 0; i < t->nnorms; i++) {
		tok_regex_free(&t->norms[i].re);
		free(t->norms[i].text);
	}
	for (int i = 0; i < t->nstages; i++)
		tok_regex_free(&t->stages[i].re);
	free(t->added);
	free(t->norms);
	free(t->stages);
	free(t->raw.nodes);
	free(t->normalized.nodes);
	free(t->merges.t);
	free(t->before);
	free(t->after);
	free(t->name_slot);
	tok_vocab_free(&t->vocab);
	tok_vocab_free(&t->names);
	free(t);
}
