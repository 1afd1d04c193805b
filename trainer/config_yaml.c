/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/config_yaml.h"
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct reader {
	yaml_parser_t parser;
	const char *name;
	struct tr_yaml *out;
	int cap;
	struct tr_error *err;
};

static int line_of(const yaml_mark_t *m) { return (int)m->line + 1; }

/* Next event; the caller deletes it. */
static int next_event(struct reader *r, yaml_event_t *ev)
{
	if (yaml_parser_parse(&r->parser, ev))
		return 0;
	const char *why = r->parser.problem ? r->parser.problem : "out of memory";
	int line = line_of(&r->parser.problem_mark);

	return tr_errorf(r->err, TR_EXIT_USAGE, "%s:%d: not valid YAML: %s", r->name, line, why);
}

static int plain_only(struct reader *r, const yaml_char_t *anchor, const yaml_char_t *tag, int line)
{
	if (anchor)
		return tr_errorf(r->err, TR_EXIT_USAGE, "%s:%d: anchors (&%.40s) are not used here; write the value out",
				 r->name, line, (const char *)anchor);
	if (tag)
		return tr_errorf(r->err, TR_EXIT_USAGE, "%s:%d: tags (%.40s) are not used here; remove it", r->name, line,
				 (const char *)tag);
	return 0;
}

static int add_item(struct reader *r, const char *key, const yaml_event_t *ev)
{
	struct tr_yaml *y = r->out;
	int line = line_of(&ev->start_mark);
	size_t len = ev->data.scalar.length;
	const char *text = (const char *)ev->data.scalar.value;

	for (int i = 0; i < y->n; i++)
		if (!strcmp(y->items[i].key, key))
			return tr_errorf(r->err, TR_EXIT_USAGE, "%s:%d: %s is given twice (first on line %d); keep one",
					 r->name, line, key, y->items[i].line);
	if (len > TR_YAML_MAX_SCALAR || memchr(text, 0, len))
		return tr_errorf(r->err, TR_EXIT_USAGE, "%s:%d: the value of %s is longer than %d bytes or holds a NUL",
				 r->name, line, key, TR_YAML_MAX_SCALAR);
	if (y->n == TR_YAML_MAX_ITEMS)
		return tr_errorf(r->err, TR_EXIT_USAGE, "%s:%d: more than %d keys", r->name, line, TR_YAML_MAX_ITEMS);
	if (y->n == r->cap) {
		int cap = r->cap ? 2 * r->cap : 64;
		struct tr_yaml_item *p = realloc(y->items, (size_t)cap * sizeof *p);
		if (!p)
			return tr_errorf(r->err, TR_EXIT_FAIL, "out of memory");
		y->items = p;
		r->cap = cap;
	}
	struct tr_yaml_item *it = &y->items[y->n];
	*it = (struct tr_yaml_item){.key = strdup(key),
				    .value = strdup(text),
				    .line = line,
				    .quoted = ev->data.scalar.style != YAML_PLAIN_SCALAR_STYLE};
	if (!it->key || !it->value) {
		free(it->key);
		free(it->value);
		return tr_errorf(r->err, TR_EXIT_FAIL, "out of memory");
	}
	y->n++;
	return 0;
}

static int read_mapping(struct reader *r, const char *prefix, int depth);

/* The value after `key`. */
static int read_value(struct reader *r, const char *key, int depth)
{
	yaml_event_t ev;
	int rc = -1, line;

	if (next_event(r, &ev))
		return -1;
	line = line_of(&ev.start_mark);
	switch (ev.type) {
	case YAML_SCALAR_EVENT:
		if (!plain_only(r, ev.data.scalar.anchor, ev.data.scalar.tag, line))
			rc = add_item(r, key, &ev);
		break;
	case YAML_MAPPING_START_EVENT:
		if (!plain_only(r, ev.data.mapping_start.anchor, ev.data.mapping_start.tag, line))
			rc = read_mapping(r, key, depth + 1);
		break;
	case YAML_SEQUENCE_START_EVENT:
		tr_errorf(r->err, TR_EXIT_USAGE, "%s:%d: %s is a list; no key takes a list, give one value", r->name, line,
			  key);
		break;
	default:
		tr_errorf(r->err, TR_EXIT_USAGE, "%s:%d: %s is an alias (*name); write the value out", r->name, line, key);
	}
	yaml_event_delete(&ev);
	return rc;
}

