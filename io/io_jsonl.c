/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <jansson.h>
#include <string.h>
#include "io/io_pack_priv.h"

/* Follows a dotted path of members; a member whose own name has the dots wins. NULL when there is none. */
static const json_t *member(const json_t *o, const char *field)
{
	const json_t *v = json_object_get(o, field);
	const char *dot;

	if (v || !json_is_object(o))
		return v;
	for (dot = strchr(field, '.'); dot; dot = strchr(dot + 1, '.')) {
		const json_t *sub = json_object_getn(o, field, (size_t)(dot - field));

		v = sub ? member(sub, dot + 1) : NULL;
		if (v)
			return v;
	}
	return NULL;
}

int io__jsonl_line(const char *path, int64_t line, const char *text, size_t n, const char *field, io_emit_bytes emit,
		   void *arg, struct io_error *err)
{
	json_error_t je;
	const json_t *v;
	json_t *root;
	size_t i = 0;
	int rc;

	while (i < n && strchr(" \t\r\n", text[i]) && text[i])
		i++;
	if (i == n)
		return 0;
	root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &je);
	if (!root)
		return io_errorf(err, EBADMSG, "%s:%lld: not valid JSON: %s", path, (long long)line, je.text);
	v = member(root, field);
	if (!json_is_object(root))
		rc = io_errorf(err, EBADMSG, "%s:%lld: a JSON object with member \"%s\" is wanted", path,
			       (long long)line, field);
	else if (!json_is_string(v))
		rc = io_errorf(err, EBADMSG, "%s:%lld: member \"%s\" is %s; name the one that holds the text (--field)",
			       path, (long long)line, field, v ? "no string" : "missing");
	else
		rc = emit(arg, json_string_value(v), json_string_length(v), err);
	json_decref(root);
	return rc;
}
