/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "io/io_file_priv.h"
#include "io/io_pack_priv.h"
#include "io/io_sha256.h"

/*
 * The byte vocabulary as a Hugging Face tokenizer: a BPE model with no merges over GPT-2's 256 byte characters, whose ids
 * are the byte values themselves. Text that spells a special token becomes that token there and stays bytes here.
 */
#define EOS_TEXT "<|endoftext|>"
#define PAD_TEXT "<|pad|>"

/* GPT-2's printable stand-in for byte b: itself where it prints, else the next code point from 256 on. */
static unsigned stand_in(unsigned b)
{
	unsigned n = 256;

	for (unsigned c = 0; c < 256; c++) {
		int prints = (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174;

		if (c == b)
			return prints ? b : n;
		n += !prints;
	}
	return n;
}

static json_t *vocab_json(void)
{
	json_t *v = json_object();

	for (unsigned b = 0; b < 256; b++) {
		unsigned c = stand_in(b);
		char utf8[3] = {(char)c, 0, 0};

		if (c >= 0x80) {
			utf8[0] = (char)(0xc0 | c >> 6);
			utf8[1] = (char)(0x80 | (c & 0x3f));
		}
		json_object_set_new(v, utf8, json_integer(b));
	}
	return v;
}

static json_t *added_json(int id, const char *text)
{
	return json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", text, "single_word", 0, "lstrip", 0,
			 "rstrip", 0, "normalized", 0, "special", 1);
}

static json_t *byte_level(int use_regex)
{
	return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
			 "use_regex", use_regex);
}

static json_t *tokenizer_json(void)
{
	json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}", "type", "BPE", "dropout",
				  "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
				  "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab_json(), "merges");

	return json_pack("{s:s, s:n, s:n, s:[o,o], s:n, s:o, s:n, s:o, s:o}", "version", "1.0", "truncation", "padding",
			 "added_tokens", added_json(IO_BYTE_EOS, EOS_TEXT), added_json(IO_BYTE_PAD, PAD_TEXT),
			 "normalizer", "pre_tokenizer", byte_level(0), "post_processor", "decoder", byte_level(0), "model",
			 model);
}

static int write_json(const char *dir, const char *name, json_t *root, char sha[65], struct io_error *err)
{
	char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
	char *path = io__strf(err, "%s/%s", dir, name);
	int rc = -1;

	if (text && path) {
		if (sha)
			io__sha256_hex(text, strlen(text), sha);
		rc = io_write_file(path, text, strlen(text), err);
	} else {
		io_errorf(err, ENOMEM, "%s/%s: out of memory", dir, name);
	}
	free(text);
	free(path);
	json_decref(root);
	return rc;
}

int io__bytevocab_write(const char *dir, char sha[65], struct io_error *err)
{
	if (write_json(dir, "tokenizer.json", tokenizer_json(), sha, err) < 0)
		return -1;
	return write_json(dir, "tokenizer_config.json",
			  json_pack("{s:s, s:s, s:s, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "eos_token",
				    EOS_TEXT, "pad_token", PAD_TEXT, "clean_up_tokenization_spaces", 0),
			  NULL, err);
}

/* tokenizer.json is what packing depends on; the others are carried along when they are there. */
static const char *const carried[] = {"tokenizer.json",		 "tokenizer_config.json", "special_tokens_map.json",
				      "added_tokens.json",	 "vocab.json",		  "merges.txt",
				      "generation_config.json", "chat_template.jinja"};

int io__tokenizer_copy(const char *from, const char *to, char sha[65], struct io_error *err)
{
	for (size_t i = 0; i < sizeof(carried) / sizeof(carried[0]); i++) {
		char *src = io__strf(err, "%s/%s", from, carried[i]), *dst = io__strf(err, "%s/%s", to, carried[i]);
		char *data = NULL;
		size_t len = 0;
		struct stat st;
		int rc = -1;

		if (src && dst && i > 0 && stat(src, &st) < 0 && errno == ENOENT)
			rc = 0;
		else if (src && dst && io_read_file(src, (size_t)256 << 20, &data, &len, err) == 0)
			rc = io_write_file(dst, data, len, err);
		if (rc == 0 && i == 0)
			io__sha256_hex(data, len, sha);
		free(data);
		free(src);
		free(dst);
		if (rc < 0)
			return -1;
	}
	return 0;
}
