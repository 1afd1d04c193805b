/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/hf_model.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io_file.h"
#include "io/io_safetensors.h"
#include "trainer/model_priv.h"

#define MARK "slurm_ulysses"
#define CHUNK ((int64_t)1 << 20)             /* elements moved at a time */
#define MAX_TOKENIZER ((size_t)1 << 30)      /* bytes */
#define MAX_CONFIG ((size_t)16 << 20)

/* ---- config.json and generation_config.json ----------------------------------------------------------------- */

static json_t *id_or_null(int64_t id) { return id < 0 ? json_null() : json_integer(id); }

static json_t *config_json(const struct tr_model_config *c)
{
	/* rope_theta is what Transformers 4 reads, rope_parameters what 5 reads */
	return json_pack("{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:n, s:{s:s, s:f}, s:f,"
			 " s:s, s:b, s:b, s:b, s:f, s:i, s:b, s:o, s:o, s:o, s:s}",
			 "architectures", "LlamaForCausalLM", "model_type", "llama", MARK, SU_VERSION,
			 "hidden_size", (json_int_t)c->hidden_size,
			 "intermediate_size", (json_int_t)c->intermediate_size,
			 "num_hidden_layers", (json_int_t)c->num_hidden_layers,
			 "num_attention_heads", (json_int_t)c->num_attention_heads,
			 "num_key_value_heads", (json_int_t)c->num_key_value_heads,
			 "head_dim", (json_int_t)c->head_dim,
			 "vocab_size", (json_int_t)c->vocab_size,
			 "max_position_embeddings", (json_int_t)c->max_position_embeddings,
			 "rms_norm_eps", c->rms_norm_eps, "rope_theta", c->rope_theta, "rope_scaling",
			 "rope_parameters", "rope_type", "default", "rope_theta", c->rope_theta,
			 "initializer_range", c->initializer_range, "hidden_act", "silu",
			 "tie_word_embeddings", c->tie_word_embeddings, "attention_bias", c->attention_bias,
			 "mlp_bias", 0, "attention_dropout", 0.0, "pretraining_tp", 1, "use_cache", 1,
			 "bos_token_id", id_or_null(c->bos_token_id), "eos_token_id", id_or_null(c->eos_token_id),
			 "pad_token_id", id_or_null(c->pad_token_id), "torch_dtype", "float32");
}

static json_t *generation_json(const struct tr_model_config *c)
{
	const struct {
		const char *key;
		int64_t id;
	} ids[] = { { "bos_token_id", c->bos_token_id },
		    { "eos_token_id", c->eos_token_id },
		    { "pad_token_id", c->pad_token_id } };
	json_t *j = json_pack("{s:b}", "_from_model_config", 1);

	for (size_t i = 0; j && i < sizeof(ids) / sizeof(ids[0]); i++)
		if (ids[i].id >= 0)
			json_object_set_new(j, ids[i].key, json_integer(ids[i].id));
	return j;
}

static int survives_15_digits(double x)
{
	char s[40];

	snprintf(s, sizeof(s), "%.15g", x);
	return strtod(s, NULL) == x;
}

/* Takes j. */
static int write_json(const char *dir, const char *name, json_t *j, int digits, struct tr_error *err)
{
	struct io_error ie = { 0 };
	char *text = j ? json_dumps(j, JSON_INDENT(2) | JSON_REAL_PRECISION((size_t)digits)) : NULL, *path = NULL;
	int rc = -1;

	json_decref(j);
	if (!text || asprintf(&path, "%s/%s", dir, name) < 0) {
		path = NULL;
		tr_errorf(err, TR_EXIT_CHECKPOINT, "out of memory writing %s/%s", dir, name);
	} else if (io_write_file(path, text, strlen(text), &ie)) {
		tr_error_io(err, TR_EXIT_CHECKPOINT, &ie);
	} else {
		rc = 0;
	}
	free(text);
	free(path);
	return rc;
}

static int write_configs(const char *dir, const struct tr_model_config *c, struct tr_error *err)
{
	/* 15 digits print 1e-05 as people write it; 17 when a value needs them */
	int digits = survives_15_digits(c->rms_norm_eps) && survives_15_digits(c->rope_theta) &&
				     survives_15_digits(c->initializer_range) ?
			     15 :
			     17;

	return write_json(dir, "config.json", config_json(c), digits, err) ||
	       write_json(dir, "generation_config.json", generation_json(c), digits, err) ?
		       -1 :
		       0;
}

/* ---- model.safetensors ----------------------------------------------------------------------------------------- */

