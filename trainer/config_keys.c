/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/config_keys.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OFF(f)                    offsetof(struct tr_config, f)
#define INT(n, f, lo, hi)         {n, TR_KEY_INT, OFF(f), lo, hi, 0, NULL}
#define REAL(n, f, lo, hi)        {n, TR_KEY_REAL, OFF(f), lo, hi, 0, NULL}
#define REAL_OPEN(n, f, lo, hi)   {n, TR_KEY_REAL, OFF(f), lo, hi, 1, NULL}
#define BOOL(n, f)                {n, TR_KEY_BOOL, OFF(f), 0, 1, 0, NULL}
#define ENUM(n, f, c)             {n, TR_KEY_ENUM, OFF(f), 0, 0, 0, c}
#define MAX_SIZE                  9007199254740992.0 /* 2^53 */
#define MAX_DIM                   16777216.0

static const char *const c_device[] = {"cpu", "cuda", "ref", NULL};
static const char *const c_lr[] = {"linear", "cosine", "constant", "constant_with_warmup", "cosine_with_min_lr", NULL};
static const char *const c_resume[] = {"auto", "never", "must", NULL};
static const char *const c_sp_backend[] = {"ulysses", "deepspeed", NULL};
static const char *const c_attn[] = {"sdpa", "flash_attention_2", "flash_attention_3", NULL};
static const char *const c_cp_backend[] = {"torch", NULL};
static const char *const c_cp_comm[] = {"allgather", "alltoall", NULL};

const struct tr_key tr_keys[] = {
	{"dataset", TR_KEY_PATH, OFF(dataset), 0, 0, 0, NULL},
	{"output_dir", TR_KEY_PATH, OFF(output_dir), 0, 0, 0, NULL},
	ENUM("device", device, c_device),
	{"model.model_type", TR_KEY_NAME, OFF(model.model_type), 0, 0, 0, NULL},
	INT("model.hidden_size", model.hidden_size, 1, MAX_DIM),
	INT("model.intermediate_size", model.intermediate_size, 1, MAX_DIM),
	INT("model.num_hidden_layers", model.num_hidden_layers, 1, 4096),
	INT("model.num_attention_heads", model.num_attention_heads, 1, 65536),
	INT("model.num_key_value_heads", model.num_key_value_heads, 1, 65536),
	INT("model.head_dim", model.head_dim, 2, 256),
	INT("model.vocab_size", model.vocab_size, 2, 2147483647),
	INT("model.max_position_embeddings", model.max_position_embeddings, 2, MAX_SIZE),
	REAL_OPEN("model.rms_norm_eps", model.rms_norm_eps, 0, 1),
	REAL_OPEN("model.rope_theta", model.rope_theta, 0, 1e12),
	BOOL("model.tie_word_embeddings", model.tie_word_embeddings),
	BOOL("model.attention_bias", model.attention_bias),
	REAL_OPEN("model.initializer_range", model.initializer_range, 0, 10),
	INT("parallelism_config.sp_size", par.sp_size, 1, SP_ENV_MAX_SIZE),
	INT("parallelism_config.dp_replicate_size", par.dp_replicate_size, 1, SP_ENV_MAX_SIZE),
	INT("parallelism_config.dp_shard_size", par.dp_shard_size, 1, SP_ENV_MAX_SIZE),
	INT("parallelism_config.cp_size", par.cp_size, 1, SP_ENV_MAX_SIZE),
	INT("parallelism_config.tp_size", par.tp_size, 1, SP_ENV_MAX_SIZE),
	ENUM("parallelism_config.sp_backend", par.sp_backend, c_sp_backend),
	BOOL("parallelism_config.sp_seq_length_is_variable", par.sp_seq_length_is_variable),
	INT("parallelism_config.sp_seq_length", par.sp_seq_length, 2, MAX_SIZE),
	ENUM("parallelism_config.sp_attn_implementation", par.sp_attn, c_attn),
	ENUM("parallelism_config.cp_backend", par.cp_backend, c_cp_backend),
	ENUM("parallelism_config.cp_comm_strategy", par.cp_comm, c_cp_comm),
	INT("seed", seed, 0, MAX_SIZE),
	INT("data_seed", data_seed, 0, MAX_SIZE),
	BOOL("shuffle", shuffle),
	INT("max_steps", max_steps, -1, MAX_SIZE),
	REAL_OPEN("num_train_epochs", num_train_epochs, 0, 1e9),
	INT("per_device_train_batch_size", per_device_batch, 1, MAX_DIM),
	INT("gradient_accumulation_steps", grad_accum, 1, MAX_DIM),
	INT("train_batch_size", train_batch, 1, MAX_SIZE),
	REAL("learning_rate", learning_rate, 0, 1000),
	ENUM("lr_scheduler_type", lr_type, c_lr),
	REAL("min_lr_rate", min_lr_rate, 0, 1),
	INT("warmup_steps", warmup_steps, 0, MAX_SIZE),
	REAL("warmup_ratio", warmup_ratio, 0, 1),
	REAL("weight_decay", weight_decay, 0, 1000),
	REAL("adam_beta1", beta1, 0, 0.9999999999),
	REAL("adam_beta2", beta2, 0, 0.9999999999),
	REAL_OPEN("adam_epsilon", eps, 0, 1),
	REAL("max_grad_norm", max_grad_norm, 0, 1e30),
	INT("logging_steps", logging_steps, 1, MAX_SIZE),
	INT("save_steps", save_steps, 0, MAX_SIZE),
	INT("save_total_limit", save_total_limit, 0, 1000000),
	ENUM("resume", resume, c_resume),
	INT("ddp_timeout", ddp_timeout, 1, 604800),
	INT("init_timeout", init_timeout, 1, 86400),
	INT("threads", threads, 0, 4096),
	BOOL("bf16", bf16),
	INT("loss_tile_tokens", loss_tile_tokens, 0, MAX_SIZE),
};
const int tr_nkeys = (int)(sizeof tr_keys / sizeof tr_keys[0]);
_Static_assert(sizeof tr_keys / sizeof tr_keys[0] <= TR_CONFIG_MAX_KEYS, "raise TR_CONFIG_MAX_KEYS");

