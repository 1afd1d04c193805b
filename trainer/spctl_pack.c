/* SPDX-License-Identifier: Apache-2.0 */
/* spctl pack: files in, dataset folder out. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "io/io_pack.h"
#include "io/io_tokenizer.h"
#include "trainer/special_ids.h"
#include "trainer/spctl.h"

enum format { AUTO, TEXT, JSONL, RAW16, RAW32 };
static const char *const format_names[] = {"auto", "text", "jsonl", "raw-u16", "raw-u32"};

struct input {
	char *path;
	enum format format;
};

struct pack {
	struct io_pack_opts o;
	struct io_packer *packer;
	enum format format; /* as asked for */
	const char *field, *separator;
	struct io_tokenizer *tok; /* --tokenizer, else the byte vocabulary */
	struct io_tok_scratch *scratch;
	struct input *inputs;
	int64_t ninputs, cap;
	int64_t total_bytes, bytes, documents; /* of text or ids, for the progress line */
	uint32_t *ids;
	size_t ids_cap;
	struct timespec start, shown;
	int tty;
};

/* Set by the signal handler: the folder being written is removed before the program ends. */
static volatile sig_atomic_t stop_signal;

static void on_signal(int sig)
{
	stop_signal = sig;
}

static double since(const struct timespec *t)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - t->tv_sec) + 1e-9 * (double)(now.tv_nsec - t->tv_nsec);
}

static void show_progress(struct pack *k)
{
	double s;

	if (!k->tty || since(&k->shown) < 1.0)
		return;
	clock_gettime(CLOCK_MONOTONIC, &k->shown);
	s = since(&k->start);
	fprintf(stderr, "\rpack: %" PRId64 " documents, %.1f of %.1f MB, %.1f MB/s\033[K", k->documents,
		(double)k->bytes * 1e-6, (double)k->total_bytes * 1e-6, (double)k->bytes * 1e-6 / s);
}

static int interrupted(struct io_error *err)
{
	return stop_signal ? io_errorf(err, EINTR, "stopped by signal %d; nothing was written", (int)stop_signal) : 0;
}

static int add_ids(void *arg, const uint32_t *ids, int64_t n, struct io_error *err)
{
	struct pack *k = arg;

	k->documents++;
	show_progress(k);
	return interrupted(err) < 0 ? -1 : io_packer_add(k->packer, ids, n, err);
}

static int add_text(struct pack *k, const char *text, size_t n, struct io_error *err)
{
	const uint32_t *ids = NULL;
	int64_t count = 0;

	if (k->tok) {
		if (io_tokenizer_encode(k->tok, k->scratch, text, n, 0, &ids, &count, err) < 0)
			return -1;
		return add_ids(k, ids, count, err);
	}
	if (n > k->ids_cap) {
		uint32_t *p = realloc(k->ids, n * sizeof(*p));

		if (!p)
			return io_errorf(err, ENOMEM, "out of memory for a document of %zu bytes", n);
		k->ids = p;
		k->ids_cap = n;
	}
	for (size_t i = 0; i < n; i++)
		k->ids[i] = (unsigned char)text[i];
	return add_ids(k, k->ids, (int64_t)n, err);
}

static int emit_whole(void *arg, const char *text, size_t n, struct io_error *err)
{
	return add_text(arg, text, n, err);
}

/* Documents lie between lines that are exactly the separator (a carriage return before the line end is allowed). */
static int emit_split(void *arg, const char *text, size_t n, struct io_error *err)
{
	struct pack *k = arg;
	size_t sep = strlen(k->separator), begin = 0;

	for (size_t at = 0; at < n;) {
		const char *nl = memchr(text + at, '\n', n - at);
		size_t end = nl ? (size_t)(nl - text) : n, len = end - at;

		if (len > 0 && text[at + len - 1] == '\r')
			len--;
		if (len == sep && !memcmp(text + at, k->separator, sep)) {
			if (add_text(k, text + begin, at - begin, err) < 0)
				return -1;
			begin = nl ? end + 1 : n;
		}
		at = nl ? end + 1 : n;
	}
	return begin < n ? add_text(k, text + begin, n - begin, err) : 0;
}