static int write_tensors(struct io_st_writer *w, int64_t n, const struct tr_param *table, tr_hf_get_fn get, void *arg,
			 float *buf, struct tr_error *err)
{
	struct io_error ie = { 0 };

	for (int64_t i = 0; i < n; i++) {
		for (int64_t at = 0; at < table[i].count; at += CHUNK) {
			int64_t end = at + CHUNK < table[i].count ? at + CHUNK : table[i].count;

			if (get(arg, table[i].offset + at, end - at, buf, err))
				return -1;
			if (io_st_writer_put(w, i, at, end, buf, &ie))
				return tr_error_io(err, TR_EXIT_CHECKPOINT, &ie);
		}
	}
	if (io_st_writer_finish(w, &ie))
		return tr_error_io(err, TR_EXIT_CHECKPOINT, &ie);
	return 0;
}

static int write_model(const char *dir, int64_t n, const struct tr_param *table, tr_hf_get_fn get, void *arg,
		       struct tr_error *err)
{
	struct io_st_decl *decls = calloc((size_t)n, sizeof(*decls));
	float *buf = malloc((size_t)CHUNK * sizeof(*buf));
	struct io_st_writer *w = NULL;
	struct io_error ie = { 0 };
	char *path = NULL;
	int rc = -1;

	if (!decls || !buf || asprintf(&path, "%s/model.safetensors", dir) < 0) {
		path = NULL;
		tr_errorf(err, TR_EXIT_CHECKPOINT, "out of memory writing %s/model.safetensors", dir);
		goto out;
	}
	for (int64_t i = 0; i < n; i++) {
		decls[i] = (struct io_st_decl){ .name = table[i].name, .dtype = IO_F32, .ndim = table[i].ndim };
		for (int k = 0; k < table[i].ndim; k++)
			decls[i].dims[k] = table[i].dims[k];
	}
	if (io_st_writer_create(path, decls, n, &w, &ie)) {
		tr_error_io(err, TR_EXIT_CHECKPOINT, &ie);
		goto out;
	}
	rc = write_tensors(w, n, table, get, arg, buf, err);
out:
	io_st_writer_destroy(w);
	free(path);
	free(buf);
	free(decls);
	return rc;
}

/* ---- tokenizer -------------------------------------------------------------------------------------------------- */

static int copy_if_there(const char *from, const char *to, const char *name, struct tr_error *err)
{
	struct io_error ie = { 0 };
	char *src = NULL, *dst = NULL, *data = NULL;
	size_t len = 0;
	int rc = -1;

	if (asprintf(&src, "%s/%s", from, name) < 0) {
		src = NULL;
		goto nomem;
	}
	if (asprintf(&dst, "%s/%s", to, name) < 0) {
		dst = NULL;
		goto nomem;
	}
	if (access(src, F_OK) && errno == ENOENT)
		rc = 0;
	else if (io_read_file(src, MAX_TOKENIZER, &data, &len, &ie) || io_write_file(dst, data, len, &ie))
		tr_error_io(err, TR_EXIT_CHECKPOINT, &ie);
	else
		rc = 0;
	goto out;
nomem:
	tr_errorf(err, TR_EXIT_CHECKPOINT, "out of memory copying %s", name);
out:
	free(data);
	free(src);
	free(dst);
	return rc;
}

/* ---- publishing --------------------------------------------------------------------------------------------------- */

/* 1: absent or empty, 2: a model directory made here, -1: something else, with err set */
static int target_state(const char *dir, struct tr_error *err)
{
	char *path = NULL, *data = NULL;
	struct stat st;
	json_t *j = NULL;
	size_t len;
	int rc = -1;

	if (lstat(dir, &st) && errno == ENOENT)
		return 1;
	if (rmdir(dir) == 0)
		return 1;
	if (asprintf(&path, "%s/config.json", dir) >= 0 && io_read_file(path, MAX_CONFIG, &data, &len, NULL) == 0) {
		j = json_loadb(data, len, 0, NULL);
		if (json_object_get(j, MARK))
			rc = 2;
	}
	if (rc < 0)
		tr_errorf(err, TR_EXIT_CHECKPOINT,
			  "%s exists and was not written by this program; move it away or choose another output_dir", dir);
	json_decref(j);
	free(data);
	free(path);
	return rc;
}

