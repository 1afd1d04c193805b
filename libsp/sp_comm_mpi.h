/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBSP_SP_COMM_MPI_H
#define LIBSP_SP_COMM_MPI_H
/* Private: Open MPI communicators for host memory. sp_comm_mpi.c is the only file that knows mpi.h. */
#include "libsp/sp_mesh_impl.h"

/* Initialises MPI (once a process, unless the program has done it) after all ranks have come this far, and checks that MPI
 * numbers the ranks as PMIx does. Collective. */
int sp_mpi_start(struct sp_mesh *m, const struct kn_ops *ops, struct sp_error *err);
/* Finalises what sp_mpi_start initialised. Collective, bounded by the deadline. */
void sp_mpi_stop(struct sp_mesh *m);
int sp_mpi_comm(struct sp_mesh *m, enum sp_group g, int colour, int rank, int size, int *world_rank,
		const struct kn_ops *ops, struct kn_ctx *ctx, struct sp_error *err);

#endif
