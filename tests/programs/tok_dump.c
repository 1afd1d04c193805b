/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tok_dump TOKENIZER DOCS OUT [ADD_SPECIAL]: encodes every document of DOCS (u32 length, bytes, ...) and writes u32 count,
 * ids, ... to OUT; prints seconds and MB/s. The other half of tests/golden/compare_tokenizers.py.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "io/io_file.h"
#include "io/io_tokenizer.h"

int main(int argc, char **argv)
{
	struct io_tokenizer *t = NULL;
	struct io_tok_scratch *s = NULL;
	struct io_error err = { 0 };
	char *data = NULL;
	size_t len = 0, at = 0;
	FILE *out = NULL;
	struct timespec a, b;
	int special = argc > 4 && atoi(argv[4]);

	if (argc < 4) {
		fprintf(stderr, "usage: tok_dump TOKENIZER DOCS OUT [ADD_SPECIAL]\n");
		return 2;
	}
	if (io_tokenizer_open(argv[1], &t, &err) || io_tok_scratch_create(t, &s, &err) ||
	    io_read_file(argv[2], (size_t)1 << 31, &data, &len, &err)) {
		fprintf(stderr, "tok_dump: %s\n", err.text);
		return 1;
	}
	out = fopen(argv[3], "wb");
	if (!out) {
		perror(argv[3]);
		return 1;
	}
	clock_gettime(CLOCK_MONOTONIC, &a);
	while (at + 4 <= len) {
		uint32_t n, k;
		const uint32_t *ids;
		int64_t nids;

		memcpy(&n, data + at, 4);
		if (n > len - at - 4 || io_tokenizer_encode(t, s, data + at + 4, n, special, &ids, &nids, &err)) {
			fprintf(stderr, "tok_dump: document at %zu: %s\n", at, err.text);
			return 1;
		}
		k = (uint32_t)nids;
		fwrite(&k, 4, 1, out);
		fwrite(ids, 4, k, out);
		at += 4 + n;
	}
	clock_gettime(CLOCK_MONOTONIC, &b);
	double sec = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);

	printf("%.3f s, %.2f MB/s\n", sec, (double)len / 1e6 / sec);
	io_tok_scratch_destroy(s);
	io_tokenizer_close(t);
	free(data);
	return fclose(out) ? 1 : 0;
}