static int replace(const char *tmp, const char *dir, const char *old, struct tr_error *err)
{
	struct io_error ie = { 0 };

	if (renameat2(AT_FDCWD, tmp, AT_FDCWD, dir, RENAME_EXCHANGE) == 0)
		return io_remove_tree(tmp, &ie) ? tr_error_io(err, TR_EXIT_CHECKPOINT, &ie) : 0;
	/* A file system without exchange: for a moment there is no dir, but always a complete one under either name. */
	if (io_remove_tree(old, &ie) && ie.code != ENOENT)
		return tr_error_io(err, TR_EXIT_CHECKPOINT, &ie);
	if (rename(dir, old) || rename(tmp, dir))
		return tr_errorf(err, TR_EXIT_CHECKPOINT, "cannot replace %s by %s: %s", dir, tmp, strerror(errno));
	return io_remove_tree(old, &ie) ? tr_error_io(err, TR_EXIT_CHECKPOINT, &ie) : 0;
}

static int publish(const char *tmp, const char *dir, const char *old, struct tr_error *err)
{
	struct io_error ie = { 0 };
	char *parent, *slash;
	int state = target_state(dir, err), rc = -1;

	if (state < 0)
		return -1;
	if (state == 1 && rename(tmp, dir))
		return tr_errorf(err, TR_EXIT_CHECKPOINT, "cannot rename %s to %s: %s", tmp, dir, strerror(errno));
	if (state == 2 && replace(tmp, dir, old, err))
		return -1;
	parent = strdup(dir);
	if (!parent)
		return tr_errorf(err, TR_EXIT_CHECKPOINT, "out of memory publishing %s", dir);
	slash = strrchr(parent, '/');
	if (slash)
		*(slash == parent ? slash + 1 : slash) = '\0';
	rc = io_fsync_dir(slash ? parent : ".", &ie) ? tr_error_io(err, TR_EXIT_CHECKPOINT, &ie) : 0;
	free(parent);
	return rc;
}

static int fill(const char *tmp, const struct tr_model_config *c, const char *dataset_dir, int64_t nparams,
		const struct tr_param *table, tr_hf_get_fn get, void *arg, struct tr_error *err)
{
	struct io_error ie = { 0 };

	if (access(tmp, F_OK) == 0 && io_remove_tree(tmp, &ie)) /* left by a run that was killed */
		return tr_error_io(err, TR_EXIT_CHECKPOINT, &ie);
	if (io_mkdirs(tmp, &ie))
		return tr_error_io(err, TR_EXIT_CHECKPOINT, &ie);
	if (write_configs(tmp, c, err) || write_model(tmp, nparams, table, get, arg, err))
		return -1;
	if (dataset_dir && (copy_if_there(dataset_dir, tmp, "tokenizer.json", err) ||
			    copy_if_there(dataset_dir, tmp, "tokenizer_config.json", err)))
		return -1;
	if (io_fsync_dir(tmp, &ie))
		return tr_error_io(err, TR_EXIT_CHECKPOINT, &ie);
	return 0;
}

int tr_hf_export(const char *dir, const struct tr_model_config *c, const char *dataset_dir, int64_t nparams,
		 const struct tr_param *table, tr_hf_get_fn get, void *arg, struct tr_error *err)
{
	char *path = strdup(dir), *tmp = NULL, *old = NULL;
	size_t n = path ? strlen(path) : 0;
	int rc = -1;

	while (n > 1 && path[n - 1] == '/')
		path[--n] = '\0';
	if (n == 0 || !strcmp(path, "/")) {
		tr_errorf(err, TR_EXIT_CHECKPOINT, "cannot write a model directory to \"%s\"", dir);
		goto out;
	}
	if (asprintf(&tmp, "%s.tmp", path) < 0) {
		tmp = NULL;
		goto nomem;
	}
	if (asprintf(&old, "%s.old", path) < 0) {
		old = NULL;
		goto nomem;
	}
	if (target_state(path, err) < 0)
		goto out;
	if (fill(tmp, c, dataset_dir, nparams, table, get, arg, err)) {
		io_remove_tree(tmp, NULL);
		goto out;
	}
	rc = publish(tmp, path, old, err);
	goto out;
nomem:
	tr_errorf(err, TR_EXIT_CHECKPOINT, "out of memory writing %s", dir);
out:
	free(path);
	free(tmp);
	free(old);
	return rc;
}

int tr_hf_get_model(void *arg, int64_t offset, int64_t count, float *out, struct tr_error *err)
{
	struct tr_model *m = arg;

	if (tr_k(m, err, "copy of weights",
		 m->ops->copy(m->ctx, out, m->weights + offset, (size_t)count * sizeof(float), KN_D2H)) ||
	    tr_k(m, err, "copy of weights", m->ops->sync(m->ctx)))
		return -1;
	return 0;
}
