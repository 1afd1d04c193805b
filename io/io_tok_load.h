/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_TOK_LOAD_H
#define IO_IO_TOK_LOAD_H
/* Parts of reading tokenizer.json. `depth` bounds nesting of Sequence. */
#include <jansson.h>
#include "io/io_tok_priv.h"

/* The byte a character of GPT-2's byte-level alphabet stands for, or -1. */
int tok_char_to_byte(uint32_t c);
/* What Unicode 15 and 16 added to a general category ("L", "Nd", ...), as contents of a PCRE2 class, or NULL. */
const char *tok_since14(const char *name, size_t n);
/* Appends the normalizer's steps to t->norms. */
int tok_load_norms(struct io_tokenizer *t, json_t *o, int depth, struct io_error *err);
/* Appends the pre-tokenizer's steps to t->stages; sets t->byte_level. */
int tok_load_stages(struct io_tokenizer *t, json_t *o, int depth, struct io_error *err);

#endif
