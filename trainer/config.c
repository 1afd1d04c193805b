/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/config.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "io/io_file.h"
#include "trainer/config_keys.h"
#include "trainer/config_yaml.h"

static void defaults(struct tr_config *c)
{
	*c = (struct tr_config){
		.dataset = "data",
		.output_dir = "run",
		.model = {.model_type = "llama",
			  .rms_norm_eps = 1e-6,
			  .rope_theta = 10000.0,
			  .initializer_range = 0.02,
			  .eos_token_id = -1,
			  .pad_token_id = -1,
			  .bos_token_id = -1},
		.par = {.sp_seq_length_is_variable = 1},
		.seed = 42,
		.data_seed = -1,
		.shuffle = 1,
		.max_steps = -1,
		.num_train_epochs = 3.0,
		.per_device_batch = 1,
		.learning_rate = 5e-5,
		.beta1 = 0.9,
		.beta2 = 0.999,
		.eps = 1e-8,
		.max_grad_norm = 1.0,
		.logging_steps = 1,
		.save_steps = 500,
		.save_total_limit = 3,
		.ddp_timeout = 1800,
	};
}

/* Where a key came from, for messages: "train.yaml:12", "--set", or the file alone. */
static const char *where_of(const struct tr_config *c, const char *key, char *buf, size_t len)
{
	int k = tr_key_find(key), line = k < 0 ? 0 : c->line[k];

	if (line > 0)
		snprintf(buf, len, "%s:%d", c->file, line);
	else
		snprintf(buf, len, "%s", line < 0 ? "--set" : c->file);
	return buf;
}

static int unknown_key(const char *where, const char *path, struct tr_error *err)
{
	const char *near = tr_key_nearest(path);

	if (near)
		return tr_errorf(err, TR_EXIT_USAGE, "%s: unknown key '%.100s'; the nearest known key is '%s'", where, path,
				 near);
	return tr_errorf(err, TR_EXIT_USAGE, "%s: unknown key '%.100s'; `trainer --help` lists the known ones", where, path);
}

static int is_null(const char *v, int quoted)
{
	return !quoted && (!*v || !strcmp(v, "~") || !strcmp(v, "null") || !strcmp(v, "Null") || !strcmp(v, "NULL"));
}

static int apply(struct tr_config *c, const char *where, int line, const char *key, const char *value, int quoted,
		 const char *dir, struct tr_error *err)
{
	int k = tr_key_find(key), null = is_null(value, quoted);

	if (k < 0 && tr_key_section(key)) /* `model:` with nothing below it */
		return null ? 0
			    : tr_errorf(err, TR_EXIT_USAGE, "%s: %s holds keys of its own, not the value '%.40s'", where, key,
					value);
	if (k < 0)
		return unknown_key(where, key, err);
	if (line > 0 && c->line[k] > 0)
		return tr_errorf(err, TR_EXIT_USAGE, "%s: %s is given twice (first on line %d); keep one", where,
				 tr_keys[k].name, c->line[k]);
	c->line[k] = line;
	return null ? 0 : tr_key_set(c, k, where, value, quoted, dir, err);
}

static int apply_file(struct tr_config *c, const struct tr_yaml *y, const char *dir, struct tr_error *err)
{
	for (int i = 0; i < y->n; i++) {
		const struct tr_yaml_item *it = &y->items[i];
		char where[PATH_MAX + 16];

		snprintf(where, sizeof where, "%s:%d", c->file, it->line);
		if (apply(c, where, it->line, it->key, it->value, it->quoted, dir, err))
			return -1;
	}
	return 0;
}

static int apply_set(struct tr_config *c, const char *arg, const char *dir, struct tr_error *err)
{
	char key[TR_YAML_MAX_KEY + 1], *value;
	const char *eq = strchr(arg, '=');
	int quoted, rc;

	if (!eq || eq == arg || (size_t)(eq - arg) >= sizeof key)
		return tr_errorf(err, TR_EXIT_USAGE, "--set '%.80s': write --set key=value, for example --set seed=7 or "
				 "--set model.hidden_size=64", arg);
	snprintf(key, sizeof key, "%.*s", (int)(eq - arg), arg);
	if (tr_yaml_scalar("--set", eq + 1, &value, &quoted, err))
		return -1;
	rc = apply(c, "--set", -1, key, value, quoted, dir, err);
	free(value);
	return rc;
}

static int check_model(struct tr_config *c, struct tr_error *err)
{
	static const char *const needed[] = {"model.hidden_size", "model.intermediate_size", "model.num_hidden_layers",
					     "model.num_attention_heads"};
	struct tr_model_config *m = &c->model;
	char w[PATH_MAX + 16];

	for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
		int64_t v;
		memcpy(&v, (char *)c + tr_keys[tr_key_find(needed[i])].off, sizeof v);
		if (!v)
			return tr_errorf(err, TR_EXIT_USAGE, "%s: %s is missing; the `model:` section needs hidden_size, "
					 "intermediate_size, num_hidden_layers and num_attention_heads", c->file, needed[i]);
	}
	if (strcmp(m->model_type, "llama"))
		return tr_errorf(err, TR_EXIT_USAGE, "%s: model.model_type '%s' is not known here; it can be llama",
				 where_of(c, "model.model_type", w, sizeof w), m->model_type);
	if (!m->num_key_value_heads)
		m->num_key_value_heads = m->num_attention_heads;
	if (m->num_key_value_heads > m->num_attention_heads)
		return tr_errorf(err, TR_EXIT_USAGE, "%s: model.num_key_value_heads is %" PRId64
				 "; at most num_attention_heads (%" PRId64 ")",
				 where_of(c, "model.num_key_value_heads", w, sizeof w), m->num_key_value_heads,
				 m->num_attention_heads);
	if (!m->head_dim && m->hidden_size % m->num_attention_heads)
		return tr_errorf(err, TR_EXIT_USAGE, "%s: model.hidden_size %" PRId64 " is not a multiple of "
				 "num_attention_heads %" PRId64 "; change one or give model.head_dim",
				 where_of(c, "model.hidden_size", w, sizeof w), m->hidden_size, m->num_attention_heads);
	if (!m->head_dim)
		m->head_dim = m->hidden_size / m->num_attention_heads;
	if (m->head_dim < 2 || m->head_dim > 256 || m->head_dim % 2)
		return tr_errorf(err, TR_EXIT_USAGE, "%s: a head size of %" PRId64 " is not allowed: an even number from 2 "
				 "to 256 (model.head_dim, by default hidden_size / num_attention_heads)",
				 where_of(c, "model.head_dim", w, sizeof w), m->head_dim);
	return 0;
}