static enum format format_of(const char *path)
{
	const char *dot = strrchr(path, '.');

	if (dot && (!strcmp(dot, ".jsonl") || !strcmp(dot, ".ndjson")))
		return JSONL;
	if (dot && !strcmp(dot, ".u16"))
		return RAW16;
	return dot && !strcmp(dot, ".u32") ? RAW32 : TEXT;
}

static int list_input(void *arg, const char *path, struct io_error *err)
{
	struct pack *k = arg;
	struct stat st;

	if (k->ninputs == k->cap) {
		int64_t cap = k->cap ? 2 * k->cap : 64;
		struct input *p = realloc(k->inputs, (size_t)cap * sizeof(*p));

		if (!p)
			return io_errorf(err, ENOMEM, "out of memory for the list of files");
		k->inputs = p;
		k->cap = cap;
	}
	k->inputs[k->ninputs] = (struct input){strdup(path), k->format == AUTO ? format_of(path) : k->format};
	if (!k->inputs[k->ninputs].path)
		return io_errorf(err, ENOMEM, "out of memory for the list of files");
	k->ninputs++;
	if (stat(path, &st) == 0)
		k->total_bytes += st.st_size;
	return 0;
}

static int pack_input(struct pack *k, const struct input *in, struct io_error *err)
{
	struct stat st;
	int rc;

	if (in->format == JSONL)
		rc = io_source_jsonl(in->path, k->field, emit_whole, k, err);
	else if (in->format == TEXT)
		rc = io_source_text(in->path, k->separator ? emit_split : emit_whole, k, err);
	else
		rc = io_source_raw(in->path, in->format == RAW16 ? 2 : 4, k->o.eos_token_id, add_ids, k, err);
	if (stat(in->path, &st) == 0)
		k->bytes += st.st_size;
	return rc;
}

struct args {
	const char *out, *seq, *packing, *seed, *shard, *format, *field, *vocab, *eos, *sep, *tok;
};

#define NOPTS 12

static void pack_options(struct args *a, struct spctl_opt opts[NOPTS])
{
	const struct spctl_opt all[NOPTS] = {
		{"out", "DIR", "dataset folder to make; must not exist", &a->out},
		{"seq-length", "N", "tokens of a sample at most", &a->seq},
		{"packing", "bfd|wrapped", "best fit decreasing (default), or one stream cut every N", &a->packing},
		{"seed", "S", "recorded with the dataset (default 0)", &a->seed},
		{"shard-size", "BYTES", "token bytes of a shard, suffixes K, M, G (default 256M)", &a->shard},
		{"format", "F", "auto (default), text, jsonl, raw-u16, raw-u32", &a->format},
		{"field", "NAME", "JSONL member with the text, dots for nesting (default text)", &a->field},
		{"doc-separator", "S", "text files: a line that is S ends a document", &a->sep},
		{"tokenizer", "DIR", "folder with a Hugging Face tokenizer.json (default: bytes)", &a->tok},
		{"vocab-size", "N", "raw ids: all are below N", &a->vocab},
		{"eos-id", "N|none", "the id that ends a document", &a->eos},
		{NULL, NULL, NULL, NULL},
	};

	memcpy(opts, all, sizeof(all));
}

