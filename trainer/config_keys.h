/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAINER_CONFIG_KEYS_H
#define TRAINER_CONFIG_KEYS_H
/*
 * The table of configuration keys: name, type, limits, place in struct tr_config.
 */
#include <stddef.h>
#include <stdio.h>
#include "trainer/config.h"

enum tr_key_type {
	TR_KEY_INT,  /* int64_t in [lo, hi] */
	TR_KEY_REAL, /* double in [lo, hi], or with `open` in (lo, hi] */
	TR_KEY_BOOL, /* int */
	TR_KEY_ENUM, /* int, index into choices */
	TR_KEY_PATH, /* char[PATH_MAX] */
	TR_KEY_NAME, /* char[32] */
};
struct tr_key {
	const char *name; /* path with dots */
	enum tr_key_type type;
	size_t off;
	double lo, hi; /* int limits are exact in a double up to 2^53 */
	int open;
	const char *const *choices; /* NULL-terminated */
};

extern const struct tr_key tr_keys[];
extern const int tr_nkeys;

/* Index of a key by its path in either spelling of parallelism_config, or -1. */
int tr_key_find(const char *path);
/* The known key most like `path`, or NULL when none is near. */
const char *tr_key_nearest(const char *path);
/* Name of the section `path` is, or NULL ("model", "parallelism_config"). */
const char *tr_key_section(const char *path);
/* Converts and stores; `where` ("train.yaml:12", "--set") begins the message. */
int tr_key_set(struct tr_config *c, int key, const char *where, const char *value, int quoted, const char *dir,
	       struct tr_error *err);
/* The key's value in c as it stands in a YAML file. */
void tr_key_print(FILE *f, const struct tr_config *c, const struct tr_key *k);

#endif
