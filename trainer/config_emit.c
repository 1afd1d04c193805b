/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "trainer/config_keys.h"
#include "trainer/text.h"

/* Double-quoted; control bytes as escapes, UTF-8 as it is. */
static void put_string(FILE *f, const char *s)
{
	fputc('"', f);
	for (const unsigned char *p = (const unsigned char *)s; *p; p++) {
		if (*p == '"' || *p == '\\')
			fprintf(f, "\\%c", *p);
		else if (*p < 0x20 || *p == 0x7f)
			fprintf(f, "\\x%02x", *p);
		else
			fputc(*p, f);
	}
	fputc('"', f);
}

static void put_path(FILE *f, const char *path)
{
	char cwd[PATH_MAX], full[2 * PATH_MAX];

	if (*path == '/' || !getcwd(cwd, sizeof cwd)) {
		put_string(f, path);
		return;
	}
	snprintf(full, sizeof full, "%s/%s", cwd, path);
	put_string(f, full);
}

void tr_key_print(FILE *f, const struct tr_config *c, const struct tr_key *k)
{
	const char *at = (const char *)c + k->off;
	int64_t i;
	char buf[TR_TEXT];
	double d;
	int e;

	switch (k->type) {
	case TR_KEY_INT:
		memcpy(&i, at, sizeof i);
		fprintf(f, "%" PRId64, i);
		break;
	case TR_KEY_REAL:
		memcpy(&d, at, sizeof d);
		fputs(tr_text_real(d, buf), f);
		break;
	case TR_KEY_BOOL:
		memcpy(&e, at, sizeof e);
		fputs(e ? "true" : "false", f);
		break;
	case TR_KEY_ENUM:
		memcpy(&e, at, sizeof e);
		fputs(k->choices[e], f);
		break;
	case TR_KEY_PATH:
		put_path(f, at);
		break;
	case TR_KEY_NAME:
		put_string(f, at);
		break;
	}
}

/* A size that was not given stays out; so does gradient_accumulation_steps once train_batch_size says it all. */
static int left_out(const struct tr_config *c, const struct tr_key *k)
{
	int64_t i = 1;

	if (k->type == TR_KEY_INT)
		memcpy(&i, (const char *)c + k->off, sizeof i);
	return (k->type == TR_KEY_INT && (double)i < k->lo) ||
	       (c->global_batch && k->off == offsetof(struct tr_config, grad_accum));
}

char *tr_config_emit(const struct tr_config *c)
{
	char section[64] = "", *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	if (!f)
		return NULL;
	for (int i = 0; i < tr_nkeys; i++) {
		const struct tr_key *k = &tr_keys[i];
		const char *dot = strchr(k->name, '.'), *leaf = dot ? dot + 1 : k->name;
		char own[64];

		snprintf(own, sizeof own, "%.*s", dot ? (int)(dot - k->name) : 0, k->name);
		if (left_out(c, k))
			continue;
		if (*own && strcmp(own, section))
			fprintf(f, "%s:\n", own);
		strcpy(section, own);
		fprintf(f, "%s%s: ", *own ? "  " : "", leaf);
		tr_key_print(f, c, k);
		fputc('\n', f);
	}
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}
