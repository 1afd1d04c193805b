/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IO_IO_TOK_PRIV_H
#define IO_IO_TOK_PRIV_H
/* Inside of the tokenizer: what tokenizer.json becomes, and the steps that work on it. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "io/io_tokenizer.h"

#define TOK_NONE UINT32_MAX
#define TOK_MAX_ID 0x00ffffffu /* largest id taken: 16 Mi */

/* ---- a growing byte buffer and a growing list of pieces ---- */
struct tok_buf {
	char *p;
	size_t n, cap;
};
int tok_buf_add(struct tok_buf *b, const void *p, size_t n); /* -1: no memory */
int tok_buf_reserve(struct tok_buf *b, size_t n);            /* room for n more */

struct tok_piece {
	size_t off, n;   /* in the text buffer of the stage */
	uint32_t id;     /* an added token, or TOK_NONE: text */
	int first;       /* starts at the first byte of the whole text */
};
struct tok_pieces {
	struct tok_piece *p;
	size_t n, cap;
};
int tok_pieces_add(struct tok_pieces *l, struct tok_piece x);

/* ---- string -> id ---- */
struct tok_vocab {
	char *text;        /* all strings, one after the other */
	size_t text_n, text_cap;
	size_t *off;       /* [cap] start of the string in text */
	uint32_t *len;     /* [cap] */
	uint32_t *id;      /* [cap], TOK_NONE: free slot */
	size_t cap, n;     /* cap: a power of two */
};
int tok_vocab_put(struct tok_vocab *v, const char *s, size_t n, uint32_t id); /* replaces; -1: no memory */
uint32_t tok_vocab_get(const struct tok_vocab *v, const char *s, size_t n);
void tok_vocab_free(struct tok_vocab *v);

/* ---- (left id, right id) -> rank, merged id ---- */
struct tok_merge {
	uint64_t key;
	uint32_t rank, id;
};
struct tok_merges {
	struct tok_merge *t; /* [cap], key UINT64_MAX: free */
	size_t cap, n;
};
int tok_merges_put(struct tok_merges *m, uint32_t a, uint32_t b, uint32_t rank, uint32_t id);
const struct tok_merge *tok_merges_get(const struct tok_merges *m, uint32_t a, uint32_t b);

/* ---- regular expressions ---- */
struct tok_regex {
	pcre2_code *code;
};
/* Takes the Oniguruma pattern of a tokenizer.json: \s \S \w \W \h are spelled out, since PCRE2 means other sets by them. */
int tok_regex_compile(struct tok_regex *r, const char *pattern, size_t n, struct io_error *err);
void tok_regex_free(struct tok_regex *r);

enum tok_behavior { TOK_REMOVED, TOK_ISOLATED, TOK_PREV, TOK_NEXT, TOK_CONTIGUOUS };

enum tok_stage_kind {
	TOK_SPLIT,        /* by regex */
	TOK_PREFIX_SPACE, /* ByteLevel's add_prefix_space */
	TOK_METASPACE,
};
enum tok_scheme { TOK_ALWAYS, TOK_FIRST, TOK_NEVER };
struct tok_stage {
	enum tok_stage_kind kind;
	struct tok_regex re;
	enum tok_behavior behavior;
	int invert;
	enum tok_scheme scheme; /* metaspace */
	int split;              /* metaspace */
	char repl[5];           /* metaspace */
	size_t repl_n;
};

enum tok_norm_kind { TOK_NFC, TOK_NFD, TOK_NFKC, TOK_NFKD, TOK_PREPEND, TOK_REPLACE, TOK_LOWER, TOK_STRIP };
struct tok_norm {
	enum tok_norm_kind kind;
	struct tok_regex re; /* replace */
	char *text;          /* prepend, replacement */
	size_t text_n;
	int left, right; /* strip */
};
int tok_normalize(const struct tok_norm *norms, int n, pcre2_match_data *md, const char *s, size_t len,
		  struct tok_buf *out, struct tok_buf *tmp, struct io_error *err);
/* Copies text, bad UTF-8 replaced by U+FFFD. Returns 0 or -1 (no memory). */
int tok_utf8_lossy(const char *s, size_t n, struct tok_buf *out);
/* Decodes one character of valid UTF-8 (n >= 1 bytes there); returns its length. */
int tok_utf8_at(const char *s, size_t n, uint32_t *c);
int tok_is_space(uint32_t c); /* White_Space */
int tok_is_word(uint32_t c);  /* Alphabetic, marks, decimal digits, connectors, joiners */

/* ---- added tokens ---- */
struct tok_added {
	char *content;
	size_t n;
	uint32_t id;
	int single_word, lstrip, rstrip, normalized, special;
};
struct tok_trie_node {
	uint32_t child, next; /* first child, next sibling; 0: none */
	int32_t added;        /* index of the added token that ends here, or -1 */
	unsigned char byte;
};
struct tok_trie {
	struct tok_trie_node *nodes; /* [0] is the root */
	size_t n, cap;
	uint32_t root[256]; /* the root's children by byte, 0: none */
};
int tok_trie_put(struct tok_trie *t, const char *s, size_t n, int32_t added);
/* Splits text into added tokens (leftmost, longest) and what is between. */
int tok_added_split(const struct io_tokenizer *t, const struct tok_trie *trie, const char *base, struct tok_piece in,
		    struct tok_pieces *out);

struct io_tokenizer {
	struct tok_added *added;
	int nadded;
	struct tok_trie raw, normalized;
	int has_raw, has_normalized;
	struct tok_norm *norms;
	int nnorms;
	struct tok_stage *stages;
	int nstages;
	int byte_level;          /* words are bytes; vocabulary strings were mapped back to bytes */
	uint32_t byte_id[256];   /* byte_level: id of the one-byte token, or TOK_NONE */
	uint32_t fallback[256];  /* <0xNN>, or TOK_NONE */
	int byte_fallback, fuse_unk, ignore_merges;
	uint32_t unk;            /* TOK_NONE: none */
	struct tok_vocab vocab;  /* model strings (bytes when byte_level) */
	struct tok_merges merges;
	uint32_t *before, *after; /* post-processor's ids around the sequence */
	int nbefore, nafter;
	struct tok_vocab names;  /* the strings as written, for token_id and decode */
	size_t *name_slot;       /* [vocab_size] slot in names + 1, or 0 */
	int64_t vocab_size;
	int strip_left;          /* decode: drop one leading space */
};

/* One word to ids, appended to out (cap grows). */
struct tok_sym {
	uint32_t id;
	int32_t prev, next;
	uint32_t len;
};
struct tok_heap_item {
	uint32_t rank, pos, id;
};
struct tok_work {
	struct tok_sym *sym;
	size_t sym_cap;
	struct tok_heap_item *heap;
	size_t heap_n, heap_cap;
};
struct tok_ids {
	uint32_t *p;
	size_t n, cap;
};
int tok_ids_add(struct tok_ids *l, uint32_t id);
int tok_bpe_word(const struct io_tokenizer *t, struct tok_work *w, const char *s, size_t n, struct tok_ids *out);

/* Runs one pre-tokenizer stage over `in` (text in *text) into `out`; the text buffer may be rewritten. */
int tok_stage_run(const struct tok_stage *st, pcre2_match_data *md, struct tok_buf *text, struct tok_buf *tmp,
		  const struct tok_pieces *in, struct tok_pieces *out, struct io_error *err);

#endif
