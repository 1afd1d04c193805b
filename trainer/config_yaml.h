/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_CONFIG_YAML_H
#define TRAINER_CONFIG_YAML_H
/*
 * The subset of YAML a configuration uses: nested mappings of scalars. Everything else (lists, anchors, aliases, tags, several
 * documents, a key given twice) is refused with its line; size, depth and counts are bounded before anything is built.
 */
#include <stddef.h>
#include "trainer/tr_err.h"

#define TR_YAML_MAX_BYTES (256 * 1024)
#define TR_YAML_MAX_DEPTH 4
#define TR_YAML_MAX_ITEMS 1024
#define TR_YAML_MAX_SCALAR 4095
#define TR_YAML_MAX_KEY 191

struct tr_yaml_item {
	char *key;   /* path with dots, "model.hidden_size" */
	char *value; /* without quotes */
	int line;    /* 1-based */
	int quoted;  /* a string whatever it looks like */
};
struct tr_yaml {
	struct tr_yaml_item *items;
	int n;
};

/* `name` is the file name used in messages. On failure *out is empty. */
int tr_yaml_parse(const char *name, const char *text, size_t len, struct tr_yaml *out, struct tr_error *err);
void tr_yaml_free(struct tr_yaml *y);
/* One scalar, as after `key:`; `what` names it in messages. Caller frees *value. */
int tr_yaml_scalar(const char *what, const char *text, char **value, int *quoted, struct tr_error *err);

#endif