/* What can be said before the dataset and the mesh are known. */
static int check(struct tr_config *c, struct tr_error *err)
{
	char w[PATH_MAX + 16];

	if (check_model(c, err))
		return -1;
	if (c->max_steps == 0)
		return tr_errorf(err, TR_EXIT_USAGE, "%s: max_steps is 0; give at least 1, or -1 to use num_train_epochs",
				 where_of(c, "max_steps", w, sizeof w));
	if (c->par.tp_size > 1)
		return tr_errorf(err, TR_EXIT_USAGE, "%s: tensor parallelism is not offered here (tp_size %" PRId64
				 "); tp_size can be 1, use sp_size and dp_shard_size",
				 where_of(c, "parallelism_config.tp_size", w, sizeof w), c->par.tp_size);
	if (c->par.cp_size > 1)
		return tr_errorf(err, TR_EXIT_USAGE, "%s: cp_size %" PRId64 " is not supported by this release; cp_size can "
				 "be 1, sequences are shared with sp_size",
				 where_of(c, "parallelism_config.cp_size", w, sizeof w), c->par.cp_size);
	if (c->bf16 && c->device != TR_DEVICE_CUDA)
		return tr_errorf(err, TR_EXIT_USAGE, "%s: bf16 is not supported on device cpu by this release; remove it or "
				 "set bf16: false", where_of(c, "bf16", w, sizeof w));
	if (c->device == TR_DEVICE_CUDA)
		return tr_errorf(err, TR_EXIT_USAGE, "%s: this build has no CUDA backend (trainer --version lists what is "
				 "in); set device: cpu", where_of(c, "device", w, sizeof w));
	if (c->data_seed < 0)
		c->data_seed = c->seed;
	return 0;
}

int tr_config_parse(const char *name, const char *dir, const char *text, size_t len, const struct tr_config_args *a,
		    struct tr_config *out, struct tr_error *err)
{
	struct tr_yaml y;
	int rc;

	defaults(out);
	snprintf(out->file, sizeof out->file, "%s", name);
	if (tr_yaml_parse(name, text, len, &y, err))
		return -1;
	/* the defaults are paths like any other: they count from the configuration's folder */
	rc = tr_key_set(out, tr_key_find("dataset"), name, "data", 0, dir, err) ||
	     tr_key_set(out, tr_key_find("output_dir"), name, "run", 0, dir, err) || apply_file(out, &y, dir, err);
	tr_yaml_free(&y);
	for (int i = 0; a && i < a->nset && !rc; i++)
		rc = apply_set(out, a->set[i], dir, err);
	return rc || check(out, err) ? -1 : 0;
}

static int missing_default(struct tr_error *err)
{
	char cwd[PATH_MAX];

	return tr_errorf(err, TR_EXIT_USAGE, "no " TR_CONFIG_DEFAULT " in %.600s; trainer reads " TR_CONFIG_DEFAULT " from the "
			 "working directory: copy jobs/train.yaml there, or give --config FILE",
			 getcwd(cwd, sizeof cwd) ? cwd : "the working directory");
}

int tr_config_load(const struct tr_config_args *a, struct tr_config *out, struct tr_error *err)
{
	const char *file = a->file ? a->file : TR_CONFIG_DEFAULT;
	struct io_error ioe = {0};
	char dir[PATH_MAX], *text = NULL, *slash;
	size_t len;
	int rc;

	if (strlen(file) >= sizeof dir)
		return tr_errorf(err, TR_EXIT_USAGE, "--config: the path is longer than %d bytes", PATH_MAX - 1);
	if (!a->file && access(file, F_OK) && errno == ENOENT)
		return missing_default(err);
	strcpy(dir, file);
	slash = strrchr(dir, '/');
	if (!slash)
		strcpy(dir, ".");
	else
		slash[slash == dir] = 0; /* "/train.yaml" lies in "/" */
	if (io_read_file(file, TR_YAML_MAX_BYTES, &text, &len, &ioe))
		return tr_errorf(err, TR_EXIT_USAGE, "configuration %s", ioe.text);
	rc = tr_config_parse(file, dir, text, len, a, out, err);
	free(text);
	return rc;
}

void tr_config_sizes(const struct tr_config *c, struct sp_sizes *out)
{
	*out = (struct sp_sizes){.sp = (int)c->par.sp_size,
				 .cp = (int)c->par.cp_size,
				 .dp_shard = (int)c->par.dp_shard_size,
				 .dp_replicate = (int)c->par.dp_replicate_size};
}