/* Pairs up to the end of a mapping whose start was read. */
static int read_mapping(struct reader *r, const char *prefix, int depth)
{
	for (;;) {
		char key[TR_YAML_MAX_KEY + 1];
		yaml_event_t ev;
		int end, ok = 0;

		if (next_event(r, &ev))
			return -1;
		int line = line_of(&ev.start_mark);
		end = ev.type == YAML_MAPPING_END_EVENT;
		if (end) {
			ok = 1;
		} else if (depth > TR_YAML_MAX_DEPTH) {
			tr_errorf(r->err, TR_EXIT_USAGE, "%s:%d: nested deeper than %d levels", r->name, line,
				  TR_YAML_MAX_DEPTH);
		} else if (ev.type != YAML_SCALAR_EVENT) {
			tr_errorf(r->err, TR_EXIT_USAGE, "%s:%d: a key must be a plain name", r->name, line);
		} else if (!plain_only(r, ev.data.scalar.anchor, ev.data.scalar.tag, line)) {
			int n = snprintf(key, sizeof key, "%s%s%s", prefix, *prefix ? "." : "",
					 (const char *)ev.data.scalar.value);
			ok = n > 0 && (size_t)n < sizeof key && ev.data.scalar.length > 0 &&
			     strlen((const char *)ev.data.scalar.value) == ev.data.scalar.length;
			if (!ok)
				tr_errorf(r->err, TR_EXIT_USAGE, "%s:%d: a key is empty or longer than %d characters",
					  r->name, line, TR_YAML_MAX_KEY);
		}
		yaml_event_delete(&ev);
		if (end || !ok)
			return ok ? 0 : -1;
		if (read_value(r, key, depth))
			return -1;
	}
}

/* Reads and drops one event, which must be of `type`. */
static int expect(struct reader *r, yaml_event_type_t type, const char *else_text)
{
	yaml_event_t ev;
	int rc = 0;

	if (next_event(r, &ev))
		return -1;
	if (ev.type != type)
		rc = tr_errorf(r->err, TR_EXIT_USAGE, "%s:%d: %s", r->name, line_of(&ev.start_mark), else_text);
	yaml_event_delete(&ev);
	return rc;
}

static int read_document(struct reader *r)
{
	static const char not_map[] = "a configuration is a mapping of `key: value` lines";
	yaml_event_t ev;
	int rc = 0, empty;

	if (expect(r, YAML_STREAM_START_EVENT, "not a YAML stream"))
		return -1;
	if (next_event(r, &ev))
		return -1;
	empty = ev.type == YAML_STREAM_END_EVENT;
	yaml_event_delete(&ev);
	if (empty)
		return 0;
	if (next_event(r, &ev))
		return -1;
	int line = line_of(&ev.start_mark);
	if (ev.type != YAML_MAPPING_START_EVENT)
		rc = tr_errorf(r->err, TR_EXIT_USAGE, "%s:%d: %s", r->name, line, not_map);
	else
		rc = plain_only(r, ev.data.mapping_start.anchor, ev.data.mapping_start.tag, line);
	yaml_event_delete(&ev);
	if (rc || read_mapping(r, "", 1))
		return -1;
	if (expect(r, YAML_DOCUMENT_END_EVENT, not_map))
		return -1;
	return expect(r, YAML_STREAM_END_EVENT, "a second document (---) starts here; a configuration is one document");
}

int tr_yaml_parse(const char *name, const char *text, size_t len, struct tr_yaml *out, struct tr_error *err)
{
	struct reader r = {.name = name, .out = out, .err = err};
	int rc;

	*out = (struct tr_yaml){0};
	if (len > TR_YAML_MAX_BYTES)
		return tr_errorf(err, TR_EXIT_USAGE, "%s: %zu bytes; a configuration is at most %d", name, len,
				 TR_YAML_MAX_BYTES);
	if (!yaml_parser_initialize(&r.parser))
		return tr_errorf(err, TR_EXIT_FAIL, "out of memory");
	yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);
	rc = read_document(&r);
	yaml_parser_delete(&r.parser);
	if (rc)
		tr_yaml_free(out);
	return rc;
}

void tr_yaml_free(struct tr_yaml *y)
{
	for (int i = 0; i < y->n; i++) {
		free(y->items[i].key);
		free(y->items[i].value);
	}
	free(y->items);
	*y = (struct tr_yaml){0};
}

int tr_yaml_scalar(const char *what, const char *text, char **value, int *quoted, struct tr_error *err)
{
	struct tr_yaml y;
	char *doc = NULL;
	int rc = -1;

	*value = NULL;
	if (strlen(text) > TR_YAML_MAX_SCALAR)
		return tr_errorf(err, TR_EXIT_USAGE, "%s: a value is at most %d bytes", what, TR_YAML_MAX_SCALAR);
	if (asprintf(&doc, "v: %s\n", text) < 0)
		return tr_errorf(err, TR_EXIT_FAIL, "out of memory");
	if (!tr_yaml_parse(what, doc, strlen(doc), &y, err)) {
		if (y.n == 1 && !strcmp(y.items[0].key, "v")) {
			*value = y.items[0].value;
			*quoted = y.items[0].quoted;
			y.items[0].value = NULL;
			rc = 0;
		} else {
			tr_errorf(err, TR_EXIT_USAGE, "%s: '%.60s' is not a single value", what, text);
		}
		tr_yaml_free(&y);
	}
	free(doc);
	return rc;
}