static int read_options(struct pack *k, const struct args *a)
{
	int64_t seed = 0;
	int rc = -1;

	k->field = a->field ? a->field : "text";
	k->separator = a->sep;
	k->o.eos_token_id = k->o.pad_token_id = -1;
	k->o.out_dir = a->out;
	if (!a->out || !a->seq)
		return spctl_fail(SPCTL_USAGE, "pack", "--%s is missing; e.g. spctl pack --out data --seq-length 4096 "
				  "corpus/", a->out ? "seq-length" : "out");
	rc = spctl_int("pack", "seq-length", a->seq, 2, INT64_C(1) << 30, 0, &k->o.seq_length);
	if (rc < 0 && a->seed)
		rc = spctl_int("pack", "seed", a->seed, 0, INT64_MAX, 0, &seed);
	if (rc < 0 && a->shard)
		rc = spctl_int("pack", "shard-size", a->shard, 1, INT64_C(1) << 30, 1, &k->o.shard_bytes);
	if (rc >= 0)
		return rc;
	k->o.seed = (uint64_t)seed;
	if (a->packing && strcmp(a->packing, "bfd") != 0 && strcmp(a->packing, "wrapped") != 0)
		return spctl_fail(SPCTL_USAGE, "pack", "--packing %s: bfd or wrapped is wanted", a->packing);
	k->o.packing = a->packing && a->packing[0] == 'w' ? IO_PACK_WRAPPED : IO_PACK_BFD;
	for (int f = AUTO; f <= RAW32; f++) {
		if (a->format && strcmp(a->format, format_names[f]) != 0)
			continue;
		k->format = (enum format)f;
		return -1;
	}
	return spctl_fail(SPCTL_USAGE, "pack", "--format %s: auto, text, jsonl, raw-u16 or raw-u32 is wanted", a->format);
}

static int use_tokenizer(struct pack *k, const struct args *a, struct io_error *err)
{
	k->o.tokenizer_kind = "hf";
	k->o.tokenizer_dir = a->tok;
	if (io_tokenizer_open(a->tok, &k->tok, err) < 0 || io_tok_scratch_create(k->tok, &k->scratch, err) < 0 ||
	    tr_special_ids(a->tok, k->tok, &k->o.eos_token_id, &k->o.pad_token_id, err) < 0)
		return spctl_fail(1, "pack", "%s", err->text);
	k->o.vocab_size = io_tokenizer_vocab_size(k->tok);
	if (a->eos && !strcmp(a->eos, "none"))
		k->o.eos_token_id = -1;
	else if (a->eos)
		return spctl_int("pack", "eos-id", a->eos, 0, k->o.vocab_size - 1, 0, &k->o.eos_token_id);
	else if (k->o.eos_token_id < 0)
		return spctl_fail(SPCTL_USAGE, "pack", "%s: tokenizer_config.json names no eos_token of the vocabulary; "
				  "give --eos-id N or --eos-id none", a->tok);
	return -1;
}

/* What the ids are: bytes, a tokenizer's, or raw ones; decided by the inputs, which must agree. */
static int choose_vocabulary(struct pack *k, const struct args *a, struct io_error *err)
{
	int64_t raw = 0;
	int rc = -1;

	for (int64_t i = 0; i < k->ninputs; i++)
		raw += k->inputs[i].format == RAW16 || k->inputs[i].format == RAW32;
	if (raw && raw < k->ninputs)
		return spctl_fail(SPCTL_USAGE, "pack", "%" PRId64 " of %" PRId64 " files hold raw ids and the others "
				  "text; pack one kind at a time", raw, k->ninputs);
	if (!raw && (a->vocab || (a->eos && !a->tok)))
		return spctl_fail(SPCTL_USAGE, "pack", "--%s goes with raw ids only", a->vocab ? "vocab-size" : "eos-id");
	if (!raw && !a->tok) {
		k->o.tokenizer_kind = "byte";
		k->o.vocab_size = IO_BYTE_VOCAB;
		k->o.eos_token_id = IO_BYTE_EOS;
		k->o.pad_token_id = IO_BYTE_PAD;
		return -1;
	}
	if (!raw)
		return use_tokenizer(k, a, err);
	if (!a->vocab || !a->eos)
		return spctl_fail(SPCTL_USAGE, "pack", "raw ids need --vocab-size N and --eos-id N (or none)");
	k->o.tokenizer_kind = "raw";
	k->o.tokenizer_dir = a->tok;
	rc = spctl_int("pack", "vocab-size", a->vocab, 1, INT64_C(1) << 31, 0, &k->o.vocab_size);
	if (rc < 0 && strcmp(a->eos, "none") != 0)
		rc = spctl_int("pack", "eos-id", a->eos, 0, k->o.vocab_size - 1, 0, &k->o.eos_token_id);
	return rc;
}

