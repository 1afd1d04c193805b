/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json, a line "---", then text: parse, encode, decode. Neither may crash, and decoding what was encoded works. */
#include <stdlib.h>
#include <string.h>
#include "io/io_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *cut = memmem(data, size, "\n---\n", 5);
	size_t json = cut ? (size_t)(cut - data) : size, text = cut ? json + 5 : size, len;
	struct io_tokenizer *t = NULL;
	struct io_tok_scratch *s = NULL;
	struct io_error err = { 0 };
	const uint32_t *ids;
	int64_t n;
	char *back;

	if (io_tokenizer_parse("fuzz", (const char *)data, json, &t, &err))
		return 0;
	if (!io_tok_scratch_create(t, &s, &err) &&
	    !io_tokenizer_encode(t, s, (const char *)data + text, size - text, 1, &ids, &n, &err)) {
		if (io_tokenizer_decode(t, ids, n, 0, &back, &len, &err))
			abort();
		free(back);
	}
	io_tok_scratch_destroy(s);
	io_tokenizer_close(t);
	return 0;
}
