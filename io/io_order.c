/* SPDX-License-Identifier: Apache-2.0 */
#include "io/io_loader.h"

/*
 * The order of samples, as a composition of bijections of [0, N):
 *
 *   position --(inside its window of 64 blocks, keyed by window)--> slot --(blocks, keyed by epoch)--> sample
 *
 * Blocks of 64 neighbours are dealt out in random order and mixed only with the 63 blocks dealt next to them, so that at
 * any time reads fall into 64 short stretches of the files. N need not be a multiple of anything: the last, short block
 * is inserted at a random place between the others, the last window is short. Integers only: every compiler and machine
 * gives the same order.
 */
#define BLOCK  64
#define WINDOW (64 * BLOCK)
#define ROUNDS 6

/* splitmix64's finaliser */
static uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static uint64_t key_of(uint64_t seed, uint64_t epoch, uint64_t what)
{
	return mix(mix(mix(seed) ^ epoch) ^ what);
}

/* A keyed bijection of [0, n): a balanced Feistel network over the next even number of bits, walked until it lands inside
 * (at most 4 times on average). The bits come from n - 1, the largest value, not from n. */
static uint64_t permute(uint64_t key, uint64_t n, uint64_t x)
{
	int bits = n > 1 ? 64 - __builtin_clzll(n - 1) : 0, half = (bits + 1) / 2;
	uint64_t mask = (UINT64_C(1) << half) - 1;

	if (bits == 0)
		return x;
	do {
		uint64_t l = x >> half, r = x & mask;

		for (uint64_t i = 0; i < ROUNDS; i++) {
			uint64_t f = (l ^ mix(key ^ mix(r << 8 | i))) & mask;

			l = r;
			r = f;
		}
		x = l << half | r;
	} while (x >= n);
	return x;
}

/* Slot -> sample: whole blocks dealt out, the short one at place `at` between them. */
static uint64_t blocks(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t slot)
{
	uint64_t full = n / BLOCK, tail = n % BLOCK;
	uint64_t at = tail ? key_of(seed, epoch, 1) % (full + 1) : full;

	if (slot >= at * BLOCK) {
		if (slot < at * BLOCK + tail)
			return full * BLOCK + (slot - at * BLOCK);
		slot -= tail;
	}
	return permute(key_of(seed, epoch, 2), full, slot / BLOCK) * BLOCK + slot % BLOCK;
}

int64_t io_order(uint64_t seed, int shuffle, int64_t nsamples, int64_t p)
{
	uint64_t n = (uint64_t)nsamples, epoch, x, w, size;

	if (nsamples < 1 || p < 0)
		return -1;
	epoch = (uint64_t)p / n;
	x = (uint64_t)p % n;
	if (!shuffle)
		return (int64_t)x;
	w = x / WINDOW;
	size = n - w * WINDOW < WINDOW ? n - w * WINDOW : WINDOW;
	x = w * WINDOW + permute(key_of(seed, epoch, 3 + w), size, x % WINDOW);
	return (int64_t)blocks(seed, epoch, n, x);
}
