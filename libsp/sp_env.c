/* SPDX-License-Identifier: Apache-2.0 */
#include "libsp/sp_env.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Longest stretch of a user's value that is repeated in a message. */
#define SHOWN_MAX 40

__attribute__((format(printf, 3, 4))) static int fail(char *err, size_t errlen, const char *fmt, ...)
{
	va_list ap;

	if (err != NULL && errlen > 0) {
		va_start(ap, fmt);
		vsnprintf(err, errlen, fmt, ap);
		va_end(ap);
	}
	return -1;
}

/* Messages are one line: what a user typed is cut and freed of control characters first. */
static const char *shown(const char *text, char out[SHOWN_MAX + 4])
{
	size_t i;

	for (i = 0; i < SHOWN_MAX && text[i] != '\0'; i++)
		out[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
	strcpy(out + i, text[i] != '\0' ? "..." : "");
	return out;
}

/* Reads digits of a canonical decimal number (no leading zero) up to limit; returns what follows, or NULL. */
static const char *scan_number(const char *p, int limit, int *out)
{
	int64_t v = 0;
	const char *start = p;

	for (; *p >= '0' && *p <= '9'; p++) {
		v = v * 10 + (*p - '0');
		if (v > limit)
			return NULL;
	}
	if (p == start || (*start == '0' && p - start > 1))
		return NULL;
	*out = (int)v;
	return p;
}

int sp_env_parse_int(const char *what, const char *text, int min, int max, int *out, char *err, size_t errlen)
{
	char buf[SHOWN_MAX + 4];
	const char *end;
	int v;

	if (text == NULL || *text == '\0')
		return fail(err, errlen, "%s has no value: give a whole number from %d to %d", what, min, max);
	end = scan_number(text, max, &v);
	if (end == NULL || *end != '\0' || v < min)
		return fail(err, errlen, "%s=%s is not valid: give a whole number from %d to %d", what,
			    shown(text, buf), min, max);
	*out = v;
	return 0;
}

int sp_env_parse_tasks_per_node(const char *text, int *counts, int max, int *n, char *err, size_t errlen)
{
	char buf[SHOWN_MAX + 4];
	const char *p = text != NULL ? text : "";
	int got = 0, count, times;

	for (;;) {
		times = 1;
		p = scan_number(p, SP_ENV_MAX_SIZE, &count);
		if (p == NULL || count < 1)
			goto bad;
		if (p[0] == '(' && p[1] == 'x') {
			p = scan_number(p + 2, SP_ENV_MAX_NODES, &times);
			if (p == NULL || times < 1 || *p++ != ')')
				goto bad;
		}
		if (times > max - got)
			return fail(err, errlen,
				    "tasks per node '%s' names more than %d nodes; at most %d are allowed",
				    shown(text, buf), max, max);
		while (times-- > 0)
			counts[got++] = count;
		if (*p == '\0')
			break;
		if (*p++ != ',')
			goto bad;
	}
	*n = got;
	return 0;
bad:
	return fail(err, errlen,
		    "tasks per node '%s' is not valid: give counts from 1 to %d in Slurm's form, as in 4(x2),3",
		    shown(text != NULL ? text : "", buf), SP_ENV_MAX_SIZE);
}

int64_t sp_env_product(const struct sp_sizes *s)
{
	const int f[4] = {s->sp, s->cp, s->dp_shard, s->dp_replicate};
	int64_t p = 1;

	for (int i = 0; i < 4; i++) {
		p *= f[i] > 0 ? f[i] : 1;
		if (p > SP_ENV_MAX_SIZE)
			return -1;
	}
	return p;
}

/* "sp_size 4 x dp_shard_size 2": the sizes that were given. */
static const char *describe(const struct sp_sizes *s, char *out, size_t len)
{
	const char *name[4] = {"sp_size", "cp_size", "dp_shard_size", "dp_replicate_size"};
	const int f[4] = {s->sp, s->cp, s->dp_shard, s->dp_replicate};
	int n = 0;

	out[0] = '\0';
	for (int i = 0; i < 4; i++)
		if (f[i] > 0)
			n += snprintf(out + n, len - (size_t)n, "%s%s %d", n > 0 ? " x " : "", name[i], f[i]);
	return out;
}

/* What to type instead: the nearest task counts, and the nearest values of one size that suit this count. */
static int misfit(const struct sp_sizes *s, int64_t world, int64_t unit, char *err, size_t errlen)
{
	char given[160], tasks[80], size[96] = "";
	int64_t rest = unit / (s->sp > 0 ? s->sp : 1), below = 0, above = 0, d;
	int64_t lower = world / unit * unit, upper = lower + unit;

	if (s->dp_replicate > 0)
		snprintf(tasks, sizeof(tasks), "%lld task%s", (long long)unit, unit == 1 ? "" : "s");
	else if (lower > 0 && upper <= SP_ENV_MAX_SIZE)
		snprintf(tasks, sizeof(tasks), "%lld or %lld tasks", (long long)lower, (long long)upper);
	else
		snprintf(tasks, sizeof(tasks), "%lld tasks", (long long)(lower > 0 ? lower : upper));

	if (s->dp_replicate > 0 && world % (unit / s->dp_replicate) == 0) {
		snprintf(size, sizeof(size), ", or dp_replicate_size %lld",
			 (long long)(world / (unit / s->dp_replicate)));
	} else if (s->sp > 0 && world % rest == 0) {
		int64_t q = world / rest;

		/* With dp_replicate open any divisor of q will do, else only q itself. */
		for (d = 1; d <= q && s->dp_replicate == 0; d++) {
			if (q % d != 0)
				continue;
			if (d < s->sp)
				below = d;
			else if (above == 0)
				above = d;
		}
		if (s->dp_replicate > 0)
			snprintf(size, sizeof(size), ", or sp_size %lld", (long long)q);
		else if (above > 0)
			snprintf(size, sizeof(size), ", or sp_size %lld or %lld", (long long)below,
				 (long long)above);
		else
			snprintf(size, sizeof(size), ", or sp_size %lld", (long long)below);
	}
	return fail(err, errlen, "%s needs %s%lld task%s, this step has %lld: use %s%s",
		    describe(s, given, sizeof(given)), s->dp_replicate > 0 ? "exactly " : "a multiple of ",
		    (long long)unit, unit == 1 ? "" : "s", (long long)world, tasks, size);
}

int sp_env_complete(struct sp_sizes *s, int64_t world, char *err, size_t errlen)
{
	char given[160];
	int64_t unit;

	if (s->sp < 0 || s->cp < 0 || s->dp_shard < 0 || s->dp_replicate < 0)
		return fail(err, errlen, "a mesh size is negative: give whole numbers from 1 to %d",
			    SP_ENV_MAX_SIZE);
	unit = sp_env_product(s);
	if (unit < 0)
		return fail(err, errlen, "%s is more than %d tasks: make the sizes smaller",
			    describe(s, given, sizeof(given)), SP_ENV_MAX_SIZE);
	if (world < 0 || world > SP_ENV_MAX_SIZE)
		return fail(err, errlen, "%lld tasks are not supported: use 1 to %d", (long long)world,
			    SP_ENV_MAX_SIZE);
	if (world > 0 && (s->dp_replicate > 0 ? world != unit : world % unit != 0))
		return misfit(s, world, unit, err, errlen);
	s->sp = s->sp > 0 ? s->sp : 1;
	s->cp = s->cp > 0 ? s->cp : 1;
	s->dp_shard = s->dp_shard > 0 ? s->dp_shard : 1;
	if (s->dp_replicate == 0)
		s->dp_replicate = world > 0 ? (int)(world / unit) : 1;
	return 0;
}

/* Sum of counts when sizes are complete and fit them, else -1. *full: complete groups inside nodes. */
static int64_t layout(const struct sp_sizes *s, const int *counts, int nnodes, int64_t *full)
{
	int64_t world = 0;

	if (s->sp < 1 || s->cp < 1 || s->dp_shard < 1 || s->dp_replicate < 1 || nnodes < 1)
		return -1;
	*full = 0;
	for (int i = 0; i < nnodes; i++) {
		if (counts[i] < 0)
			return -1;
		world += counts[i];
		*full += counts[i] / s->sp;
	}
	return world == sp_env_product(s) ? world : -1;
}

static void unfold(const struct sp_sizes *s, int slot, struct sp_coord *out)
{
	out->slot = slot;
	out->sp = slot % s->sp;
	slot /= s->sp;
	out->cp = slot % s->cp;
	slot /= s->cp;
	out->dp_shard = slot % s->dp_shard;
	out->dp_replicate = slot / s->dp_shard;
}

int sp_env_place(const struct sp_sizes *s, const int *counts, int nnodes, int node, int local,
		 struct sp_coord *out, int *spans)
{
	int64_t full, groups_before = 0, left_before = 0, whole;

	if (layout(s, counts, nnodes, &full) < 0 || node < 0 || node >= nnodes || local < 0 ||
	    local >= counts[node])
		return -1;
	for (int i = 0; i < node; i++) {
		groups_before += counts[i] / s->sp;
		left_before += counts[i] % s->sp;
	}
	whole = counts[node] - counts[node] % s->sp; /* tasks of this node that sit in groups of its own */
	if (local < whole)
		unfold(s, (int)(groups_before * s->sp + local), out);
	else
		unfold(s, (int)(full * s->sp + left_before + (local - whole)), out);
	/* No node has sp tasks left over, so every group made of left-over tasks crosses nodes. */
	if (spans != NULL)
		*spans = local >= whole;
	return 0;
}

int sp_env_place_all(const struct sp_sizes *s, const int *counts, int nnodes, int *node_of, int *local_of)
{
	int64_t full, slot = 0, left;

	if (layout(s, counts, nnodes, &full) < 0)
		return -1;
	left = full * s->sp;
	for (int i = 0; i < nnodes; i++) {
		int whole = counts[i] - counts[i] % s->sp;

		for (int l = 0; l < counts[i]; l++) {
			int64_t at = l < whole ? slot++ : left++;

			node_of[at] = i;
			local_of[at] = l;
		}
	}
	return 0;
}

int sp_env_spanning_groups(const struct sp_sizes *s, const int *counts, int nnodes)
{
	int64_t full, world = layout(s, counts, nnodes, &full);

	return world < 0 ? -1 : (int)(world / s->sp - full);
}