#define PAR "parallelism_config"

const char *tr_key_section(const char *path)
{
	static const char *const sections[] = {"model", PAR};

	for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++)
		if (!strcmp(path, sections[i]))
			return sections[i];
	return NULL;
}

/* Accelerate writes parallelism_config.parallelism_config_sp_size, and as flags parallelism_config_sp_size alone. */
static const char *canonical(const char *path, char *buf, size_t len)
{
	const char *leaf = path;

	if (!strncmp(leaf, PAR ".", sizeof PAR))
		leaf += sizeof PAR;
	if (strncmp(leaf, PAR "_", sizeof PAR))
		return path;
	snprintf(buf, len, PAR ".%s", leaf + sizeof PAR);
	return buf;
}

int tr_key_find(const char *path)
{
	char buf[256];

	path = canonical(path, buf, sizeof buf);
	for (int i = 0; i < tr_nkeys; i++)
		if (!strcmp(path, tr_keys[i].name))
			return i;
	return -1;
}

/* Edits (insert, delete, replace, swap of neighbours) between a and b, both at most 63 characters. */
static int distance(const char *a, const char *b)
{
	int d[64][64];
	int n = (int)strnlen(a, 63), m = (int)strnlen(b, 63);

	for (int i = 0; i <= n; i++)
		for (int j = 0; j <= m; j++) {
			if (!i || !j) {
				d[i][j] = i + j;
				continue;
			}
			int v = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
			if (d[i - 1][j] + 1 < v)
				v = d[i - 1][j] + 1;
			if (d[i][j - 1] + 1 < v)
				v = d[i][j - 1] + 1;
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < v)
				v = d[i - 2][j - 2] + 1;
			d[i][j] = v;
		}
	return d[n][m];
}

static const char *leaf_of(const char *path)
{
	const char *dot = strrchr(path, '.');

	return dot ? dot + 1 : path;
}

const char *tr_key_nearest(const char *path)
{
	char buf[256];
	const char *leaf, *best = NULL;
	int best_d = INT_MAX;

	path = canonical(path, buf, sizeof buf);
	leaf = leaf_of(path);
	for (int i = 0; i < tr_nkeys; i++) {
		const char *k = tr_keys[i].name, *kl = leaf_of(k);
		int d = distance(leaf, kl), same = (size_t)(kl - k) == (size_t)(leaf - path) &&
						   !strncmp(k, path, (size_t)(kl - k));
		int limit = 1 + (int)strlen(kl) / 3;

		/* a key that begins or ends with what was typed is near as well: batch_size, warmup */
		if (d > limit && strlen(leaf) >= 4 && strstr(kl, leaf))
			d = limit;
		if (d > limit)
			continue;
		d = 2 * d + !same;
		if (d < best_d) {
			best_d = d;
			best = k;
		}
	}
	return best;
}

