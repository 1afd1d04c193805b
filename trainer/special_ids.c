/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include "io/io_file.h"
#include "trainer/special_ids.h"

/* A token is named by its text or by an object whose "content" is the text. */
static int64_t id_of(const json_t *root, const char *key, const struct io_tokenizer *t)
{
	const json_t *v = json_object_get(root, key);

	if (json_is_object(v))
		v = json_object_get(v, "content");
	return json_is_string(v) ? io_tokenizer_token_id(t, json_string_value(v)) : -1;
}

int tr_special_ids(const char *dir, const struct io_tokenizer *t, int64_t *eos, int64_t *pad, struct io_error *err)
{
	struct io_error e = {.code = 0};
	char path[PATH_MAX], *data = NULL;
	json_error_t je;
	json_t *root;
	size_t len = 0;

	*eos = *pad = -1;
	snprintf(path, sizeof(path), "%s/tokenizer_config.json", dir);
	if (io_read_file(path, (size_t)64 << 20, &data, &len, &e) < 0) {
		if (e.code == ENOENT || e.code == ENOTDIR)
			return 0;
		return io_errorf(err, e.code, "%s", e.text);
	}
	root = json_loadb(data, len, JSON_REJECT_DUPLICATES, &je);
	free(data);
	if (!root)
		return io_errorf(err, EBADMSG, "%s:%d: not valid JSON: %s", path, je.line, je.text);
	*eos = id_of(root, "eos_token", t);
	*pad = id_of(root, "pad_token", t);
	json_decref(root);
	return 0;
}
