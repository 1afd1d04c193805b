/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_TOKENIZER_H
#define IO_IO_TOKENIZER_H
/*
 * tokenizer.json (the Hugging Face tokenizers format): text in, ids out, equal to that library id by id.
 *
 *   text --added tokens--> pieces --normalizer--> --pre-tokenizer--> words --BPE--> ids --post-processor--> ids
 *
 * Read: byte-level BPE as GPT-2, Llama-3, Qwen2/3, SmolLM and DeepSeek use it, and SentencePiece-style BPE with byte
 * fallback (Llama-2, Mistral). Normalizers NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip; pre-tokenizers Split
 * (every behaviour), ByteLevel, Digits, Whitespace, WhitespaceSplit, Metaspace; post-processor TemplateProcessing; Sequence
 * of each. Anything else (Unigram, WordPiece, dropout, ...) is refused by name: never a silent change of ids.
 * Text that is not UTF-8 is decoded as Python's errors="replace" does it: U+FFFD for each maximal bad subpart.
 */
#include <stddef.h>
#include <stdint.h>
#include "io/io_err.h"

struct io_tokenizer; /* immutable after open; shared by threads */
struct io_tok_scratch; /* one a thread: buffers and the word cache */

/* path: a tokenizer.json, or a folder that holds one. */
int io_tokenizer_open(const char *path, struct io_tokenizer **out, struct io_error *err);
/* The same from memory (not kept). `what` names it in messages. */
int io_tokenizer_parse(const char *what, const char *json, size_t len, struct io_tokenizer **out, struct io_error *err);
void io_tokenizer_close(struct io_tokenizer *t);

int64_t io_tokenizer_vocab_size(const struct io_tokenizer *t); /* largest id, added tokens included, plus one */
/* Id of an exact token string (added tokens first), or -1. */
int64_t io_tokenizer_token_id(const struct io_tokenizer *t, const char *token);

int io_tok_scratch_create(const struct io_tokenizer *t, struct io_tok_scratch **out, struct io_error *err);
void io_tok_scratch_destroy(struct io_tok_scratch *s);

/* *ids points into s and is valid until its next use. add_special applies the post-processor's template (BOS and the
 * like). Returns 0 or -1. */
int io_tokenizer_encode(const struct io_tokenizer *t, struct io_tok_scratch *s, const char *text, size_t len,
			int add_special, const uint32_t **ids, int64_t *n, struct io_error *err);
/* Text of ids (may be invalid UTF-8 when cut mid-character), malloc'ed, NUL-terminated. Unknown ids are refused. */
int io_tokenizer_decode(const struct io_tokenizer *t, const uint32_t *ids, int64_t n, int skip_special, char **text,
			size_t *len, struct io_error *err);

#endif