static int bad(const struct tr_key *k, const char *where, const char *value, const char *hint, struct tr_error *err)
{
	char allowed[256];
	const char *s = strlen(value) > 60 ? "..." : "";

	switch (k->type) {
	case TR_KEY_INT:
		snprintf(allowed, sizeof allowed, "an integer from %.0f to %.0f", k->lo, k->hi);
		break;
	case TR_KEY_REAL:
		snprintf(allowed, sizeof allowed, "a number %s %g and at most %g", k->open ? "above" : "of at least",
			 k->lo, k->hi);
		break;
	case TR_KEY_BOOL:
		snprintf(allowed, sizeof allowed, "true or false");
		break;
	case TR_KEY_ENUM: {
		size_t n = (size_t)snprintf(allowed, sizeof allowed, "one of");
		for (int i = 0; k->choices[i]; i++)
			n += (size_t)snprintf(allowed + n, sizeof allowed - n, "%s %s", i ? "," : "", k->choices[i]);
		break;
	}
	case TR_KEY_PATH:
		snprintf(allowed, sizeof allowed, "a path of 1 to %d bytes", PATH_MAX - 1);
		break;
	case TR_KEY_NAME:
		snprintf(allowed, sizeof allowed, "a name of 1 to 31 characters");
		break;
	}
	return tr_errorf(err, TR_EXIT_USAGE, "%s: %s: '%.60s%s' is not allowed: %s%s", where, k->name, value, s, allowed,
			 hint);
}

/* Decimal, optional sign, no leading zero ("010" would be 8 to another YAML reader), fits 64 bits. */
static int parse_int(const char *s, int64_t *out)
{
	const char *p = s + (*s == '-');
	char *end;

	if (!*p || strspn(p, "0123456789") != strlen(p) || (p[0] == '0' && p[1]))
		return -1;
	errno = 0;
	*out = strtoll(s, &end, 10);
	return errno || *end ? -1 : 0;
}

static int parse_real(const char *s, double *out)
{
	const char *p = s + (*s == '-' || *s == '+');
	size_t whole = strspn(p, "0123456789"), frac = 0;
	char *end;

	p += whole;
	if (*p == '.') {
		frac = strspn(p + 1, "0123456789");
		p += 1 + frac;
	}
	if (!whole && !frac)
		return -1;
	if (*p == 'e' || *p == 'E') {
		p += 1 + (p[1] == '-' || p[1] == '+');
		size_t n = strspn(p, "0123456789");
		if (!n)
			return -1;
		p += n;
	}
	if (*p)
		return -1;
	*out = strtod(s, &end); /* the C locale's: main never calls setlocale */
	return *end || !isfinite(*out) ? -1 : 0;
}

static int one_of(const char *s, const char *const *choices)
{
	for (int i = 0; choices[i]; i++)
		if (!strcmp(s, choices[i]))
			return i;
	return -1;
}

static int set_path(char *dst, const char *value, const char *dir)
{
	int n;

	if (!*value)
		return -1;
	if (*value == '/' || !*dir || !strcmp(dir, "."))
		n = snprintf(dst, PATH_MAX, "%s", value);
	else
		n = snprintf(dst, PATH_MAX, "%s/%s", dir, value);
	return n < PATH_MAX ? 0 : -1;
}

static const char *hint_of(const struct tr_key *k, const char *value, int quoted)
{
	if (k->type == TR_KEY_ENUM && !strcmp(value, "eager"))
		return "; eager builds the whole score matrix, which no long sequence fits, and ignores packing";
	if (quoted && (k->type == TR_KEY_INT || k->type == TR_KEY_REAL || k->type == TR_KEY_BOOL))
		return "; it is a string: remove the quotes";
	return "";
}

int tr_key_set(struct tr_config *c, int key, const char *where, const char *value, int quoted, const char *dir,
	       struct tr_error *err)
{
	static const char *const yes[] = {"true", "True", "TRUE", NULL}, *const no[] = {"false", "False", "FALSE", NULL};
	const struct tr_key *k = &tr_keys[key];
	char *at = (char *)c + k->off;
	const char *hint = hint_of(k, value, quoted);
	int64_t i;
	double d;
	int ok = 0, e;

	switch (k->type) {
	case TR_KEY_INT:
		ok = !quoted && !parse_int(value, &i) && i >= (int64_t)k->lo && i <= (int64_t)k->hi;
		if (ok)
			memcpy(at, &i, sizeof i);
		break;
	case TR_KEY_REAL:
		ok = !quoted && !parse_real(value, &d) && (k->open ? d > k->lo : d >= k->lo) && d <= k->hi;
		if (ok)
			memcpy(at, &d, sizeof d);
		break;
	case TR_KEY_BOOL:
		e = one_of(value, yes) >= 0;
		ok = !quoted && (e || one_of(value, no) >= 0);
		if (ok)
			memcpy(at, &e, sizeof e);
		break;
	case TR_KEY_ENUM:
		e = one_of(value, k->choices);
		ok = e >= 0;
		if (ok)
			memcpy(at, &e, sizeof e);
		break;
	case TR_KEY_PATH:
		ok = !set_path(at, value, dir);
		break;
	case TR_KEY_NAME:
		ok = *value && strlen(value) < 32;
		if (ok)
			strcpy(at, value);
		break;
	}
	return ok ? 0 : bad(k, where, value, hint, err);
}
