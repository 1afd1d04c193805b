/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/state.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "trainer/config_keys.h"

#define FORMAT  "slurm-ulysses-state"
#define VERSION 1

/* Keys that decide what was learnt from what. */
static const char *const identity[] = {
	"model.model_type", "model.hidden_size", "model.intermediate_size", "model.num_hidden_layers",
	"model.num_attention_heads", "model.num_key_value_heads", "model.head_dim", "model.vocab_size",
	"model.rms_norm_eps", "model.rope_theta", "model.tie_word_embeddings", "model.attention_bias",
	"seed", "data_seed", "shuffle", "train_batch_size",
};
/* Keys that shape the trajectory from here on: a change is allowed and noted. */
static const char *const settings[] = {
	"max_steps", "learning_rate", "lr_scheduler_type", "min_lr_rate", "warmup_steps", "warmup_ratio", "weight_decay",
	"adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "bf16", "model.max_position_embeddings",
};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static char *key_text(const struct tr_config *c, const char *name)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	if (!f)
		return NULL;
	tr_key_print(f, c, &tr_keys[tr_key_find(name)]);
	return fclose(f) ? NULL : text;
}

static int put_keys(json_t *o, const struct tr_config *c, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char *t = key_text(c, names[i]);
		int rc = t ? json_object_set_new(o, names[i], json_string(t)) : -1;

		free(t);
		if (rc)
			return -1;
	}
	return 0;
}

char *tr_state_format(const struct tr_config *c, const struct io_dataset_info *d, const struct tr_state *s)
{
	json_t *id = json_object(), *set = json_object(), *root = NULL;
	char hex[33], *text = NULL;

	io_hash_hex(d->manifest_hash, hex);
	if (!id || !set || json_object_set_new(id, "dataset", json_string(hex)) ||
	    put_keys(id, c, identity, COUNT(identity)) || put_keys(set, c, settings, COUNT(settings)))
		goto out;
	root = json_pack("{s:s,s:i,s:s,s:I,s:I,s:O,s:O,s:{s:I,s:I,s:I,s:I}}", "format", FORMAT, "version", VERSION, "trainer",
			 SU_VERSION, "step", (json_int_t)s->step, "tokens_seen", (json_int_t)s->tokens_seen, "identity", id,
			 "settings", set, "mesh", "sp_size", (json_int_t)c->par.sp_size, "cp_size",
			 (json_int_t)c->par.cp_size, "dp_shard_size", (json_int_t)c->par.dp_shard_size, "dp_replicate_size",
			 (json_int_t)c->par.dp_replicate_size);
	if (root)
		text = json_dumps(root, JSON_INDENT(1));
out:
	json_decref(root);
	json_decref(id);
	json_decref(set);
	return text;
}

static int same_dataset(const json_t *id, const struct tr_config *c, const struct io_dataset_info *d,
			struct tr_error *err)
{
	const char *was = json_string_value(json_object_get(id, "dataset"));
	char hex[33];

	io_hash_hex(d->manifest_hash, hex);
	if (!was)
		return tr_errorf(err, TR_EXIT_CHECKPOINT, "trainer_state.json names no dataset");
	if (!strcmp(was, hex))
		return 0;
	return tr_errorf(err, TR_EXIT_CHECKPOINT, "dataset differs: the checkpoint was trained on the dataset with hash %.32s, "
			 "%.300s has %s", was, c->dataset, hex);
}

static int same_keys(const json_t *id, const struct tr_config *c, struct tr_error *err)
{
	for (size_t i = 0; i < COUNT(identity); i++) {
		const char *was = json_string_value(json_object_get(id, identity[i]));
		char *now = key_text(c, identity[i]);
		int rc = 0;

		if (!now || !was)
			rc = tr_errorf(err, TR_EXIT_CHECKPOINT, "trainer_state.json lacks %s", identity[i]);
		else if (strcmp(was, now))
			rc = tr_errorf(err, TR_EXIT_CHECKPOINT, "%s differs: %.60s in the checkpoint, %.60s in the "
				       "configuration", identity[i], was, now);
		free(now);
		if (rc)
			return -1;
	}
	return 0;
}

static void note_changes(const json_t *set, const struct tr_config *c, char *notes, size_t len)
{
	size_t at = 0;

	*notes = 0;
	for (size_t i = 0; i < COUNT(settings); i++) {
		const char *was = json_string_value(json_object_get(set, settings[i]));
		char *now = key_text(c, settings[i]);

		if (was && now && strcmp(was, now) && at < len)
			at += (size_t)snprintf(notes + at, len - at, "%s%s was %.60s, is %.60s from here on%s", at ? "\n" : "",
					       settings[i], was, now,
					       strcmp(settings[i], "max_steps") ? ""
					       : c->lr_type == TR_LR_LINEAR || c->lr_type == TR_LR_COSINE ||
							       c->lr_type == TR_LR_COSINE_MIN
						       ? " (the learning-rate schedule follows it)"
						       : "");
		free(now);
	}
}

int tr_state_parse(const char *text, const struct tr_config *c, const struct io_dataset_info *d, struct tr_state *out,
		   char *notes, size_t noteslen, struct tr_error *err)
{
	json_error_t je;
	json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &je);
	const char *format = json_string_value(json_object_get(root, "format"));
	json_t *id = json_object_get(root, "identity"), *set = json_object_get(root, "settings");
	int rc = -1;

	*out = (struct tr_state){.step = json_integer_value(json_object_get(root, "step")),
				 .tokens_seen = json_integer_value(json_object_get(root, "tokens_seen"))};
	if (!root)
		tr_errorf(err, TR_EXIT_CHECKPOINT, "trainer_state.json: line %d: %.100s", je.line, je.text);
	else if (!format || strcmp(format, FORMAT))
		tr_errorf(err, TR_EXIT_CHECKPOINT, "trainer_state.json is not a state of this trainer");
	else if (json_integer_value(json_object_get(root, "version")) != VERSION)
		tr_errorf(err, TR_EXIT_CHECKPOINT, "trainer_state.json has version %" JSON_INTEGER_FORMAT
			  ", this trainer reads %d", json_integer_value(json_object_get(root, "version")), VERSION);
	else if (out->step < 1 || out->tokens_seen < 0)
		tr_errorf(err, TR_EXIT_CHECKPOINT, "trainer_state.json holds step %" PRId64, out->step);
	else if (!same_dataset(id, c, d, err) && !same_keys(id, c, err))
		rc = 0;
	if (!rc && notes)
		note_changes(set, c, notes, noteslen);
	json_decref(root);
	return rc;
}
