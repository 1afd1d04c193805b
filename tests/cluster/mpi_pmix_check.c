/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks a step of the private cluster: PMIx and Open MPI agree about rank and size, every pair of ranks can talk,
 * an all-to-all with 64 KiB blocks delivers the right bytes. Prints "ok SIZE ranks on NODES nodes" from rank 0.
 *
 *     mpicc mpi_pmix_check.c -I... -lpmix && srun -N4 -n8 ./a.out
 */
#include <mpi.h>
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 65536

static int fail(const char *what)
{
	fprintf(stderr, "mpi_pmix_check: %s\n", what);
	return 1;
}

int main(int argc, char **argv)
{
	pmix_proc_t me;
	int rank, size, rc = 1, i, j, nodes = 0;
	char host[64] = "", *all, *out, *in;

	if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
		return fail("PMIx_Init failed: start it with srun --mpi=pmix");
	if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
		return fail("MPI_Init failed");
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	gethostname(host, sizeof(host) - 1);
	all = malloc((size_t)size * sizeof(host));
	out = malloc((size_t)size * BLOCK);
	in = malloc((size_t)size * BLOCK);
	if (!all || !out || !in || (pmix_rank_t)rank != me.rank)
		goto done;
	MPI_Allgather(host, sizeof(host), MPI_CHAR, all, sizeof(host), MPI_CHAR, MPI_COMM_WORLD);
	for (i = 0; i < size; i++)
		memset(out + (size_t)i * BLOCK, rank * 16 + i, BLOCK);
	MPI_Alltoall(out, BLOCK, MPI_CHAR, in, BLOCK, MPI_CHAR, MPI_COMM_WORLD);
	for (i = 0; i < size; i++)
		for (j = 0; j < BLOCK; j++)
			if (in[(size_t)i * BLOCK + j] != (char)(i * 16 + rank))
				goto done;
	for (i = 0; i < size; i++) {
		for (j = 0; j < i && strcmp(all + j * 64, all + i * 64); j++)
			;
		nodes += j == i;
	}
	rc = 0;
done:
	if (rc)
		fail("wrong rank or wrong data");
	else if (rank == 0)
		printf("ok %d ranks on %d nodes\n", size, nodes);
	free(all);
	free(out);
	free(in);
	MPI_Finalize();
	PMIx_Finalize(NULL, 0);
	return rc;
}
