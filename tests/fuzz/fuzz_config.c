/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A configuration of arbitrary bytes: first up to a NUL the argument of --set, then the file. What is accepted must come out
 * as YAML that is accepted again and comes out the same; what is refused must be refused with one line.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "trainer/config.h"
#include "trainer/config_keys.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(int condition)
{
	if (!condition)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct tr_config a, b;
	struct tr_error err = {0};
	const uint8_t *nul = memchr(data, 0, size);
	char set[256] = "";
	const char *sets[] = {set};
	struct tr_config_args args = {.set = sets};
	char *text, *again;

	if (nul && nul - data < (int)sizeof set) {
		strcpy(set, (const char *)data);
		args.nset = 1;
		size -= (size_t)(nul + 1 - data);
		data = nul + 1;
	}
	if (tr_config_parse("f.yaml", ".", (const char *)data, size, &args, &a, &err)) {
		need(err.text[0] && err.exit_code && !strchr(err.text, '\n'));
		return 0;
	}
	need(!err.text[0]);
	text = tr_config_emit(&a);
	need(text != NULL);
	need(!tr_config_parse("r.yaml", ".", text, strlen(text), NULL, &b, &err));
	again = tr_config_emit(&b);
	need(again && !strcmp(text, again));
	free(text);
	free(again);
	return 0;
}