static void report(const struct pack *k, const struct io_pack_report *r)
{
	if (k->tty)
		fprintf(stderr, "\r\033[K");
	printf("%s: %" PRId64 " documents (%" PRId64 " empty, %" PRId64 " split), %" PRId64 " tokens, %" PRId64
	       " targets, %" PRId64 " samples of %" PRId64 ", fill %.1f%%, %d shard%s, %.1f s\n",
	       k->o.out_dir, r->documents, r->empty_documents, r->split_documents, r->tokens, r->targets, r->samples,
	       k->o.seq_length, 100 * r->fill, r->nshards, r->nshards == 1 ? "" : "s", since(&k->start));
}

static int pack_all(struct pack *k, struct io_error *err)
{
	struct io_pack_report r;

	if (io_packer_create(&k->o, &k->packer, err) < 0)
		return -1;
	for (int64_t i = 0; i < k->ninputs; i++)
		if (pack_input(k, &k->inputs[i], err) < 0)
			return -1;
	if (interrupted(err) < 0 || io_packer_finish(k->packer, &r, err) < 0)
		return -1;
	report(k, &r);
	return 0;
}

int spctl_pack(int argc, char **argv)
{
	struct sigaction sa = {.sa_handler = on_signal};
	struct pack k = {.packer = NULL};
	struct args a = {NULL};
	struct io_error err = {.code = 0};
	struct spctl_opt opts[NOPTS];
	int npos, rc;

	pack_options(&a, opts);
	rc = spctl_options("pack --out DIR --seq-length N [option ...] INPUT ...",
			   "Packs documents into a dataset folder. An INPUT is a file or a folder (walked in order of names;\n"
			   "hidden files and links in it are skipped). With --format auto the name decides: .jsonl and\n"
			   ".ndjson hold one JSON object a line, .u16 and .u32 raw little-endian ids, anything else text.",
			   opts, argc, argv, &npos);
	if (rc < 0)
		rc = read_options(&k, &a);
	if (rc < 0 && npos == 0)
		rc = spctl_fail(SPCTL_USAGE, "pack", "no INPUT is given; name files or folders");
	if (rc >= 0)
		return rc;
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGHUP, &sa, NULL);
	clock_gettime(CLOCK_MONOTONIC, &k.start);
	k.shown = k.start;
	k.tty = isatty(STDERR_FILENO);
	for (int i = 1; rc < 0 && i <= npos; i++)
		if (io_source_walk(argv[i], list_input, &k, &err) < 0)
			rc = spctl_fail(1, "pack", "%s", err.text);
	if (rc < 0 && k.ninputs == 0)
		rc = spctl_fail(1, "pack", "%s: holds no files", argv[1]);
	if (rc < 0)
		rc = choose_vocabulary(&k, &a, &err);
	if (rc < 0)
		rc = pack_all(&k, &err) < 0 ? spctl_fail(1, "pack", "%s%s", k.tty ? "\r\033[K" : "", err.text) : 0;
	io_packer_destroy(k.packer);
	io_tok_scratch_destroy(k.scratch);
	io_tokenizer_close(k.tok);
	for (int64_t i = 0; i < k.ninputs; i++)
		free(k.inputs[i].path);
	free(k.inputs);
	free(k.ids);
	return stop_signal ? 128 + stop_signal : rc;
}
