/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "trainer/spctl.h"

int spctl_fail(int code, const char *cmd, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "spctl%s%s: ", cmd[0] ? " " : "", cmd);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	return code;
}

#define MAX_WORD 32

/* Levenshtein distance of two words of less than MAX_WORD letters. */
static int distance(const char *a, const char *b)
{
	int row[MAX_WORD + 1], n = (int)strlen(b);

	for (int j = 0; j <= n; j++)
		row[j] = j;
	for (int i = 1; a[i - 1]; i++) {
		int diag = row[0];

		row[0] = i;
		for (int j = 1; j <= n; j++) {
			int best = diag + (a[i - 1] != b[j - 1]);

			diag = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[n];
}

const char *spctl_nearest(const char *word, const char *(*next)(const void *arg, int i), const void *arg)
{
	size_t len = strlen(word);
	int best = len < 5 ? 3 : (int)len / 2 + 1; /* a suggestion further away than that is noise */
	const char *found = NULL, *c;

	if (len >= MAX_WORD)
		return NULL;
	for (int i = 0; (c = next(arg, i)); i++) {
		int d = strlen(c) < MAX_WORD ? distance(word, c) : best;

		if (d < best) {
			best = d;
			found = c;
		}
	}
	return found;
}

static const char *opt_name(const void *arg, int i)
{
	const struct spctl_opt *opts = arg;

	return opts[i].name;
}

static int print_help(const char *synopsis, const char *about, const struct spctl_opt *opts)
{
	printf("usage: spctl %s\n\n%s\n", synopsis, about);
	if (opts[0].name)
		printf("\noptions:\n");
	for (int i = 0; opts[i].name; i++) {
		char left[64];

		snprintf(left, sizeof(left), "--%s%s%s", opts[i].name, opts[i].arg ? " " : "",
			 opts[i].arg ? opts[i].arg : "");
		printf("  %-22s %s\n", left, opts[i].help);
	}
	return 0;
}

static int unknown(const char *cmd, const char *name, const struct spctl_opt *opts)
{
	const char *near = spctl_nearest(name, opt_name, opts);

	return spctl_fail(SPCTL_USAGE, cmd, "unknown option --%s%s%s%s; see spctl %s --help", name,
			  near ? "; did you mean --" : "", near ? near : "", near ? "?" : "", cmd);
}

/* One option at argv[*i]; *i moves past its value. */
static int one_option(const char *cmd, const struct spctl_opt *opts, int argc, char **argv, int *i)
{
	char name[64];
	const char *text = argv[*i] + 2, *eq = strchr(text, '=');
	const struct spctl_opt *o;

	snprintf(name, sizeof(name), "%.*s", eq ? (int)(eq - text) : (int)strlen(text), text);
	for (o = opts; o->name && strcmp(o->name, name) != 0; o++)
		;
	if (!o->name)
		return unknown(cmd, name, opts);
	if (!o->arg && eq)
		return spctl_fail(SPCTL_USAGE, cmd, "--%s takes no value", name);
	if (o->arg && !eq && *i + 1 >= argc)
		return spctl_fail(SPCTL_USAGE, cmd, "--%s needs a value: --%s %s", name, name, o->arg);
	*o->value = !o->arg ? "" : eq ? eq + 1 : argv[++*i];
	return -1;
}

int spctl_options(const char *synopsis, const char *about, const struct spctl_opt *opts, int argc, char **argv,
		  int *npos)
{
	int only_words = 0;

	*npos = 0;
	for (int i = 1; i < argc; i++) {
		int rc;

		if (only_words || argv[i][0] != '-' || !argv[i][1]) {
			argv[++*npos] = argv[i];
		} else if (!strcmp(argv[i], "--")) {
			only_words = 1;
		} else if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
			return print_help(synopsis, about, opts);
		} else if (argv[i][1] != '-') {
			return spctl_fail(SPCTL_USAGE, argv[0], "unknown option %s; see spctl %s --help", argv[i],
					  argv[0]);
		} else {
			rc = one_option(argv[0], opts, argc, argv, &i);
			if (rc >= 0)
				return rc;
		}
	}
	return -1;
}

int spctl_int(const char *cmd, const char *opt, const char *text, int64_t min, int64_t max, int sizes, int64_t *out)
{
	static const char suffixes[] = "KMG";
	char *end = NULL;
	int64_t v, unit = 1;

	errno = 0;
	v = strtoll(text, &end, 10);
	if (end != text && sizes && *end) {
		const char *s = strchr(suffixes, *end >= 'a' && *end <= 'z' ? *end - 32 : *end);

		if (s && !end[1]) {
			unit = INT64_C(1) << (10 * (s - suffixes + 1));
			end++;
		}
	}
	if (end == text || *end || errno || (text[0] < '0' && text[0] != '-') ||
	    __builtin_mul_overflow(v, unit, &v) || v < min || v > max)
		return spctl_fail(SPCTL_USAGE, cmd, "--%s %s: a whole number from %" PRId64 " to %" PRId64 "%s is wanted",
				  opt, text, min, max, sizes ? " (suffixes K, M, G)" : "");
	*out = v;
	return -1;
}
